"""FLASH's stage 1: which layers can be sparse (Algorithm 1, Equation 3)."""

import jax.numpy as jnp

from sparsefl_jax.algorithms.flash.surgery import learner
from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Fraction, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import pack_down, unpack_model
from sparsefl_jax.wire.packets import Packet


@method
def sensitivity(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    prunable: masks.Globs = masks.KERNELS,
    prune_rate: Fraction = 0.25,
    prune_rate_decay: bool = True,
    group: int = 0,
    index: str = "bitmap",
) -> Algorithm:
    """FLASH's stage 1: clients measure how dense each layer should be (Algorithm 1).

    All clients start from the same weights and the same random mask and run sparse
    learning. Down: alive weights and their positions, dense leaves and statistics,
    float32. Up: L layer densities, float32. The server averages these with equal
    weights, draws the mask of stage 2 (Eq. 3) and hands on the initial weights,
    unpruned and untrained.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: target share of alive prunable weights.
      prunable: globs of the leaves that can be pruned.
      prune_rate: share of a layer's alive weights that one surgery exchanges.
      prune_rate_decay: the rate falls linearly to 0 over the local steps.
      group: 0 for unstructured masks, M for N:M masks with N = round(d_l M), at
        least 1.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> stage = sensitivity(model, optimizer, density=0.1)
    """
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    learn = learner(loss_fn, select, density, prune_rate, prune_rate_decay)
    if group < 0 or group and round(group * density) < 1:
        raise UserError(f"{group=}, expected 0 or one with an entry at {density=}")

    def init(key, start):
        mask = masks.bernoulli(key, start.params, jnp.float32(density), select)
        return masked.Server(start._replace(mask=mask), jnp.int32(0))

    def broadcast(key, ctx, server):
        return pack_down(ctx, server.model, server.changed_at, select, index=index)

    def update(key, ctx, downlink, client, batches):
        received = unpack_model(downlink)
        found = learn(key, optimizer(ctx.round), received, batches)
        layers = masks.layer_densities(found.model.mask, select)
        return {"density": Packet(layers)}, client, found.metrics

    def contribute(ctx, uplink):
        return means.weighted_sum(uplink["density"].values, jnp.float32(1))

    def aggregate(key, ctx, server, total):
        old = server.model
        mean = means.weighted_mean(total, means.zeros(total))
        sizes = trees.layer_sizes(old.params, select)
        layers = layer_densities.recalibrate(mean, sizes, density)
        if group:  # static branch
            per_group = jnp.clip(jnp.round(layers * group), 1, group).astype(jnp.int32)
            scores = masks.uniform_scores(key, old.params, select)
            mask = top_k.n_of_m(scores, per_group, group, select)
        else:
            mask = masks.bernoulli(key, old.params, layers, select)
        return masked.moved_if_heard(ctx, server, old._replace(mask=mask)), {}

    def deploy(key, server):
        return {"initial": server.model}

    return Algorithm(init, broadcast, update, contribute, aggregate, deploy)
