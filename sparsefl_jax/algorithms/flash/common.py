"""What the FLASH methods whose clients change masks share: sums, the server's mask."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, PyTree, SparseModel
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees
from sparsefl_jax.training import means
from sparsefl_jax.wire.messages import unpack_model


class Changing(NamedTuple):
    """A server whose aggregate is denser than its target."""

    model: SparseModel  # the aggregate; mask: the union of the last cohort's masks
    mask: PyTree  # bool, at the target density
    since: Array  # int32, first round that broadcasts it: shape=(), or one a density


def check(*, density=1.0, prune_rate=0.0, r_int=1) -> None:
    """Refuses arguments outside their range.

    Raises:
      ValueError: names the argument, its value and what is allowed.
    """
    if not 0 < density <= 1:
        raise ValueError(f"density={density}, expected in (0, 1]")
    if not 0 <= prune_rate <= 1:
        raise ValueError(f"prune_rate={prune_rate}, expected in [0, 1]")
    if r_int < 1 or r_int != int(r_int):
        raise ValueError(f"r_int={r_int}, expected an integer from 1")


def summand(ctx, uplink, select: PyTree) -> dict:
    """Returns a client's weights, votes and layer densities."""
    sent = unpack_model(uplink)
    layers = masks.layer_densities(sent.mask, select)
    weights = sent.params, sent.stats
    return {
        "mean": means.weighted_sum(weights, ctx.client.num_examples),
        "density": means.weighted_sum(layers, jnp.float32(1)),
        "masks": jax.tree.map(lambda m: m.astype(jnp.float32), sent.mask),
    }


def mean_model(server: Changing, total) -> SparseModel:
    """Returns the mean of the cohort's weights, zeros included, on their union."""
    old = server.model
    params, stats = means.weighted_mean(total["mean"], (old.params, old.stats))
    nobody = total["density"]["weight"] == 0
    union = jax.tree.map(
        lambda votes, m: jnp.where(nobody, m, votes > 0), total["masks"], old.mask
    )
    return SparseModel(params, union, stats)


def voted_mask(server: Changing, model, total, density, select: PyTree) -> PyTree:
    """Returns the server's mask from the mean layer densities of the cohort's masks."""
    before = masks.layer_densities(server.mask, select)
    mean = means.weighted_mean(total["density"], before)
    return target_mask(model, mean, density, select)


def target_mask(model: SparseModel, layers: Array, density, select: PyTree) -> PyTree:
    """Returns the mask of Eq. 3 on layer densities [L]: the largest |w| of each layer.

    Densities below the target stay as they are: the server only gets sparser.
    """
    sizes = trees.layer_sizes(model.params, select)
    layers = layer_densities.recalibrate(layers, sizes, density, raises=False)
    size = jax.tree.map(
        lambda w, m: jnp.where(m, jnp.abs(w), jnp.float32(-1)), model.params, model.mask
    )
    return top_k.largest(size, layer_densities.layer_counts(layers, sizes), select)


def both(key, server: Changing) -> dict[str, SparseModel]:
    """Deploys the aggregate, denser than the target, and the same cut to the target."""
    del key
    params = masks.apply(server.model.params, server.mask)
    cut = server.model._replace(params=params, mask=server.mask)
    return {"aggregated": server.model, "masked": cut}
