"""Compressed FedAvg by NumPy: compressors of vectors, and the contract test's rounds.

A tree is the vector of all its entries, float64, and `sizes` are those of its leaves.
"""

import jax
import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from tests.averaging_by_hand import RATE, headline, local_sgd


def vector(tree):
    """Returns all entries of a tree, in its order."""
    leaves = [np.float64(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


def top(density):
    """Returns top-k over all entries."""

    def code(x, sizes):
        return np.where(_largest(x, density), x, 0)

    return code


def ternary(density):
    """Returns STC of each leaf."""

    def one(x):
        kept = _largest(x, density) & (x != 0)
        return np.where(kept, np.abs(x[kept]).mean() * np.sign(x), 0)

    return lambda x, sizes: np.concatenate([one(v) for v in _leaves(x, sizes)])


def signs(x, sizes):
    """Returns the signs, 0 as +, times the mean magnitude of each leaf."""
    both = [np.where(v >= 0, 1, -1) * np.abs(v).mean() for v in _leaves(x, sizes)]
    return np.concatenate(both)


def _largest(x, density):
    """Returns where the k largest are, of equal ones the first."""
    mask = np.zeros(x.size, bool)
    order = np.argsort(-np.abs(x), kind="stable")
    mask[order[: int(np.ceil(density * x.size))]] = True
    return mask


def _leaves(x, sizes):
    return np.split(x, np.cumsum(sizes)[:-1])


def compresses(world, code):
    """Checks all rounds: what clients keep, and the model, from what was there before.

    Args:
      world: of `compressed`.
      code: the uplink's compressor, `(vector, sizes) -> vector`.
    """
    states, memory = small_world.path(world)[0], {}
    sizes = [leaf.size for leaf in jax.tree.leaves(states[0].server.params)]
    for round, ids in enumerate(world.cohorts.tolist()):
        state, new = states[round], states[round + 1]
        start, passings = vector(state.server.params), plain_loop.passings(world, round)
        model, sent = headline(world, state.server), []
        for index, passing in zip(ids, passings, strict=True):
            data = plain_loop.inputs(world, state, round, index)[-1]
            trained, *_ = local_sgd(model, data, RATE * 0.9**round)
            pending = vector(trained) - start + memory.get(index, 0.0)
            sent.append(code(pending, sizes))
            memory[index] = pending - sent[-1]
            close(passing.client.memory, memory[index])
        examples = [small_world.SIZES[index] for index in ids]
        move = np.average(sent, axis=0, weights=examples)
        close(new.server.params, start + move)


def close(tree, want, atol=2e-6):
    np.testing.assert_allclose(vector(tree), want, rtol=0, atol=atol)
