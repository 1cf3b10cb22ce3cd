"""Structured pruning as a mask: whole filters and neurons, and the inputs they feed.

Only outputs of hidden layers that a single layer reads are pruned: in a chain those of
all hidden layers, in a network with shortcuts those of each block's first convolution.
The masked network computes what `export.compact` makes of it; normalisation keeps all
its entries.

Source: Li et al., "Pruning Filters for Efficient ConvNets", ICLR 2017,
https://arxiv.org/abs/1608.08710.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.models.wiring import Link, links
from sparsefl_jax.sparsity import masks, top_k, trees, width


def keep_filters(
    params: PyTree, density: float, prunable: masks.Globs = masks.KERNELS
) -> PyTree:
    """Keeps the ceil(density C) filters of each layer that have the largest L1 norm.

    The mask is False on the kernel and bias entries of the other filters, and on the
    inputs through which the next layer reads them. Of equal norms the first stays.

    Args:
      params: kernels `[..., I, O]`, in layers named as in the models here.
      density: share of a layer's C filters that stays, in (0, 1].
      prunable: globs of kernels; those of hidden layers lose filters.

    Returns:
      A bool tree like `params`.

    Raises:
      ValueError: no hidden layer is prunable, or a layer has another name.

    Example:
      >>> shapes = {'fc1': (1, 2), 'fc2': (2, 1)}
      >>> params = {k: {'kernel': jnp.ones(s)} for k, s in shapes.items()}
      >>> keep_filters(params, 0.5)['fc2']['kernel'].tolist()
      [[True], [False]]
    """
    leaves = trees.by_path(params)
    mask = trees.by_path(masks.full(params))
    for link in hidden_links(params, prunable):
        norms = _over_inputs(jnp.sum, jnp.abs(leaves[f"{link.layer}/kernel"]))
        kept = top_k.top_k(norms, width.num_kept(density, norms.size))
        reader = f"{link.reader}/kernel"
        # A dense layer reads a flattened image, its channels fastest.
        read = jnp.tile(kept, leaves[reader].shape[-2] // kept.size)[:, None]
        mask[reader] = _cut(mask[reader], read)
        for path in (f"{link.layer}/kernel", f"{link.layer}/bias"):
            if path in mask:
                mask[path] = _cut(mask[path], kept)
    return jax.tree.unflatten(jax.tree.structure(params), list(mask.values()))


def filters_left(
    mask: PyTree, prunable: masks.Globs = masks.KERNELS
) -> dict[str, Array]:
    """Returns the filters that a mask leaves; the mask follows from them.

    Args:
      mask: as `keep_filters` returned it.
      prunable: as `keep_filters` received it.

    Returns:
      [C] bool by the name of the layer.

    Example:
      >>> mask = {k: {'kernel': jnp.ones((1, 1), bool)} for k in ('fc1', 'fc2')}
      >>> filters_left(mask)
      {'fc1': Array([ True], dtype=bool)}
    """
    leaves, pruned = trees.by_path(mask), hidden_links(mask, prunable)
    return {
        link.layer: _over_inputs(jnp.any, leaves[f"{link.layer}/kernel"])
        for link in pruned
    }


def hidden_links(params: PyTree, prunable: masks.Globs = masks.KERNELS) -> list[Link]:
    """Returns the hidden layers that lose filters.

    Args:
      params: a tree of anything: only paths matter.
      prunable: globs of kernels.

    Raises:
      ValueError: no hidden layer is prunable, or a layer has another name.

    Example:
      >>> params = {'fc1': {'kernel': 1}, 'fc2': {'kernel': 1}}
      >>> [link.layer for link in hidden_links(params)]
      ['fc1']
    """
    chosen = trees.layer_paths(masks.prunable(params, prunable))
    hidden = [link for link in links(params) if f"{link.layer}/kernel" in chosen]
    if not hidden:
        raise UserError(f"prunable={prunable}, expected the kernel of a hidden layer")
    return hidden


def _over_inputs(reduce: Callable, kernel: Array) -> Array:
    """Reduces all axes but the last; [C]."""
    return reduce(kernel, tuple(range(kernel.ndim - 1)))


def _cut(mask: Array, alive: Array) -> Array:
    """Returns the mask where its last axes are alive."""
    return mask & jnp.expand_dims(alive, tuple(range(mask.ndim - alive.ndim)))
