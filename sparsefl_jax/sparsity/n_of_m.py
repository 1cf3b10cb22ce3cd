"""N:M sparsity: n entries are alive in every group of m along a layer's inputs.

Kernels have their outputs on the last axis. The other axes (H, W and I of a
convolution, the inputs of a dense layer) are flattened in that order, and each output's
column is cut into groups of m neighbours: in an HWIO kernel, input channels of one tap.
A last group of rest < m entries keeps ceil(n / m * rest).

Source: Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021,
https://arxiv.org/abs/2104.08378.
"""

import math

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.sparsity import masks, top_k, trees


def n_of_m(scores: PyTree, n: int | Array, m: int, select: PyTree) -> PyTree:
    """Keeps the n largest scores in every group of m inputs.

    Args:
      scores: float tree, kernels `[..., O]`; ties go to the lowest input.
      n: alive entries of a group, 1 <= n <= m, or one number per layer, `[L]` int32;
        may be traced and is not checked.
      m: entries of a group.
      select: tree of Python bools.

    Returns:
      A bool tree, True on the leaves that are not selected.

    Raises:
      ValueError: a selected leaf has fewer than m inputs.

    Example:
      >>> w = jnp.array([[1.], [4.], [3.], [2.]])
      >>> n_of_m({'w': w}, 2, 4, {'w': True})['w'][:, 0].tolist()
      [False, True, True, False]
    """
    leaves = trees.layers(scores, select)
    for path, leaf in zip(trees.layer_paths(select), leaves, strict=True):
        inputs = math.prod(leaf.shape[:-1]) if leaf.ndim > 1 else 0
        if inputs < m:
            raise ValueError(f"m={m}, but {path!r} has {inputs} inputs, expected >= m.")
    per_layer = jnp.broadcast_to(jnp.asarray(n, jnp.int32), (len(leaves),))
    kept = [_n_of_m(x, per_layer[i], m) for i, x in enumerate(leaves)]
    return masks.total(scores, select, kept)


def _n_of_m(scores: Array, n: Array, m: int) -> Array:
    """Returns the mask of one kernel."""
    columns = scores.reshape(-1, scores.shape[-1])
    inputs = columns.shape[0]
    groups = -(-inputs // m)
    rest = inputs - (groups - 1) * m
    room = jnp.full(groups, n, jnp.int32).at[-1].set(-(-n * rest // m))
    # NaN sorts below every score, so padding is never kept.
    padding = ((0, groups * m - inputs), (0, 0))
    padded = jnp.pad(columns, padding, constant_values=jnp.nan)
    grouped = padded.reshape(groups, m, -1).transpose(2, 0, 1)
    kept = jax.vmap(jax.vmap(top_k.top_k), (0, None))(grouped, room)
    flat = kept.transpose(1, 2, 0).reshape(groups * m, -1)
    return flat[:inputs].reshape(scores.shape)
