"""How the masks of clients with different budgets nest.

Source: Babakniya et al., FLASH, TMLR 2023, https://arxiv.org/abs/2208.13092 (Algorithm
4). Counts are arrays `[L]` over the selected leaves, in tree order.
"""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees


def place_within(budget: Array, grid: ArrayLike) -> Array:
    """Returns the place of the largest share of a grid within a budget, at least 0.

    Args:
      budget: float32 scalar; may be traced.
      grid: shares in ascending order.

    Example:
      >>> place_within(jnp.float32(0.5), (0.2, 0.4, 0.6)).item()
      1
    """
    fit = jnp.sum(jnp.array(grid, jnp.float32) <= budget, dtype=jnp.int32)
    return jnp.maximum(fit - 1, 0)


def nested_counts(mask: PyTree, select: PyTree, budget: Array | float) -> Array:
    """Returns a client's entries of each layer, by its budget (FLASH, Algorithm 4).

    With D the density of the mask, `n_l = int(budget / D * nnz_l)`: every layer shrinks
    by the same factor. A client with a budget of D or more holds the whole mask.

    Args:
      mask: bool tree, the largest model.
      select: tree of Python bools.
      budget: density, float32 scalar; may be traced.

    Returns:
      `[L]` int32.

    Example:
      >>> mask = {'w': jnp.array([True, True, False, True, True])}
      >>> nested_counts(mask, {'w': True}, 0.4).tolist()
      [2]
    """
    alive = masks.counts(mask, select)
    whole = masks.density(mask, select)
    share = jnp.asarray(budget, jnp.float32) / jnp.where(whole > 0, whole, 1)
    return jnp.minimum(alive, layer_densities.count_of(share, alive))


def nested_ranks(
    scores: PyTree, mask: PyTree, select: PyTree, budgets: np.ndarray
) -> PyTree:
    """Ranks the entries of each layer as far as clients' budgets distinguish them.

    A method with frozen sub-masks ranks once; one that goes by magnitude, every round.
    A full order would need a sort, which TPU's compiler takes seconds for.

    Args:
      scores: float tree, of which the largest comes first and ties go by index; for a
        random order, `masks.uniform_scores`.
      mask: bool tree, the largest model.
      select: tree of Python bools.
      budgets: [T] densities, as `nested_counts` takes them.

    Returns:
      int32 tree like `mask`: the entries of the largest nested mask that leaves the
      entry out, so that `submask` keeps it beyond that; 0 where every mask has it, and
      on leaves that are not selected.

    Example:
      >>> scores = {'w': jnp.array([5., 7., 9., 6.])}
      >>> alive = {'w': jnp.array([True, True, False, True])}
      >>> budgets = np.array([0.25, 0.5])  # one entry, and two
      >>> nested_ranks(scores, alive, {'w': True}, budgets)['w'].tolist()
      [2, 0, 2, 1]
    """
    ranks = jax.tree.map(lambda m: jnp.zeros(m.shape, jnp.int32), mask)
    layers = trees.layers(ranks, select)
    for budget in budgets:
        counts = nested_counts(mask, select, budget)
        kept = trees.layers(top_k.keep_top(scores, counts, select, within=mask), select)
        layers = [
            jnp.where(k, r, jnp.maximum(r, counts[i]))
            for i, (r, k) in enumerate(zip(layers, kept, strict=True))
        ]
    return trees.replace_layers(ranks, select, layers)


def submask(ranks: PyTree, counts: Array, select: PyTree) -> PyTree:
    """Keeps the first `counts[l]` entries of each layer.

    Args:
      ranks: int32 tree, as `nested_ranks` returns it.
      counts: `[L]` int32, such as `nested_counts` returns; may be traced.
      select: tree of Python bools.

    Returns:
      A bool tree, True on the leaves that are not selected. With the same ranks, a
      smaller count gives a subset. The counts are those of the budgets ranked for.

    Example:
      >>> n = jnp.array([2], jnp.int32)
      >>> submask({'w': jnp.array([1, 0, 2])}, n, {'w': True})['w'].tolist()
      [True, True, False]
    """
    kept = [r < counts[i] for i, r in enumerate(trees.layers(ranks, select))]
    return masks.total(ranks, select, kept)
