"""Masks of the entries with the largest scores: of an array, a layer or all layers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.sparsity.layer_densities import ceil_count, whole_up


def _order(scores: Array) -> Array:
    """Returns uint32 keys that sort as the scores do; -0 equals 0, NaN sorts lowest."""
    scores = scores.astype(jnp.float32)
    scores = jnp.where(scores == 0.0, jnp.zeros_like(scores), scores)
    raw = jax.lax.bitcast_convert_type(scores, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    keys = jnp.where(raw >= sign, ~raw, raw | sign)
    return jnp.where(jnp.isnan(scores), jnp.zeros_like(keys), keys)


def top_k(scores: Array, k: ArrayLike) -> Array:
    """Keeps the k largest scores: exactly k entries are True, whatever the ties.

    It finds the k-th largest score by bisection on the bit pattern of the floats, in 32
    counting passes, and the last tie to keep by bisection on the index. A sort or a
    cumulative sum would take TPU's compiler seconds for each layer.

    Args:
      scores: any shape and sign, a float no wider than float32. Equal scores are ties,
          as are -0 and 0: the lowest flat index comes first. NaN comes last.
      k: int32 scalar, clipped to [0, size]; may be traced.

    Returns:
      bool, the shape of `scores`.

    Example:
      >>> top_k(jnp.array([3., 1., 3., 2., 2.]), 3).tolist()
      [True, False, True, True, False]
    """
    keys = _order(scores)
    k = jnp.clip(jnp.asarray(k, jnp.int32), 0, keys.size)
    threshold = _kth_largest(keys, k)
    above, ties = keys > threshold, keys == threshold
    return above | _first(ties, k - jnp.sum(above, dtype=jnp.int32))


def _first(flags: Array, count: Array) -> Array:
    """Keeps the first `count` True entries of an array by flat index."""
    index = jnp.arange(flags.size, dtype=jnp.int32).reshape(flags.shape)
    bits = flags.size.bit_length()

    def halve(i, end):
        later = end | (jnp.int32(1) << (bits - 1 - i))
        fits = jnp.sum(flags & (index < later), dtype=jnp.int32) <= count
        return jnp.where(fits, later, end)

    end = jax.lax.fori_loop(0, bits, halve, jnp.int32(0))
    return flags & (index < end)


def flops(tree: PyTree, select: PyTree) -> Array:
    """Returns the FLOPs charged for a choice among n entries, n log2(n + 1).

    Args:
      tree: a tree of arrays or shapes.
      select: tree of Python bools; n is the number of entries of its leaves.

    Returns:
      float32 scalar.

    Example:
      >>> flops({'w': jnp.zeros(7)}, {'w': True}).item()
      21.0
    """
    size = float(trees.layer_sizes(tree, select).sum())
    return jnp.float32(size * np.log2(size + 1))


def _kth_largest(keys: Array, k: Array) -> Array:
    """Returns the largest key that k of the uint32 keys reach; all ones for k = 0."""

    def halve(i, threshold):
        higher = threshold | (jnp.uint32(1 << 31) >> jnp.asarray(i, jnp.uint32))
        enough = jnp.sum(keys >= higher, dtype=jnp.int32) >= k
        return jnp.where(enough, higher, threshold)

    return jax.lax.fori_loop(0, 32, halve, jnp.uint32(0))


def quantile(x: Array, q: float) -> Array:
    """Returns the quantile of an array as `jnp.quantile` does, but without a sort.

    Args:
      x: float32, any shape; NaN if it holds one.
      q: in [0, 1].

    Example:
      >>> quantile(jnp.array([4., 1., 2., 3.]), 0.5).item()
      2.5
    """
    keys = _order(x)
    place = q * (keys.size - 1)
    low, high = math.floor(place), math.ceil(place)

    def value_at(place):
        key = _kth_largest(keys, jnp.int32(keys.size - place))
        sign = jnp.uint32(1 << 31)
        raw = jnp.where(key >= sign, key ^ sign, ~key)
        return jax.lax.bitcast_convert_type(raw, jnp.float32)

    share = jnp.float32(place - low)
    value = value_at(low) * (1 - share) + value_at(high) * share
    return jnp.where(jnp.any(jnp.isnan(x)), jnp.float32(jnp.nan), value)


def at_least(scores: PyTree, k: Array | int, select: PyTree) -> PyTree:
    """Keeps all entries that reach the k-th largest score of all layers, ties included.

    Args:
      scores: float tree, as in `top_k`.
      k: int32 scalar, clipped to [1, size]; may be traced.
      select: tree of Python bools.

    Returns:
      A bool tree, True on the leaves that are not selected.

    Example:
      >>> scores = {'a': jnp.array([3., 1.]), 'b': jnp.array([2., 1.])}
      >>> kept = at_least(scores, 3, {'a': True, 'b': True})
      >>> kept['a'].tolist(), kept['b'].tolist()
      ([True, True], [True, True])
    """
    keys = [_order(x) for x in trees.layers(scores, select)]
    flat, _ = ravel_pytree(keys)
    k = jnp.clip(jnp.asarray(k, jnp.int32), 1, flat.size)
    threshold = _kth_largest(flat, k)
    return masks.total(scores, select, [x >= threshold for x in keys])


def largest_share(x: Array, share: Array | float, weight: Array | None = None) -> Array:
    """Keeps the ceil(share n) largest |x| of n, ties included.

    Args:
      x: [B, ...], a float no wider than float32.
      share: float32 scalar in (0, 1]; may be traced. The count is then a float32
        product, whose rounding is tolerated, as with `weight`.
      weight: [B], 0 for rows that neither count nor are kept; None if all do.

    Returns:
      bool, the shape of `x`.

    Example:
      >>> largest_share(jnp.array([3., -4., 1., 3.]), 0.5).tolist()
      [True, True, False, True]
    """
    keys, number = _order(jnp.abs(x)), jnp.int32(x.size)
    valid = jnp.ones((), jnp.bool_)
    if weight is not None:  # static branch
        rows = weight > 0
        number = jnp.sum(rows, dtype=jnp.int32) * (x.size // max(1, rows.size))
        valid = jnp.expand_dims(rows, range(1, x.ndim))
        keys = jnp.where(valid, keys, jnp.zeros_like(keys))
    if weight is None and isinstance(share, float):  # static branch
        wanted = jnp.asarray(whole_up(share, x.size))
    else:
        share = jnp.asarray(share, jnp.float32)
        wanted = ceil_count(share * number.astype(jnp.float32))
    k = jnp.clip(jnp.where(share < 1, wanted, number), 1, jnp.maximum(number, 1))
    return valid & (keys >= _kth_largest(keys, k))


def keep_top(
    scores: PyTree, counts: ArrayLike, select: PyTree, *, within: PyTree | None = None
) -> PyTree:
    """Keeps the `counts[l]` largest scores of each layer.

    Args:
      scores: float tree, the larger the better: `jax.tree.map(jnp.abs, params)`.
      counts: `[L]` int32; may be traced.
      select: tree of Python bools.
      within: bool tree, the entries to choose from, and all of them where a layer has
        fewer than its count; None: every entry.

    Returns:
      A bool tree, True on the leaves that are not selected.

    Example:
      >>> n = jnp.array([1], jnp.int32)
      >>> keep_top({'w': jnp.array([1., 3., 2.])}, n, {'w': True})['w'].tolist()
      [False, True, False]
    """
    within = masks.full(scores) if within is None else within
    layers = trees.layers(scores, select)
    pairs = zip(layers, trees.layers(within, select), strict=True)
    kept = [
        top_k(jnp.where(m, x, -jnp.inf), counts[i]) & m
        for i, (x, m) in enumerate(pairs)
    ]
    return masks.total(scores, select, kept)


def largest_alive(model: SparseModel, counts: Array, select: PyTree) -> PyTree:
    """Keeps the `counts[l]` alive weights of each layer that are largest.

    Example:
      >>> w, m = jnp.array([1., -3., 9.]), jnp.array([True, True, False])
      >>> model, n = SparseModel({'w': w}, {'w': m}, {}), jnp.array([1], jnp.int32)
      >>> largest_alive(model, n, {'w': True})['w'].tolist()
      [False, True, False]
    """
    size = jax.tree.map(jnp.abs, model.params)
    return keep_top(size, counts, select, within=model.mask)


def largest_overall(scores: PyTree, count: ArrayLike, select: PyTree) -> PyTree:
    """Keeps the `count` largest scores of all layers together.

    Args:
      scores: float tree, the larger the better; ties as in `top_k`, in tree order.
      count: int32 scalar, clipped to [0, size]; may be traced.
      select: tree of Python bools.

    Returns:
      A bool tree, True on the leaves that are not selected.

    Example:
      >>> scores = {'a': jnp.array([1., 3.]), 'b': jnp.array([4., 2.])}
      >>> mask = largest_overall(scores, 2, {'a': True, 'b': True})
      >>> mask['a'].tolist(), mask['b'].tolist()
      ([False, True], [True, False])
    """
    flat, unravel = ravel_pytree(trees.layers(scores, select))
    return masks.total(scores, select, unravel(top_k(flat, count)))


def n_of_m(scores: PyTree, n: int | Array, m: int, select: PyTree) -> PyTree:
    """Keeps the n largest scores in every group of m inputs: N:M sparsity.

    Kernels have their outputs on the last axis. The other axes (H, W and I of a
    convolution, the inputs of a dense layer) are flattened in that order, and each
    output's column is cut into groups of m neighbours: in an HWIO kernel, input
    channels of one tap. A last group of rest < m entries keeps ceil(n / m * rest), and
    so does the only group of a layer with fewer inputs.
    Source: Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021,
    https://arxiv.org/abs/2104.08378.

    Args:
      scores: float tree, kernels `[..., O]`; ties go to the lowest input.
      n: alive entries of a group, 1 <= n <= m, or one number per layer, `[L]` int32;
        may be traced and is not checked.
      m: entries of a group.
      select: tree of Python bools.

    Returns:
      A bool tree, True on the leaves that are not selected.

    Example:
      >>> w = jnp.array([[1.], [4.], [3.], [2.]])
      >>> n_of_m({'w': w}, 2, 4, {'w': True})['w'][:, 0].tolist()
      [False, True, True, False]
    """
    leaves = trees.layers(scores, select)
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
    kept = jax.vmap(jax.vmap(top_k), (0, None))(grouped, room)
    flat = kept.transpose(1, 2, 0).reshape(groups * m, -1)
    return flat[:inputs].reshape(scores.shape)
