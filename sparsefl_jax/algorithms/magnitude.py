"""Magnitude pruning: a trained dense model keeps its largest weights.

Han et al., "Learning both Weights and Connections for Efficient Neural Networks",
NeurIPS 2015, https://arxiv.org/abs/1506.02626, pruned once and then fine-tuned by
federated averaging.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import PyTree, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees

Scope = Literal["global", "layer"]


@method
def magnitude(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    scope: Scope = "global",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "bitmap",
    keep_optimizer: bool = False,
) -> Algorithm:
    """Prunes the model of the stage before by magnitude, then trains as `spdst`.

    It is meant for a stage after `fedavg`; its rounds fine-tune the weights that stay.
    The mask of the stage before is not used.

    Down and up: alive weights, dense leaves and statistics, float32; the positions only
    when a client first takes part.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of the prunable weights that stay; 1 trains as FedAvg.
      scope: weights among which the largest are sought: 'global' for all prunable ones
        together, or those of each 'layer'. Either can empty a layer.
      prunable, index, keep_optimizer: as in `spdst`.

    Raises:
      ValueError: an argument is out of range, or a glob matches no leaf.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> stage = magnitude(model, optimizer, density=0.1)
    """
    shared = {"index": index, "keep_optimizer": keep_optimizer}
    frozen = masked.spdst(model, optimizer, prunable=prunable, **shared)
    select = masks.prunable(model.macs, prunable)

    def init(key, start):
        mask = largest_weights(start.params, density, select, scope)
        return frozen.init(key, start._replace(mask=mask))

    return frozen.replace(init=init)


def largest_weights(
    params: PyTree, density: float, select: PyTree, scope: Scope = "global"
) -> PyTree:
    """Returns the mask of the int(n density) largest |w| of n, or of each layer's.

    Args:
      params: float32.
      density, scope: as in `magnitude`.
      select: tree of Python bools, the prunable leaves.

    Returns:
      A bool tree, True on the leaves that are not selected. Of equal weights those with
      the lowest index stay, in the order of the tree.

    Example:
      >>> params = {"a": jnp.array([3.0, -4.0]), "b": jnp.array([1.0, 3.0])}
      >>> mask = largest_weights(params, 0.5, {"a": True, "b": True})
      >>> mask["a"].tolist(), mask["b"].tolist()
      ([True, True], [False, False])
    """
    sizes, scores = trees.layer_sizes(params, select), jax.tree.map(jnp.abs, params)
    if scope == "layer":  # static branch
        return top_k.largest(scores, layer_densities.whole(density, sizes), select)
    count = int(layer_densities.whole(density, sizes.sum()))
    return top_k.largest_overall(scores, count, select)
