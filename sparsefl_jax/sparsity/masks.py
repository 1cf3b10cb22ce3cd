"""Boolean masks over parameters: which leaves, which entries, how many, how alike.

A mask has the treedef of the parameters and is total: True where a leaf is not
prunable. `select` is a tree of Python bools that names the prunable leaves; the
selected leaves, in tree order, are the *layers*, and arrays over them are `[L]`.

Source of the mismatch measure: Babakniya et al., "Revisiting Sparsity Hunting in
Federated Learning" (FLASH), TMLR 2023, https://arxiv.org/abs/2208.13092.
"""

import fnmatch
import math

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import Array, Key, PyTree


def leaf_paths(tree: PyTree) -> list[str]:
    """The path of every leaf, in tree order.

    Args:
      tree: any pytree.

    Returns:
      Names such as `'conv1/kernel'`; `''` for a tree that is one leaf.

    Example:
      >>> leaf_paths({'conv1': {'kernel': 1, 'bias': 2}})
      ['conv1/bias', 'conv1/kernel']
    """
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths]


def prunable(params: PyTree, patterns: tuple[str, ...] = ("*kernel",)) -> PyTree:
    """The leaves whose path matches one of the patterns.

    Args:
      params: the parameters, or a tree like them, such as `model.macs`.
      patterns: `fnmatch` globs on the leaf path, case-sensitive. One that begins with
        `!` excludes what it matches, wherever it stands.

    Returns:
      A tree of Python bools with the treedef of `params`.

    Raises:
      ValueError: there is no pattern, one matches no leaf, or all leaves are excluded.

    Example:
      >>> prunable({'fc': {'kernel': 1, 'bias': 2}})
      {'fc': {'bias': False, 'kernel': True}}
      >>> prunable({'bn': {'bias': 1}, 'fc': {'bias': 2}}, ('*', '!bn*'))
      {'bn': {'bias': False}, 'fc': {'bias': True}}
    """
    if isinstance(patterns, str) or not patterns:
        what = "is one string" if patterns else "is empty"
        raise ValueError(f"patterns={patterns!r} {what}, expected a tuple of globs.")
    paths = leaf_paths(params)
    chosen, excluded = set(), set()
    for pattern in patterns:
        found = {p for p in paths if fnmatch.fnmatchcase(p, pattern.removeprefix("!"))}
        if not found:
            raise ValueError(
                f"patterns: {pattern!r} matches no leaf, expected a glob that matches"
                f" one of {', '.join(paths)}."
            )
        (excluded if pattern.startswith("!") else chosen).update(found)
    if not chosen - excluded:
        raise ValueError(f"patterns={patterns!r} leave no leaf, expected at least one.")
    chosen = [p in chosen - excluded for p in paths]
    return jax.tree.unflatten(jax.tree.structure(params), chosen)


def layers(tree: PyTree, select: PyTree) -> list:
    """The selected leaves in tree order: the list that `[L]` arrays run along.

    Example:
      >>> layers({'a': 1, 'b': 2, 'c': 3}, {'a': True, 'b': False, 'c': True})
      [1, 3]
    """
    chosen = jax.tree.leaves(select)
    return [x for x, s in zip(jax.tree.leaves(tree), chosen, strict=True) if s]


def layer_paths(select: PyTree) -> list[str]:
    """The paths of the selected leaves in tree order.

    Example:
      >>> layer_paths({'conv': {'bias': False, 'kernel': True}})
      ['conv/kernel']
    """
    chosen = jax.tree.leaves(select)
    return [p for p, s in zip(leaf_paths(select), chosen, strict=True) if s]


def replace_layers(tree: PyTree, select: PyTree, new: list) -> PyTree:
    """The tree with its selected leaves replaced; the inverse of `layers`.

    Raises:
      ValueError: `new` does not hold one item per selected leaf.

    Example:
      >>> select = {'a': True, 'b': False, 'c': True}
      >>> replace_layers({'a': 1, 'b': 2, 'c': 3}, select, [7, 9])
      {'a': 7, 'b': 2, 'c': 9}
    """
    leaves, treedef = jax.tree.flatten(tree)
    chosen = jax.tree.leaves(select)
    if len(new) != sum(chosen):
        raise ValueError(f"new holds {len(new)} leaves, expected {sum(chosen)}.")
    items = iter(new)
    out = [next(items) if s else x for x, s in zip(leaves, chosen, strict=True)]
    return jax.tree.unflatten(treedef, out)


def layer_sizes(tree: PyTree, select: PyTree) -> np.ndarray:
    """The number of entries of each layer.

    Returns:
      `[L]` int64, on the host.

    Example:
      >>> layer_sizes({'w': np.zeros((2, 3)), 'b': np.zeros(3)},
      ...             {'w': True, 'b': False}).tolist()
      [6]
    """
    return np.array([math.prod(x.shape) for x in layers(tree, select)], np.int64)


def everything(tree: PyTree) -> PyTree:
    """The choice of all leaves, a tree of Python bools like `prunable` gives.

    Example:
      >>> everything({'fc': {'bias': 2, 'kernel': 1}})
      {'fc': {'bias': True, 'kernel': True}}
    """
    return jax.tree.map(lambda _: True, tree)


def full(params: PyTree) -> PyTree:
    """The mask that keeps everything.

    Example:
      >>> full({'b': jnp.zeros(2)})['b'].tolist()
      [True, True]
    """
    return jax.tree.map(lambda x: jnp.ones(x.shape, jnp.bool_), params)


def apply(params: PyTree, mask: PyTree) -> PyTree:
    """The parameters with exact zeros where the mask is False.

    A selection, never a product: a NaN or infinity outside the mask must vanish.

    Example:
      >>> w, m = {'w': jnp.array([1., jnp.nan])}, {'w': jnp.array([True, False])}
      >>> apply(w, m)['w'].tolist()
      [1.0, 0.0]
    """
    return jax.tree.map(lambda m, w: jnp.where(m, w, jnp.zeros_like(w)), mask, params)


def _ordered(scores: Array) -> Array:
    """uint32 keys that sort as the scores do; -0 equals 0, NaN sorts lowest."""
    scores = scores.astype(jnp.float32)
    scores = jnp.where(scores == 0.0, jnp.zeros_like(scores), scores)
    raw = jax.lax.bitcast_convert_type(scores, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    keys = jnp.where(raw >= sign, ~raw, raw | sign)
    return jnp.where(jnp.isnan(scores), jnp.zeros_like(keys), keys)


def top_k(scores: Array, k: Array | int) -> Array:
    """The mask of the k largest scores: exactly k True, whatever the ties.

    The k-th largest score is found by bisection on the bit pattern of the floats, 32
    counting passes and no sort; a cumulative sum shares out the ties.

    Args:
      scores: any shape and sign, a float no wider than float32. Equal scores, and -0
          and 0, are ties: the lowest flat index is taken first. NaN comes last.
      k: int32 scalar, clipped to [0, size]; may be traced.

    Returns:
      bool, the shape of `scores`.

    Example:
      >>> top_k(jnp.array([3., 1., 3., 2., 2.]), 3).tolist()
      [True, False, True, True, False]
    """
    flat = _ordered(scores).reshape(-1)
    k = jnp.clip(jnp.asarray(k, jnp.int32), 0, flat.size)
    threshold = _kth_largest(flat, k)
    above, ties = flat > threshold, flat == threshold
    room = k - jnp.sum(above, dtype=jnp.int32)
    first = jnp.cumsum(ties, dtype=jnp.int32) <= room
    return (above | (ties & first)).reshape(scores.shape)


def _kth_largest(flat: Array, k: Array) -> Array:
    """The largest key that k keys of uint32 [n] reach; k = 0 takes the highest."""

    def halve(i, threshold):
        higher = threshold | (jnp.uint32(1 << 31) >> jnp.asarray(i, jnp.uint32))
        enough = jnp.sum(flat >= higher, dtype=jnp.int32) >= k
        return jnp.where(enough, higher, threshold)

    return jax.lax.fori_loop(0, 32, halve, jnp.uint32(0))


def at_least(scores: PyTree, k: Array | int, select: PyTree) -> PyTree:
    """The mask of what reaches the k-th largest score of all layers; ties are kept.

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
    keys = [_ordered(x) for x in layers(scores, select)]
    flat = jnp.concatenate([x.reshape(-1) for x in keys])
    k = jnp.clip(jnp.asarray(k, jnp.int32), 1, flat.size)
    threshold = _kth_largest(flat, k)
    return replace_layers(full(scores), select, [x >= threshold for x in keys])


def bernoulli(key: Key, params: PyTree, densities: Array, select: PyTree) -> PyTree:
    """A random mask in which an entry of layer l is alive with probability d_l.

    Args:
      key: a typed key, split over the layers.
      params: a tree of arrays or shapes.
      densities: `[L]` or `()` float32 in [0, 1]; may be traced.
      select: tree of Python bools.

    Returns:
      A bool tree, True on the leaves that are not selected.

    Example:
      >>> w = {'w': jnp.zeros((4, 5)), 'b': jnp.zeros(5)}
      >>> m = bernoulli(jax.random.key(0), w, jnp.float32(0.), prunable(w, ('w',)))
      >>> int(m['w'].sum()), int(m['b'].sum())
      (0, 5)
    """
    shapes = [x.shape for x in layers(params, select)]
    densities = jnp.broadcast_to(jnp.asarray(densities, jnp.float32), (len(shapes),))
    keys = jax.random.split(key, len(shapes))
    drawn = [
        jax.random.bernoulli(keys[i], densities[i], s) for i, s in enumerate(shapes)
    ]
    return replace_layers(full(params), select, drawn)


def largest(scores: PyTree, counts: Array, select: PyTree) -> PyTree:
    """The mask of the `counts[l]` largest scores of each layer.

    Args:
      scores: float tree, the larger the better: `jax.tree.map(jnp.abs, params)`.
      counts: `[L]` int32; may be traced.
      select: tree of Python bools.

    Returns:
      A bool tree, True on the leaves that are not selected.

    Example:
      >>> n = jnp.array([1], jnp.int32)
      >>> largest({'w': jnp.array([1., 3., 2.])}, n, {'w': True})['w'].tolist()
      [False, True, False]
    """
    kept = [top_k(x, counts[i]) for i, x in enumerate(layers(scores, select))]
    return replace_layers(full(scores), select, kept)


def largest_overall(scores: PyTree, count: Array | int, select: PyTree) -> PyTree:
    """The mask of the `count` largest scores of all layers together.

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
    chosen = layers(scores, select)
    kept = top_k(jnp.concatenate([x.reshape(-1) for x in chosen]), count)
    parts = jnp.split(kept, np.cumsum([x.size for x in chosen])[:-1])
    cut = [part.reshape(x.shape) for part, x in zip(parts, chosen, strict=True)]
    return replace_layers(full(scores), select, cut)


def uniform_scores(key: Key, params: PyTree, select: PyTree) -> PyTree:
    """Random scores for the selected leaves, zeros for the others; float32 tree.

    Example:
      >>> uniform_scores(jax.random.key(0), {'w': jnp.zeros(3)}, {'w': True})['w'].shape
      (3,)
    """
    shapes = [x.shape for x in layers(params, select)]
    keys = jax.random.split(key, len(shapes))
    drawn = [jax.random.uniform(keys[i], s) for i, s in enumerate(shapes)]
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
    return replace_layers(blank, select, drawn)


def counts(mask: PyTree, select: PyTree) -> Array:
    """The number of alive entries of each layer.

    Returns:
      `[L]` int32.

    Example:
      >>> counts({'w': jnp.array([True, False])}, {'w': True}).tolist()
      [1]
    """
    found = [jnp.sum(m, dtype=jnp.int32) for m in layers(mask, select)]
    return jnp.stack(found) if found else jnp.zeros((0,), jnp.int32)


def layer_densities(mask: PyTree, select: PyTree) -> Array:
    """The share of alive entries of each layer.

    Returns:
      `[L]` float32 in [0, 1]; 0 for an empty layer.

    Example:
      >>> layer_densities({'w': jnp.array([True, False])}, {'w': True}).tolist()
      [0.5]
    """
    sizes = np.maximum(layer_sizes(mask, select), 1).astype(np.float32)
    return counts(mask, select).astype(jnp.float32) / sizes


def density(mask: PyTree, select: PyTree) -> Array:
    """The share of alive entries over all layers together.

    Returns:
      float32 scalar in [0, 1].

    Example:
      >>> float(density({'w': jnp.array([True, False])}, {'w': True}))
      0.5
    """
    size = max(int(layer_sizes(mask, select).sum()), 1)
    # Each layer fits int32, their sum need not.
    return jnp.sum(counts(mask, select).astype(jnp.float32)) / jnp.float32(size)


def jaccard_mismatch(a: PyTree, b: PyTree, select: PyTree) -> tuple[Array, Array]:
    """How far two masks are from sharing their support: 1 - |a & b| / |a | b|.

    Args:
      a: bool tree.
      b: bool tree with the same shapes.
      select: tree of Python bools.

    Returns:
      The mismatch over all layers together, float32 `()`, and of each layer, float32
      `[L]`; 0 where both masks are empty.

    Example:
      >>> a, b = jnp.array([True, True, False]), jnp.array([True, False, True])
      >>> whole, _ = jaccard_mismatch({'w': a}, {'w': b}, {'w': True})
      >>> round(float(whole), 4)
      0.6667
    """
    both = counts(jax.tree.map(jnp.logical_and, a, b), select).astype(jnp.float32)
    either = counts(jax.tree.map(jnp.logical_or, a, b), select).astype(jnp.float32)

    def mismatch(inner, outer):
        return jnp.where(outer > 0, 1 - inner / jnp.maximum(outer, 1), jnp.float32(0))

    return mismatch(both.sum(), either.sum()), mismatch(both, either)
