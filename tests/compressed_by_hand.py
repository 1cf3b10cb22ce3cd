"""Compressors of vectors in NumPy.

A tree is the vector of all its entries, float64, and `sizes` are those of its leaves.
"""

import jax
import numpy as np


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


def close(tree, want, atol=2e-6):
    np.testing.assert_allclose(vector(tree), want, rtol=0, atol=atol)
