"""Trees of parameters leaf by leaf: paths, layers, and parts of a tree.

`select` is a tree of Python bools, as `masks.prunable` makes it; the selected leaves,
in tree order, are the *layers*, and arrays over them are `[L]`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sparsefl_jax.core.types import PyTree


def leaf_paths(tree: PyTree) -> list[str]:
    """Returns the path of every leaf, in tree order.

    Args:
      tree: any pytree.

    Returns:
      Names such as `'conv1/kernel'`; `''` for a tree that is one leaf.

    Example:
      >>> leaf_paths({'conv1': {'kernel': 1, 'bias': 2}})
      ['conv1/bias', 'conv1/kernel']
      >>> leaf_paths(7)
      ['']
    """
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths]


def by_path(tree: PyTree) -> dict[str, Any]:
    """Returns the leaves by path, in tree order.

    Example:
      >>> by_path({'conv1': {'kernel': 1, 'bias': 2}})
      {'conv1/bias': 2, 'conv1/kernel': 1}
    """
    return dict(zip(leaf_paths(tree), jax.tree.leaves(tree), strict=True))


def num_entries(tree: PyTree) -> int:
    """Returns the number of entries of all leaves, arrays or shapes.

    Example:
      >>> num_entries({'a': np.zeros((2, 3)), 'b': np.zeros(4)})
      10
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def map_by_path(function: Callable, tree: PyTree) -> PyTree:
    """Maps `function(path, leaf)` over a tree.

    Example:
      >>> map_by_path(lambda path, leaf: path, {'conv1': {'kernel': 1, 'bias': 2}})
      {'conv1': {'bias': 'conv1/bias', 'kernel': 'conv1/kernel'}}
    """
    mapped = map(function, leaf_paths(tree), jax.tree.leaves(tree))
    return jax.tree.unflatten(jax.tree.structure(tree), mapped)


def unlike(tree: PyTree, other: PyTree) -> list[tuple[str, Any, Any]]:
    """Returns the paths whose leaves differ in shape, with both shapes or None.

    Example:
      >>> unlike({'a': np.zeros(2), 'b': 1.0}, {'a': np.zeros(3), 'b': 2.0})
      [('a', (2,), (3,))]
    """
    one, two = ({p: np.shape(v) for p, v in by_path(t).items()} for t in (tree, other))
    pairs = ((path, one.get(path), two.get(path)) for path in one | two)
    return [pair for pair in pairs if pair[1] != pair[2]]


def rows(tree: PyTree, index: Any) -> PyTree:
    """Returns entries of the leading axis of every leaf.

    Example:
      >>> rows({'a': np.arange(3)}, 2)['a'].item()
      2
    """
    return jax.tree.map(lambda leaf: leaf[index], tree)


def layers(tree: PyTree, select: PyTree) -> list:
    """Returns the selected leaves in tree order, along which `[L]` arrays run.

    Args:
      tree: any pytree.
      select: tree of Python bools with the same treedef.

    Example:
      >>> layers({'a': 1, 'b': 2, 'c': 3}, {'a': True, 'b': False, 'c': True})
      [1, 3]
    """
    chosen = jax.tree.leaves(select)
    return [x for x, s in zip(jax.tree.leaves(tree), chosen, strict=True) if s]


def layer_paths(select: PyTree) -> list[str]:
    """Returns the paths of the selected leaves in tree order.

    Example:
      >>> layer_paths({'conv': {'bias': False, 'kernel': True}})
      ['conv/kernel']
    """
    return layers(leaf_paths(select), select)


def replace_layers(tree: PyTree, select: PyTree, new: list) -> PyTree:
    """Replaces the selected leaves of a tree; the inverse of `layers`.

    Args:
      tree: any pytree.
      select: tree of Python bools with the same treedef.
      new: `[L]` leaves, in tree order.

    Returns:
      A tree like `tree`.

    Raises:
      ValueError: `new` does not hold one item per selected leaf.

    Example:
      >>> select = {'a': True, 'b': False, 'c': True}
      >>> replace_layers({'a': 1, 'b': 2, 'c': 3}, select, [7, 9])
      {'a': 7, 'b': 2, 'c': 9}
    """
    leaves, treedef = jax.tree.flatten(tree)
    places = np.flatnonzero(jax.tree.leaves(select))
    for place, leaf in zip(places, new, strict=True):
        leaves[place] = leaf
    return jax.tree.unflatten(treedef, leaves)


def layer_sizes(tree: PyTree, select: PyTree) -> np.ndarray:
    """Returns the number of entries of each layer.

    Args:
      tree: a tree of arrays or shapes.
      select: tree of Python bools.

    Returns:
      `[L]` int64, on the host.

    Example:
      >>> layer_sizes({'w': np.zeros((2, 3)), 'b': np.zeros(3)},
      ...             {'w': True, 'b': False}).tolist()
      [6]
    """
    return np.array([math.prod(x.shape) for x in layers(tree, select)], np.int64)


def split(tree: PyTree, select: PyTree) -> tuple[PyTree, PyTree]:
    """Cuts a tree in two, with None in the place of the leaves that went elsewhere.

    Args:
      tree: any pytree.
      select: tree of Python bools with the same treedef.

    Returns:
      The selected leaves, and the others. JAX treats None as an empty subtree.

    Example:
      >>> split({'a': 1, 'b': 2}, {'a': True, 'b': False})
      ({'a': 1, 'b': None}, {'a': None, 'b': 2})
    """
    chosen = jax.tree.map(lambda s, x: x if s else None, select, tree)
    others = jax.tree.map(lambda s, x: None if s else x, select, tree)
    return chosen, others


def merge(a: PyTree, b: PyTree) -> PyTree:
    """Joins the two parts that `split` returns, in any order.

    Args:
      a: one part, None where the other has a leaf.
      b: the other part, or a whole tree, whose leaves fill the places of None.

    Returns:
      The whole tree.

    Example:
      >>> merge({'a': 1, 'b': None}, {'a': None, 'b': 2})
      {'a': 1, 'b': 2}
    """
    return jax.tree.map(
        lambda x, y: y if x is None else x, a, b, is_leaf=lambda x: x is None
    )
