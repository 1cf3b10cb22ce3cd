"""FedSpa beyond the contract: its arguments, and that it is FedAvg at density 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.algorithms import fedspa
from sparsefl_jax.sparsity import masks
from sparsefl_jax.wire.packets import unpack_model
from tests.reference.by_hand import batches, context, linear_loss, model_of, one_client
from tests.reference.regrowth_by_hand import halved
from tests.refusals import refused

MODEL, OPTIMIZER = sfl.testing.tiny_model(), sfl.training.make_optimizer()


def test_the_end_of_the_schedule_goes_with_dynamic_masks_alone():
    def make(**kwargs):
        return lambda: fedspa(MODEL, OPTIMIZER, density=0.5, **kwargs)

    refused(make(adjust_until=4), "adjust_until=4, expected one of None")
    refused(make(prune_rate=0.5), "prune_rate=0.5, expected one of None")
    refused(make(mask_update="dst"), "rounds=None, expected ")


ROW = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.5, 6.0, 5.0])
WEIGHTS = np.array([8.0, 2.0, 3.0, 7.0, 1.0, 5.0, 6.0, 4.0])


def half_of_eight(key, **given):
    """Returns a method with gradient ROW and four weights a mask, and its server."""
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.01)
    return halved(fedspa, WEIGHTS, optimizer, key, **given)


@pytest.mark.parametrize("given", [{"adjust_until": 3, "rounds": 9}, {"rounds": 3}])
def test_a_client_exchanges_fewer_and_fewer_weights(given, key):
    """Of four: .5 in round 0, .25 (1 + cos(pi t / 3)) in round t, rounded up.

    By default the last round ends it.
    """
    method, server = half_of_eight(key, mask_update="dst", **given)
    client = {"w": jnp.arange(8) < 4}
    down = method.broadcast(key, context(), server)

    @jax.jit
    def after(round):
        ctx = context()._replace(round=round)
        return method.update(key, ctx, down, client, batches(1, ROW))[1]["w"]

    # 2 and then 3 are the smallest; entries 4 and then 6 have the largest gradients.
    for round, alive in ((0, [0, 3, 4, 6]), (1, [0, 3, 4, 6]), (2, [0, 2, 3, 4])):
        assert np.flatnonzero(after(jnp.int32(round))).tolist() == alive
    assert np.flatnonzero(after(jnp.int32(3))).tolist() == [0, 1, 2, 3]


def test_the_norm_that_is_clipped_is_that_of_all_gradients(key):
    """As in DisPFL's code: the gradient (30, 40), clipped at 10, is (6, 8)."""
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=1.0, clip=10.0)
    model = model_of(linear_loss, {"w": 2}, {"w": jnp.ones(2)})
    options = {"density": 0.5, "allocation": "uniform", "prunable": ("w",)}
    method = fedspa(model, optimizer, **options)
    server = method.init(key, masks.dense({"w": jnp.ones(2)}, {}))
    _, uplink, _ = one_client(method, server, context(), batches(1, [30.0, 40.0]), key)
    change = unpack_model(uplink)
    kept = np.asarray(change.mask["w"])
    assert kept.sum() == 1
    np.testing.assert_allclose(change.params["w"], np.where(kept, [-6, -8], 0))
