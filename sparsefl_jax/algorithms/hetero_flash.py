"""hetero-FLASH: clients of different budgets on nested sub-masks (Algorithm 4).

Babakniya et al., TMLR 2023, https://arxiv.org/abs/2208.13092; see `flash`.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sparsefl_jax.algorithms import flash, masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Count, Fraction, PyTree, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, nested
from sparsefl_jax.training import local
from sparsefl_jax.wire.packets import last_change, pack_down

Submask = Literal["frozen", "magnitude"]


class Nested(NamedTuple):
    """A server whose clients hold parts of its mask, the mask of the largest budget."""

    whole: flash.Changing
    ranks: PyTree  # int32: nested masks of at most so many entries leave an entry out


@method
def hetero_spdst(
    model: Model,
    optimizer: Optimizer,
    *,
    densities: tuple[Share, ...] = (0.1, 0.15, 0.2),
    submask: Submask = "frozen",
    average: flash.Average = "wfa",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "bitmap",
) -> Algorithm:
    """hetero-SPDST: clients train nested masks of several densities.

    Down and up: alive weights, dense leaves and statistics, float32; positions if they
    changed.

    Args:
      densities: the clients' budgets, in (0, 1]; the largest is the density of stage 1.
      submask: 'frozen' draws the nested masks once (paper); 'magnitude' chooses the
        largest weights of the aggregate in every round, and in round 0 gives all
        clients the largest mask, whatever their budget, as the released code does.
      average: 'wfa' takes the mean of an entry over the clients whose mask holds it;
        'fedavg' over all clients of the round, of which the others count as 0.
      model, optimizer, prunable, index: as in `spdst`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = hetero_spdst(model, optimizer, densities=(0.1, 0.2))
    """
    options = densities, submask, average, prunable, index
    return _nest(model, optimizer, *options, r_int=0, rate=0.0, decay=False)


@method
def hetero_jmwst(
    model: Model,
    optimizer: Optimizer,
    *,
    densities: tuple[Share, ...] = (0.1, 0.15, 0.2),
    r_int: Count = 1,
    submask: Submask = "magnitude",
    average: flash.Average = "wfa",
    prunable: masks.Globs = masks.KERNELS,
    prune_rate: Fraction = 0.25,
    prune_rate_decay: bool = True,
    index: str = "bitmap",
) -> Algorithm:
    """hetero-JMWST: `hetero_spdst` whose largest mask changes every `r_int` rounds.

    The new mask has the layer densities of the aggregate, recalibrated as in `jmwst`.
    The last deployed model is the aggregate, which is not cut to a density.

    Args:
      densities: the clients' budgets, in (0, 1]; the largest is the density of stage 1.
      r_int: rounds between changes of the largest mask.
      submask: as in `hetero_spdst`, but 'frozen' draws the nested masks again whenever
        the largest mask changes.
      average: as in `hetero_spdst`.
      prune_rate, prune_rate_decay: as in `jmwst`.
      model, optimizer, prunable, index: as in `spdst`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = hetero_jmwst(model, optimizer, densities=(0.1, 0.2), r_int=5)
    """
    options = densities, submask, average, prunable, index
    return _nest(model, optimizer, *options, r_int, prune_rate, prune_rate_decay)


def _nest(
    model, optimizer, densities, submask, average, prunable, index, r_int, rate, decay
) -> Algorithm:
    """Builds both methods; `r_int` 0 freezes the largest mask."""
    if not densities:
        raise UserError("densities=(), expected at least one")
    summand, merged = flash.AVERAGES[average]
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    tiers, moving = np.sort(np.float32(densities)), submask == "magnitude"
    largest = len(tiers) - 1
    learn = flash.learner(loss_fn, select, max(densities), rate, decay)

    def rank(key, whole):
        """Returns the order of alive entries: by magnitude if moving, else random."""
        if moving:  # static branch
            mask, scores = whole.model.mask, jax.tree.map(jnp.abs, whole.model.params)
        else:
            mask, scores = whole.mask, masks.uniform_scores(key, whole.mask, select)
        return nested.nested_ranks(scores, mask, select, tiers)

    def part(server, tier):
        """Returns the nested mask of a density; the largest has the whole mask."""
        whole = server.whole
        source = whole.model.mask if moving else whole.mask
        counts = nested.nested_counts(source, select, jnp.array(tiers)[tier])
        smaller = nested.submask(server.ranks, counts, select)
        return optax.tree.where(tier == largest, whole.mask, smaller)

    def held(server, tier, round):
        """Returns the mask of a round; a moving one is the largest in round 0."""
        if moving:  # static branch: as the released code does
            tier = jnp.where(round == 0, jnp.int32(largest), tier)
        return part(server, tier)

    def init(key, start):
        start = masked.within(start, select)
        whole = flash.Changing(start, start.mask, jnp.zeros((len(tiers),), jnp.int32))
        return Nested(whole, rank(key, whole))

    def broadcast(key, ctx, server):
        tier = nested.place_within(ctx.client.budget, tiers)
        part = server.whole.model._replace(mask=held(server, tier, ctx.round))
        return pack_down(ctx, part, server.whole.changed_at[tier], select, index=index)

    def train(key, ctx, received, client, batches):
        tx = optimizer(ctx.round)
        if not r_int:  # static branch
            return local.train(key, loss_fn, tx, received, batches), client
        tier = nested.place_within(ctx.client.budget, tiers)
        own = {"density": jnp.array(tiers)[tier], "when": ctx.round % r_int == 0}
        return learn(key, tx, received, batches, **own), client

    def aggregate(key, ctx, server, total):
        old = server.whole
        mean, mask, adjust = merged(ctx, old.model, total), old.mask, moving
        if r_int:  # static branch
            vote = (ctx.round % r_int == 0) & (ctx.heard > 0)
            layers = masks.layer_densities(mean.mask, select)
            voted = partial(flash.target_mask, mean, layers, tiers[-1], select)
            mask = jax.lax.cond(vote, voted, lambda: old.mask)
            adjust = vote | moving
        whole = old._replace(model=mean, mask=mask)
        ranks = jax.lax.cond(adjust, lambda: rank(key, whole), lambda: server.ranks)
        new, changed_at = Nested(whole, ranks), []
        for tier, since in enumerate(old.changed_at):
            before = held(server, jnp.int32(tier), ctx.round)
            after = held(new, jnp.int32(tier), ctx.round + 1)
            changed_at.append(last_change(ctx.round, before, after, since))
        return Nested(whole._replace(changed_at=jnp.stack(changed_at)), ranks), {}

    def deploy(key, server):
        aggregated, models = server.whole.model, {}
        for tier, density in reversed([*enumerate(sorted(densities))]):
            mask = part(server, jnp.int32(tier))
            models[f"d{density}"] = masks.prune(aggregated, mask)
        return models | {"aggregated": aggregated}

    method = masked.training_within(select, index, train)
    return method.replace(init, broadcast, aggregate, deploy, contribute=summand)
