"""hetero-FLASH: clients with budgets that differ, on nested sub-masks (Algorithm 4)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax import aggregate as sums
from sparsefl_jax.algorithm import Algorithm
from sparsefl_jax.algorithms.flash import surgery
from sparsefl_jax.algorithms.flash.common import KERNELS, check, no_client, top_mask
from sparsefl_jax.message import pack_down, pack_up, unpack_model
from sparsefl_jax.sparsity import allocate, masks
from sparsefl_jax.types import Array, PyTree, SparseModel


class Server(NamedTuple):
    """The model at the largest budget, and the order in which sub-masks fill up."""

    model: SparseModel
    ranks: PyTree  # int32 per layer: place of an alive entry in its layer's order
    mask_round: Array  # shape=(), int32


def _submask(server: Server, budget, largest, prunable) -> PyTree:
    """The nested mask of a budget: the first n_l entries of every layer's order.

    The largest budget holds the server's mask itself, however many entries were drawn.
    """
    select = masks.prunable(server.model.params, prunable)
    budget = jnp.where(budget >= largest, jnp.float32(1), budget)
    counts = allocate.nested_counts(server.model.mask, select, budget)
    return allocate.submask(server.ranks, counts, select)


def _hetero(
    loss_fn, optimizer, *, densities, submask, prunable, index, r_int, rate, decay
) -> Algorithm:
    """Both methods: `r_int` 0 freezes the largest mask."""
    if submask not in ("frozen", "magnitude"):
        raise ValueError(f"submask={submask!r}, expected 'frozen' or 'magnitude'")
    if not densities:
        raise ValueError("densities=(), expected at least one")
    for density in densities:
        check(density=density, prune_rate=rate, r_int=r_int or 1)
    largest = max(densities)
    moving = submask == "magnitude"

    def order(key, model):
        select = masks.prunable(model.params, prunable)
        magnitude = jax.tree.map(jnp.abs, model.params)
        return allocate.nested_ranks(magnitude if moving else key, model.mask, select)

    def init(key, model):
        model = model._replace(params=masks.apply(model.params, model.mask))
        return Server(model, order(key, model), jnp.int32(0))

    def own_mask(ctx, server):
        budget = ctx.client.budget
        if moving:  # the released code gives round 0 the largest mask throughout
            budget = jnp.where(ctx.round == 0, jnp.float32(largest), budget)
        return _submask(server, budget, jnp.float32(largest), prunable)

    def broadcast(key, ctx, server):
        del key
        select = masks.prunable(server.model.params, prunable)
        model = server.model._replace(mask=own_mask(ctx, server))
        return pack_down(ctx, model, server.mask_round, select, index=index)

    def update(key, ctx, downlink, client, batches):
        model, tx = unpack_model(downlink), optimizer(ctx.round)
        select = masks.prunable(model.params, prunable)
        if r_int:  # static branch
            adjust = ctx.round % r_int == 0
            state, mask, work = surgery.sparse_learning(
                loss_fn, key, tx, model, batches, select=select,
                density=jnp.minimum(ctx.client.budget, jnp.float32(largest)),
                prune_rate=rate, decay=decay, when=adjust,
            )  # fmt: skip
        else:
            adjust, mask = False, model.mask
            state, work = surgery.masked_train(key, loss_fn, tx, model, batches)
        trained = SparseModel(state.params, mask, state.stats)
        uplink = pack_up(trained, model.mask, select, index=index)
        return uplink, client, {**state.sums, "work": work}

    def contribute(ctx, uplink):
        sent, weight = unpack_model(uplink), ctx.client.num_examples
        layers = masks.layer_densities(sent.mask, masks.prunable(sent.params, prunable))
        return {
            "covered": sums.covered_sum(sent.params, sent.mask, weight),
            "stats": sums.weighted_sum(sent.stats, weight),
            "density": sums.weighted_sum(layers, jnp.float32(1)),
        }

    def aggregate(key, ctx, server, total):
        old = server.model
        stats = sums.weighted_mean(total["stats"], old.stats)
        params = sums.covered_mean(total["covered"], 0.0)
        select = masks.prunable(params, prunable)
        adjust, mask = jnp.asarray(moving), old.mask
        if r_int:  # static branch
            vote = ctx.round % r_int == 0
            before = masks.layer_densities(old.mask, select)
            mean = sums.weighted_mean(total["density"], before)
            mask = lax.cond(
                vote,
                lambda: top_mask(params, mean, largest, select),
                lambda: old.mask,
            )
            adjust = adjust | vote
        model = SparseModel(masks.apply(params, mask), mask, stats)
        ranks = lax.cond(adjust, lambda: order(key, model), lambda: server.ranks)
        changed = jnp.where(adjust, ctx.round + 1, server.mask_round)
        return Server(model, ranks, changed), {}

    def deploy(key, server, client, info):
        del key, client
        if info is not None:  # static branch: sub-models are the server's own
            return {}
        models = {"aggregated": server.model}
        for density in sorted(densities):
            mask = _submask(
                server, jnp.float32(density), jnp.float32(largest), prunable
            )
            params = masks.apply(server.model.params, mask)
            models[f"d{density}"] = server.model._replace(params=params, mask=mask)
        return models

    return Algorithm(init, no_client, broadcast, update, contribute, aggregate, deploy)


def hetero_spdst(
    loss_fn,
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
        largest weights anew every round, as the released code does.
      loss_fn, optimizer, prunable, index: as in `spdst`.
    """
    return _hetero(
        loss_fn, optimizer, densities=densities, submask=submask, prunable=prunable,
        index=index, r_int=0, rate=0.0, decay=False,
    )  # fmt: skip


def hetero_jmwst(
    loss_fn,
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
    """hetero-JMWST: the largest mask is voted on every `r_int` rounds, see `jmwst`.

    Args:
      densities: the budgets that clients have, in (0, 1]; the largest is stage 1's.
      r_int: rounds between changes of the largest mask, at least 1.
      submask: as in `hetero_spdst`; 'frozen' redraws when the largest mask changes.
      prune_rate, prune_rate_decay: as in `jmwst`.
      loss_fn, optimizer, prunable, index: as in `spdst`.
    """
    check(r_int=r_int)
    return _hetero(
        loss_fn, optimizer, densities=densities, submask=submask, prunable=prunable,
        index=index, r_int=r_int, rate=prune_rate, decay=prune_rate_decay,
    )  # fmt: skip
