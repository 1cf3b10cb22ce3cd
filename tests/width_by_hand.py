"""What slices of a network keep in the small world, and when they are FedAvg."""

import jax
import numpy as np

from sparsefl_jax.algorithms import fedavg, fedrolex, fjord
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.testing import plain_loop, small_world
from tests.averaging_by_hand import RATE, assert_close, is_fedavg, local_sgd

GRID = {"widths": (0.3, 0.4, 0.5)}


def with_budgets(world, budgets):
    """Returns the same world with other budgets for its five clients."""
    info = world.population.info._replace(budget=np.full(5, budgets, np.float32))
    return world._replace(population=world.population._replace(info=info))


UNSCALED = {"scaler": False, "mask_classes": False}


def rolls(world):
    """Computes all rounds: units t, t + 1, ... of 16 travel, and means are plain.

    At width 1 it is the plain mean of all clients.

    Args:
      world: of `fedrolex` with the arguments `UNSCALED`.
    """
    states = small_world.path(world)[0]
    for round, cohort in enumerate(world.cohorts.tolist()):
        old, new = (states[r].server.model for r in (round, round + 1))
        sums, counts = _zeros(old), _zeros(old)
        for index, passing in zip(
            cohort, plain_loop.passings(world, round), strict=True
        ):
            width = int(np.ceil(small_world.BUDGETS[index] * small_world.HIDDEN))
            units = np.zeros(small_world.HIDDEN, bool)
            units[[(round + i) % small_world.HIDDEN for i in range(width)]] = True
            held = _held(old, units)
            assert_close(passing.down["params"].mask, held[0])
            start = SparseModel(old.params, held[0], old.stats)
            data = plain_loop.inputs(world, states[round], round, index)[-1]
            trained = local_sgd(start, data, RATE * 0.9**round)[:2]
            sums = _add(sums, _times(trained, held))
            counts = _add(counts, held)
        wanted = _where(counts, sums, (old.params, old.stats))
        assert_close((new.params, new.stats), wanted)
    start, end = states[0].server, states[-1].server
    moved = _moved(start.model, end.model)
    assert_close(end.trained, moved)
    whole = with_budgets(small_world.make_world(fedrolex, UNSCALED), 1.0)
    mean = small_world.make_world(fedavg, {"weighting": "uniform"})
    got, want = (
        small_world.run(w, small_world.start(w), 0)[0].server for w in (whole, mean)
    )
    assert_close((got.model.params, got.model.stats), (want.params, want.stats))


def _held(model, units):
    """Returns the masks of parameters and statistics of some hidden units."""
    masks = {
        "fc1": {"kernel": np.tile(units, (small_world.FEATURES, 1)), "bias": units},
        "fc2": {
            "kernel": np.tile(units[:, None], (1, small_world.CLASSES)),
            "bias": np.ones(small_world.CLASSES, bool),
        },
    }
    return masks, {"mean": units}


def _zeros(model):
    zeros = lambda x: np.zeros(np.shape(x))  # noqa: E731
    return jax.tree.map(zeros, (model.params, model.stats))


def _add(one, other):
    return jax.tree.map(lambda a, b: a + b, one, other)


def _times(one, other):
    return jax.tree.map(lambda a, b: np.asarray(a) * b, one, other)


def _where(counts, sums, old):
    def mean(count, total, before):
        return np.where(count > 0, total / np.maximum(count, 1), before)

    return jax.tree.map(mean, counts, sums, old)


def _moved(old, new):
    """Returns which parameters have changed; biases of classes always do."""
    return jax.tree.map(lambda a, b: a != b, old.params, new.params)


def drops_widths(world):
    """Checks that entries beyond the largest budget stay; at width 1, FedAvg."""
    start, *_, end = small_world.path(world)[0]
    beyond = (
        np.arange(small_world.HIDDEN) >= max(small_world.BUDGETS) * small_world.HIDDEN
    )
    for name, axis in (("fc1", 1), ("fc2", 0)):
        old, new = (s.server.params[name]["kernel"] for s in (start, end))
        still = (old == new).all(1 - axis)
        np.testing.assert_array_equal(still, beyond)
    is_fedavg(small_world.make_world(fjord, {"widths": (1.0,)}))
