"""hetero-FLASH: clients with budgets that differ, on nested sub-masks (Algorithm 4)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsefl_jax.algorithms.flash.common import Changing, check, target_mask
from sparsefl_jax.algorithms.flash.surgery import sparse_learning
from sparsefl_jax.algorithms.masked import KERNELS, within
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.sparsity import layer_densities, masks
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import pack_down, pack_up, renewed, unpack_model


class Nested(NamedTuple):
    """A server whose clients hold parts of its mask, that of the largest budget."""

    whole: Changing
    ranks: PyTree  # int32 per layer: place of an alive entry in the order of parts


def _hetero(
    model, optimizer, *, densities, submask, prunable, index, r_int, rate, decay
) -> Algorithm:
    """Both methods: `r_int` 0 freezes the largest mask."""
    if submask not in ("frozen", "magnitude"):
        raise ValueError(f"submask={submask!r}, expected 'frozen' or 'magnitude'")
    if not densities:
        raise ValueError("densities=(), expected at least one")
    for density in densities:
        check(density=density, prune_rate=rate, r_int=r_int or 1)
    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)
    tiers = np.sort(np.float32(densities))
    largest = tiers[-1]
    moving = submask == "magnitude"

    def tier_of(ctx):
        """The largest density within a client's budget, at least the smallest."""
        within = jnp.sum(jnp.array(tiers) <= ctx.client.budget, dtype=jnp.int32)
        return jnp.maximum(within - 1, 0)

    def ranked(key, whole):
        """Parts fill up by magnitude in the aggregate, or at random in the mask."""
        if not moving:  # static branch
            return layer_densities.nested_ranks(key, whole.mask, select)
        size = jax.tree.map(jnp.abs, whole.model.params)
        return layer_densities.nested_ranks(size, whole.model.mask, select)

    def part(server, tier):
        """The nested mask of a density; the largest holds the server's mask itself."""
        whole = server.whole
        source = whole.model.mask if moving else whole.mask
        counts = layer_densities.nested_counts(source, select, jnp.array(tiers)[tier])
        smaller = layer_densities.submask(server.ranks, counts, select)
        return jax.tree.map(
            lambda m, s: jnp.where(tier == len(tiers) - 1, m, s), whole.mask, smaller
        )

    def held(server, tier, round):
        """The mask that a round broadcasts; a moving one is the largest in round 0."""
        if moving:  # static branch: as the released code has it
            tier = jnp.where(round == 0, jnp.int32(len(tiers) - 1), tier)
        return part(server, tier)

    def init(key, start):
        start = within(start, select)
        whole = Changing(start, start.mask, jnp.zeros((len(tiers),), jnp.int32))
        return Nested(whole, ranked(key, whole))

    def broadcast(key, ctx, server):
        del key
        aggregated, _, since = server.whole
        tier = tier_of(ctx)
        own = aggregated._replace(mask=held(server, tier, ctx.round))
        return pack_down(ctx, own, since[tier], select, index=index)

    def update(key, ctx, downlink, client, batches):
        received, tx = unpack_model(downlink), optimizer(ctx.round)
        if r_int:  # static branch
            trained = sparse_learning(
                loss_fn, key, tx, received, batches, select=select,
                density=jnp.array(tiers)[tier_of(ctx)],
                prune_rate=rate, decay=decay, when=ctx.round % r_int == 0,
            )  # fmt: skip
        else:
            trained = local.train(key, loss_fn, tx, received, batches)
        uplink = pack_up(trained.model, received.mask, select, index=index)
        return uplink, client, trained.metrics

    def contribute(ctx, uplink):
        sent, weight = unpack_model(uplink), ctx.client.num_examples
        return {
            "covered": means.covered_sum(sent.params, sent.mask, weight),
            "stats": means.weighted_sum(sent.stats, weight),
        }

    def aggregate(key, round, server, total):
        old = server.whole
        stats = means.weighted_mean(total["stats"], old.model.stats)
        nobody = total["stats"]["weight"] == 0
        params, union = jax.tree.map(
            lambda new, old: jnp.where(nobody, old, new),
            (
                means.covered_mean(total["covered"], 0.0),
                jax.tree.map(lambda w: w > 0, total["covered"]["weight"]),
            ),
            (old.model.params, old.model.mask),
        )
        mean, mask, adjust = SparseModel(params, union, stats), old.mask, moving
        if r_int:  # static branch
            vote, layers = round % r_int == 0, masks.layer_densities(union, select)
            mask = lax.cond(
                vote,
                lambda: target_mask(mean, layers, largest, select),
                lambda: old.mask,
            )
            adjust = vote | moving
        whole = Changing(mean, mask, old.since)
        ranks = lax.cond(adjust, lambda: ranked(key, whole), lambda: server.ranks)
        new, since = Nested(whole, ranks), []
        for tier in range(len(tiers)):
            before = held(server, jnp.int32(tier), round)
            after = held(new, jnp.int32(tier), round + 1)
            since.append(renewed(round, before, after, old.since[tier]))
        return Nested(whole._replace(since=jnp.stack(since)), ranks), {}

    def deploy(key, server):
        del key
        aggregated = server.whole.model
        models = {"aggregated": aggregated}
        for tier, density in enumerate(sorted(densities)):
            mask = part(server, jnp.int32(tier))
            params = masks.apply(aggregated.params, mask)
            models[f"d{density}"] = aggregated._replace(params=params, mask=mask)
        return models

    return Algorithm(init, broadcast, update, contribute, aggregate, deploy)


def hetero_spdst(
    model,
    optimizer,
    *,
    densities=(0.1, 0.15, 0.2),
    submask: str = "frozen",
    prunable=KERNELS,
    index: str = "bitmap",
) -> Algorithm:
    """hetero-SPDST: nested masks of several densities, averaged where they cover (WFA).

    Args:
      densities: the budgets that clients have, in (0, 1]; the largest is stage 1's.
      submask: 'frozen' draws the nested masks once (paper); 'magnitude' takes the
        largest weights of the aggregate anew every round, as the released code does.
      model, optimizer, prunable, index: as in `spdst`.
    """
    return _hetero(
        model, optimizer, densities=densities, submask=submask, prunable=prunable,
        index=index, r_int=0, rate=0.0, decay=False,
    )  # fmt: skip


def hetero_jmwst(
    model,
    optimizer,
    *,
    densities=(0.1, 0.15, 0.2),
    r_int: int = 1,
    submask: str = "magnitude",
    prunable=KERNELS,
    prune_rate: float = 0.25,
    prune_rate_decay: bool = True,
    index: str = "bitmap",
) -> Algorithm:
    """hetero-JMWST: the largest mask is drawn anew every `r_int` rounds, see `jmwst`.

    Its layer shares are the aggregate's; the aggregate is deployed uncut.

    Args:
      densities: the budgets that clients have, in (0, 1]; the largest is stage 1's.
      r_int: rounds between changes of the largest mask, at least 1.
      submask: as in `hetero_spdst`; 'frozen' redraws when the largest mask changes.
      prune_rate, prune_rate_decay: as in `jmwst`.
      model, optimizer, prunable, index: as in `spdst`.
    """
    check(r_int=r_int)
    return _hetero(
        model, optimizer, densities=densities, submask=submask, prunable=prunable,
        index=index, r_int=r_int, rate=prune_rate, decay=prune_rate_decay,
    )  # fmt: skip
