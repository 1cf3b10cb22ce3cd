"""FedSpa beyond the contract: its arguments, and that it is FedAvg at density 1."""

import jax.numpy as jnp
import numpy as np

import sparsefl_jax as sfl
from sparsefl_jax.algorithms import fedspa
from sparsefl_jax.sparsity import masks
from sparsefl_jax.wire.messages import unpack_model
from tests.reference.by_hand import batches, context, model_of, one_client
from tests.refusals import refused

MODEL, OPTIMIZER = sfl.testing.tiny_model(), sfl.training.make_optimizer()


def test_the_end_of_the_schedule_goes_with_dynamic_masks_alone():
    def make(**kwargs):
        return lambda: fedspa(MODEL, OPTIMIZER, density=0.5, **kwargs)

    refused(make(adjust_until=4), "adjust_until=4, expected one of None")
    refused(make(prune_rate=0.5), "prune_rate=0.5, expected one of None")
    refused(make(mask_update="dst"), "adjust_until=None, expected ")


def test_the_norm_that_is_clipped_is_that_of_all_gradients(key):
    """As in DisPFL's code: the gradient (30, 40), clipped at 10, is (6, 8)."""

    def objective(key, params, stats, x, y, weight):
        loss = 30 * params["w"][0] + 40 * params["w"][1]
        zero = jnp.float32(0)
        return loss, (stats, {"loss": loss, "correct": zero, "count": zero})

    optimizer = sfl.training.make_optimizer("sgd", learning_rate=1.0, clip=10.0)
    model = model_of(objective, {"w": 2}, {"w": jnp.ones(2)})
    options = {"density": 0.5, "allocation": "uniform", "prunable": ("w",)}
    method = fedspa(model, optimizer, **options)
    server = method.init(key, masks.dense({"w": jnp.ones(2)}, {}))
    _, uplink, _ = one_client(method, server, context(), batches(1, [1.0]), key)
    change = unpack_model(uplink)
    kept = np.asarray(change.mask["w"])
    assert kept.sum() == 1
    np.testing.assert_allclose(change.params["w"], np.where(kept, [-6, -8], 0))
