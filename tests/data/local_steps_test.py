"""A client's steps where their number is set, and the samples that it may use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.data.batching import batches
from sparsefl_jax.runs import experiment
from tests.refusals import refused
from tests.tiny import tiny_config


@pytest.mark.parametrize("drop_last, epoch", [(False, [4, 4, 2]), (True, [4, 4])])
def test_steps_cycle_through_shuffled_epochs(drop_last, epoch):
    """Ten rows, batches of four: seven steps end within the third or fourth epoch."""
    stage = sfl.Stage(None, 1, 1, 1, 4, drop_last=drop_last, local_steps=7)
    index, size = jnp.arange(12, dtype=jnp.int32), jnp.int32(10)

    def client(key):
        return batches(key, index, index, index, size, stage=stage, num_steps=7)

    out = jax.vmap(client)(jax.random.split(jax.random.key(0), 3))
    assert out.order.shape == out.weight.shape == (3, 1, 7, 4)
    firsts = set()
    for order, weight in zip(out.order[:, 0], out.weight[:, 0], strict=True):
        assert weight.sum(1).tolist() == (epoch * 4)[:7]
        for first in range(0, 7, len(epoch)):
            rows = slice(first, first + len(epoch))
            seen = np.asarray(order[rows])[np.asarray(weight[rows]) > 0]
            assert len({*seen.tolist()}) == len(seen) and seen.max() < 10
            firsts.add(tuple(seen[:4].tolist()))
    assert len(firsts) > 6  # of 9 or 12: epochs and clients are shuffled each


def federated(**kwargs):
    x, y = np.arange(40, dtype=np.float32)[:, None], np.arange(40) % 2
    parts = [[*range(30)], [*range(30, 40)]]
    return sfl.from_arrays(x, y, x_test=x, y_test=y, partition=parts, **kwargs)


def test_max_samples_bounds_the_training_samples_by_the_seed():
    given = {"max_samples": 9, "val_fraction": 0.2}
    one, again, other = (federated(seed=seed, **given) for seed in (0, 0, 1))
    assert one.train.size.tolist() == [9, 8] and one.val.size.tolist() == [6, 2]
    first, second, held = (
        {*one.train.index[0]},
        {*one.train.index[1, :8]},
        one.val.index,
    )
    assert len(first) == 9 and max(first) < 30 <= min(second) and len(second) == 8
    assert not (first | second) & {*held[0], *held[1, :2]} and one.test.size.sum() == 40
    np.testing.assert_array_equal(one.train.index, again.train.index)
    assert first != {*other.train.index[0]}
    refused(lambda: federated(max_samples=0), "max_samples=0, expected")


def flops(**work):
    """Returns the FLOPs of one round of two clients with 3 and 10 samples."""
    x = np.random.default_rng(0).normal(size=(13, 3)).astype(np.float32)
    parts = [[*range(3)], [*range(3, 13)]]
    y = np.arange(13) % 2
    data = sfl.from_arrays(x, y, x_test=x, y_test=y, partition=parts)
    model = sfl.models.build("mlp", 2, (3,), widths=(4,))
    method = sfl.fedavg(model, sfl.training.make_optimizer())
    stage = sfl.Stage(method, 1, 2, batch_size=4, **work)
    metrics = sfl.run(jax.random.key(0), [stage], model, data).metrics
    (record,) = (record for record in metrics if record["phase"] == "train")
    return record["flops"]


def test_costs_follow_from_the_steps_done():
    """Five steps see 5 x 3 samples of one client, and 10 + 4 + 4 of the other."""
    epoch, steps = flops(), flops(local_steps=5)
    assert steps * 13 == epoch * (15 + 18)
    refused(lambda: flops(local_steps=5, epochs=2), "epochs=2 has no effect here")
    refused(lambda: flops(local_steps=0), "local_steps=0, expected")


def test_a_first_stage_has_steps_or_epochs_of_its_own(tmp_path):
    config = tiny_config(tmp_path)  # whose first stage has two epochs
    config.local_steps = 7

    def works():
        stages = experiment.build(config).setup.stages
        return [(stage.epochs, stage.local_steps) for stage in stages]

    assert works() == [(2, None), (1, 7)]
    config.first_stage.epochs = None
    assert works() == [(1, 7), (1, 7)]
