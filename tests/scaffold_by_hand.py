"""SCAFFOLD's rounds in the small world, in NumPy."""

import jax
import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.training import local
from tests.averaging_by_hand import RATE, assert_close
from tests.by_hand import gradient

PLAIN = local.make_optimizer("sgd", schedule=lambda round: RATE * 0.9**round)
CLIENTS = len(small_world.SIZES)


def zeros(tree):
    return jax.tree.map(lambda v: np.zeros(v.shape), tree)


def mean(trees, count=None):
    """Returns the sum of trees over `count`, by default of the trees."""
    return jax.tree.map(lambda *v: sum(v) / (count or len(trees)), *trees)


def corrects(world):
    """Checks all rounds: what clients send and keep, and how model and c move.

    Args:
      world: of `scaffold`, with the optimizer `PLAIN`.
    """
    states = small_world.path(world)[0]
    first = states[0].server
    own = [zeros(first.params) for _ in range(CLIENTS)]
    x, c = first.params, zeros(first.params)
    for round, ids in enumerate(world.cohorts.tolist()):
        rate, deltas, changes, means = RATE * 0.9**round, [], [], []
        for i, passing in zip(ids, plain_loop.passings(world, round), strict=True):
            data = plain_loop.inputs(world, states[round], round, i)[-1]
            y, stats, steps = x, states[round].server.stats, 0
            for order, weight in zip(data.order[0], data.weight[0], strict=True):
                rows = order[np.asarray(weight) > 0]
                if rows.size:
                    grads, stats = gradient(y, stats, data.x[rows], data.y[rows])
                    y = jax.tree.map(
                        lambda y, g, own, c, rate=rate: y - rate * (g - own + c),
                        *(y, grads, own[i], c),
                    )
                    steps += 1
            assert steps == -(-small_world.SIZES[i] // 4)
            new = jax.tree.map(
                lambda own, c, x, y, t=steps * rate: own - c + (x - y) / t,
                *(own[i], c, x, y),
            )
            deltas.append(jax.tree.map(np.subtract, y, x))
            changes.append(jax.tree.map(np.subtract, new, own[i]))
            means.append(stats)
            own[i] = new
            assert_close(passing.up["delta"].values, deltas[-1])
            assert_close(passing.up["control"].values, changes[-1], atol=1e-5)
            assert_close(passing.client, new, atol=1e-5)
        x = jax.tree.map(np.add, x, mean(deltas))
        c = jax.tree.map(np.add, c, mean(changes, CLIENTS))
        server = states[round + 1].server
        assert_close((server.params, server.stats), (x, mean(means)))
        assert_close(server.control, c, atol=1e-5)
        assert_close(server.control, mean(own), atol=1e-5)
