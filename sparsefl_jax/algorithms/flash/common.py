"""Sums and masks of the servers of FLASH methods whose clients change their masks."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.algorithms.masked import (
    covered_average,
    covered_summand,
    mean_on_union,
    summand_with_mask,
)
from sparsefl_jax.core.algorithm import Message
from sparsefl_jax.core.types import Array, Context, Key, PyTree, SparseModel
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees
from sparsefl_jax.training import means
from sparsefl_jax.wire.messages import unpack_model


class Changing(NamedTuple):
    """The state of a server whose aggregate is denser than its target."""

    model: SparseModel  # the aggregate; mask: the union of the last cohort's masks
    mask: PyTree  # bool, at the target density
    since: Array  # int32, first round that broadcasts it: shape=(), or one per density
    seed: Array | tuple = ()  # uint32, of the first mask that clients keep, if they do


Average = Literal["fedavg", "wfa"]
AVERAGES = {  # Algorithm 3: what a client adds, and what follows from the sum
    "fedavg": (summand_with_mask, mean_on_union),
    "wfa": (covered_summand, covered_average),
}


def summand(
    ctx: Context,
    uplink: Message,
    select: PyTree,
    weights: Callable = summand_with_mask,
) -> dict[str, PyTree]:
    """Returns a client's weights, mask and layer densities, to be summed."""
    layers = masks.layer_densities(unpack_model(uplink).mask, select)
    density = means.weighted_sum(layers, jnp.float32(1))
    return weights(ctx, uplink) | {"density": density}


def voted_mask(
    model: SparseModel, total: dict[str, PyTree], density: float, select: PyTree
) -> PyTree:
    """Returns the mask of Eq. 3 from the mean layer densities of the cohort's masks."""
    mean = means.weighted_mean(total["density"])
    return target_mask(model, mean, density, select)


def target_mask(
    model: SparseModel, layers: Array, density: float, select: PyTree
) -> PyTree:
    """Returns the mask of the largest |w| of each layer at recalibrated densities.

    Args:
      model: the aggregate; weights outside its mask are not chosen.
      layers: [L] float32, densities to scale by Eq. 3. If together they lie below the
        target they stay as they are, so that the server only gets sparser.
      density: the target.
      select: tree of Python bools, the prunable leaves.
    """
    sizes = trees.layer_sizes(model.params, select)
    layers = layer_densities.recalibrate(layers, sizes, density, raises=False)
    counts = layer_densities.floor_count(layers * np.float32(sizes))
    size = jax.tree.map(jnp.abs, model.params)
    return top_k.largest(size, counts, select, within=model.mask)


def both(key: Key, server: Changing) -> dict[str, SparseModel]:
    """Returns the aggregate cut to the target, and the aggregate, which is denser."""
    masked = masks.pruned(server.model, server.mask)
    return {"masked": masked, "aggregated": server.model}
