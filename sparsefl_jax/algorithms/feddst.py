"""FedDST: clients readjust a sparse mask by magnitude and gradient, the server too.

Bibikar et al., "Federated Dynamic Sparse Training: Computing Less, Communicating Less,
Yet Learning Better", AAAI 2022, https://arxiv.org/abs/2112.09824. Layer densities,
rounds and costs are those of the released code; what it does otherwise than the paper
is `variant='release'`.
"""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Count, Fraction, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, schedules, top_k
from sparsefl_jax.training import local
from sparsefl_jax.training.screening import readjust


@method
def feddst(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    adjust_until: Annotated[int, "[2, inf)"],
    adjust_every: Count = 10,
    prune_rate: Fraction = 0.5,
    allocation: masked.Allocation = "erk_sparsity",
    variant: Literal["paper", "release"] = "paper",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
) -> Algorithm:
    """FedDST: in some rounds clients prune and regrow; the server prunes the union.

    The first mask keeps the largest initial weights of each layer. In rounds 1, 1 + R,
    1 + 2 R, ... below `adjust_until`, with R = `adjust_every`, a client readjusts after
    its last epoch: it prunes each layer to its share of the density (1 - a_t) d by
    magnitude, and grows it to its share of d where the gradient of its last batch, at
    the trained weights, is largest. What has grown is uploaded untrained, as 0. The
    rate a_t falls from `prune_rate` to 0 in round `adjust_until` by half a cosine. The
    server takes the mean of each weight over the clients whose mask has it, and prunes
    each layer of the union of masks to its share of d by magnitude.

    Down and up: alive weights, dense leaves and statistics, float32; positions where
    they changed. FLOPs: a readjustment is charged the dense gradient of a batch and n
    log2(n + 1) over the n prunable weights.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of alive prunable weights.
      adjust_until: the round in which the rate reaches 0, T / 2 in the released code.
      adjust_every: rounds between readjustments.
      prune_rate: share of the alive weights that a readjustment exchanges in round 0.
      allocation: as in `pdst`.
      variant: 'paper' or 'release'. In the released code growth chooses among all
        entries, so that surviving weights are set to 0 and fewer entries are alive; the
        server prunes no layer unless all of them together are too dense; and a_t is
        `prune_rate` in every readjustment.
      prunable: globs of the leaves that can be pruned.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range, or a name is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = feddst(model, optimizer, density=0.2, adjust_until=200)
    """
    release, loss_fn = variant == "release", local.objective(model)
    select = masks.prunable(model.macs, prunable)
    counts = masked.layer_counts(allocation, density, select)
    rates = schedules.cosine(prune_rate, adjust_until)[1:-1:adjust_every]
    if release:  # static branch
        rates = np.full_like(rates, prune_rate)

    def due(round):
        return (round > 0) & ((round - 1) % adjust_every == 0) & (round < adjust_until)

    def init(key, start):
        size = jax.tree.map(jnp.abs, start.params)
        mask = top_k.largest(size, jnp.asarray(counts(start.params)), select)
        return masked.Server(masks.pruned(start, mask), jnp.int32(0))

    def train(key, ctx, received, client, batches):
        train_key, screen_key = jax.random.split(key)
        tx = optimizer(ctx.round)
        trained = local.train(train_key, loss_fn, tx, received, batches)

        def exchange(trained):
            params, step = trained.model.params, local.own_steps(batches, -1) - 1
            table = jnp.asarray(np.stack([counts(params, rate) for rate in rates]))
            kept = table[(ctx.round - 1) // adjust_every], jnp.asarray(counts(params))
            options = {"select": select, "step": step, "anywhere": release}
            return readjust(screen_key, loss_fn, trained, batches, *kept, **options)

        return lax.cond(due(ctx.round), exchange, lambda same: same, trained), client

    def aggregate(key, ctx, server, total):
        mean = masked.covered_average(ctx, server.model, total)
        mask = top_k.largest_alive(mean, jnp.asarray(counts(mean.params)), select)
        if release:  # static branch
            sparse = masks.density(mean.mask, select) <= density
            mask = jax.tree.map(lambda u, m: jnp.where(sparse, u, m), mean.mask, mask)
        return masked.moved(ctx.round, server, masks.pruned(mean, mask)), {}

    changed = {"contribute": masked.covered_summand, "aggregate": aggregate}
    return masked.training_within(select, index, train).replace(init=init, **changed)
