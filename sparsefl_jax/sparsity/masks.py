"""Boolean masks over parameters: which leaves, which entries, how many, how alike.

A mask has the treedef of the parameters and is total: True where a leaf is not
prunable. `select` is a tree of Python bools that names the prunable leaves; the
selected leaves, in tree order, are the *layers*, and arrays over them are `[L]`.

Source of the mismatch measure: Babakniya et al., "Revisiting Sparsity Hunting in
Federated Learning" (FLASH), TMLR 2023, https://arxiv.org/abs/2208.13092.
"""

import fnmatch
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, Key, PyTree, SparseModel
from sparsefl_jax.sparsity import trees

Globs = Sequence[str]  # of the paths of leaves
KERNELS = ("*kernel",)


def prunable(params: PyTree, patterns: Globs = KERNELS) -> PyTree:
    """Selects the leaves whose path matches one of the patterns.

    Args:
      params: the parameters, or a tree like them, such as `model.macs`.
      patterns: `fnmatch` globs on the leaf path, case-sensitive. One that begins with
        `!` excludes what it matches, wherever it stands.

    Returns:
      A tree of Python bools with the treedef of `params`.

    Raises:
      ValueError: `patterns` is empty or one string, one matches no leaf, or all leaves
        are excluded.

    Example:
      >>> prunable({'fc': {'kernel': 1, 'bias': 2}})
      {'fc': {'bias': False, 'kernel': True}}
      >>> prunable({'bn': {'bias': 1}, 'fc': {'bias': 2}}, ('*', '!bn*'))
      {'bn': {'bias': False}, 'fc': {'bias': True}}
    """
    if isinstance(patterns, str) or not patterns:
        raise UserError(f"prunable={patterns!r}, expected a tuple of globs")
    paths = trees.leaf_paths(params)
    chosen, excluded = set(), set()
    for pattern in patterns:
        match = {p for p in paths if fnmatch.fnmatchcase(p, pattern.removeprefix("!"))}
        if not match:
            raise UserError(f"prunable: {pattern!r} matches no leaf of {paths}")
        (excluded if pattern.startswith("!") else chosen).update(match)
    if not chosen - excluded:
        raise UserError(f"prunable={patterns!r} leave no leaf, expected at least one.")
    return trees.map_by_path(lambda path, _: path in chosen - excluded, params)


def select_all(tree: PyTree) -> PyTree:
    """Selects all leaves; a tree of Python bools, as `prunable` returns it.

    Example:
      >>> select_all({'fc': {'bias': 2, 'kernel': 1}})
      {'fc': {'bias': True, 'kernel': True}}
    """
    return jax.tree.map(lambda _: True, tree)


def full(params: PyTree) -> PyTree:
    """Returns the mask that keeps everything, a bool tree.

    Example:
      >>> full({'b': jnp.zeros(2)})['b'].tolist()
      [True, True]
    """
    return jax.tree.map(lambda x: jnp.ones(x.shape, jnp.bool_), params)


def total(params: PyTree, select: PyTree, kept: list[Array]) -> PyTree:
    """Makes a total mask from the masks of layers.

    Args:
      params: a tree of arrays or shapes.
      select: tree of Python bools.
      kept: `[L]` masks, bool, of the selected leaves in tree order.

    Returns:
      A bool tree, True on the leaves that are not selected.

    Example:
      >>> params = {'b': jnp.zeros(1), 'w': jnp.zeros(1)}
      >>> select = {'b': False, 'w': True}
      >>> total(params, select, [jnp.array([False])])
      {'b': Array([ True], dtype=bool), 'w': Array([False], dtype=bool)}
    """
    return trees.replace_layers(full(params), select, kept)


def support(params: PyTree, select: PyTree) -> PyTree:
    """Returns the mask of the entries that are not 0.

    Args:
      params: a tree of arrays.
      select: tree of Python bools.

    Returns:
      A bool tree, True on the leaves that are not selected.

    Example:
      >>> params = {'b': jnp.array([0.]), 'w': jnp.array([0., 2.])}
      >>> mask = support(params, {'b': False, 'w': True})
      >>> mask['b'].tolist(), mask['w'].tolist()
      ([True], [False, True])
    """
    return total(params, select, [w != 0 for w in trees.layers(params, select)])


def apply(params: PyTree, mask: PyTree) -> PyTree:
    """Puts exact zeros where the mask is False.

    It selects and does not multiply: a NaN or infinity outside the mask must vanish.

    Args:
      params: a tree of arrays.
      mask: bool tree with the same shapes.

    Returns:
      A tree with the dtypes of `params`.

    Example:
      >>> w, m = {'w': jnp.array([1., jnp.nan])}, {'w': jnp.array([True, False])}
      >>> apply(w, m)['w'].tolist()
      [1.0, 0.0]
    """
    return jax.tree.map(lambda m, w: jnp.where(m, w, jnp.zeros_like(w)), mask, params)


def dense(params: PyTree, stats: PyTree) -> SparseModel:
    """Returns the model of which nothing is pruned.

    Example:
      >>> dense({'w': jnp.ones(2)}, {}).mask['w'].tolist()
      [True, True]
    """
    return SparseModel(params, full(params), stats)


def prune(model: SparseModel, mask: PyTree) -> SparseModel:
    """Returns the model with another mask, and exact zeros where that is False.

    Example:
      >>> model = SparseModel({'w': jnp.array([3.0, 4.0])}, None, {})
      >>> prune(model, {'w': jnp.array([True, False])}).params['w'].tolist()
      [3.0, 0.0]
    """
    return SparseModel(apply(model.params, mask), mask, model.stats)


def bernoulli(key: Key, params: PyTree, densities: ArrayLike, select: PyTree) -> PyTree:
    """Draws a mask in which an entry of layer l is alive with probability d_l.

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
    layers = trees.layers(params, select)
    densities = jnp.broadcast_to(jnp.asarray(densities, jnp.float32), (len(layers),))
    keys = jax.random.split(key, len(layers))
    return total(params, select, list(map(bernoulli_like, keys, densities, layers)))


def bernoulli_like(key: Key, chance: ArrayLike, leaf: Array) -> Array:
    """Draws `jax.random.bernoulli` of the shape of an array.

    The bits are drawn as one row, for which XLA:CPU compiles less code.

    Example:
      >>> key, leaf = jax.random.key(0), jnp.zeros((2, 3, 4))
      >>> drawn = bernoulli_like(key, 0.5, leaf)
      >>> bool((drawn == jax.random.bernoulli(key, 0.5, leaf.shape)).all())
      True
    """
    return jax.random.bernoulli(key, chance, (leaf.size,)).reshape(leaf.shape)


def uniform_scores(key: Key, params: PyTree, select: PyTree) -> PyTree:
    """Draws uniform scores for the selected leaves; the others get zeros.

    Args:
      key: a typed key, split over the layers.
      params: a tree of arrays or shapes.
      select: tree of Python bools.

    Returns:
      A float32 tree, scores in [0, 1).

    Example:
      >>> uniform_scores(jax.random.key(0), {'w': jnp.zeros(3)}, {'w': True})['w'].shape
      (3,)
    """
    chosen, uniform = trees.layers(params, select), jax.random.uniform
    drawn = optax.tree.random_like(key, chosen, uniform, jnp.float32)
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
    return trees.replace_layers(blank, select, jax.tree.leaves(drawn))


def counts(mask: PyTree, select: PyTree) -> Array:
    """Counts the alive entries of each layer.

    Args:
      mask: bool tree.
      select: tree of Python bools.

    Returns:
      `[L]` int32.

    Example:
      >>> counts({'w': jnp.array([True, False])}, {'w': True}).tolist()
      [1]
    """
    alive = [jnp.sum(m, dtype=jnp.int32) for m in trees.layers(mask, select)]
    return jnp.array(alive, jnp.int32)


def layer_densities(mask: PyTree, select: PyTree) -> Array:
    """Returns the share of alive entries of each layer.

    Args:
      mask: bool tree.
      select: tree of Python bools.

    Returns:
      `[L]` float32 in [0, 1]; 1 if all are alive, and 0 for an empty layer.

    Example:
      >>> layer_densities({'w': jnp.array([True, False])}, {'w': True}).tolist()
      [0.5]
    """
    sizes, kept = np.maximum(trees.layer_sizes(mask, select), 1), counts(mask, select)
    share = kept.astype(jnp.float32) / sizes.astype(np.float32)
    # A compiler multiplies by the inverse of a constant, and n (1 / n) can be below 1.
    return jnp.where(kept == sizes, jnp.float32(1), share)


def density(mask: PyTree, select: PyTree) -> Array:
    """Returns the share of alive entries over all layers together.

    Args:
      mask: bool tree.
      select: tree of Python bools.

    Returns:
      float32 scalar in [0, 1]; 1 if all are alive.

    Example:
      >>> float(density({'w': jnp.array([True, False])}, {'w': True}))
      0.5
    """
    sizes, kept = trees.layer_sizes(mask, select), counts(mask, select)
    size = max(int(sizes.sum()), 1)
    # The count of a layer fits int32, but the sum over layers may not.
    share = jnp.sum(kept.astype(jnp.float32)) / jnp.float32(size)
    dense = jnp.all(kept == sizes) & bool(sizes.sum())
    return jnp.where(dense, jnp.float32(1), share)  # see `layer_densities`


def jaccard_mismatch(a: PyTree, b: PyTree, select: PyTree) -> tuple[Array, Array]:
    """Measures how little two masks overlap: 1 - |a & b| / |a | b|.

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
