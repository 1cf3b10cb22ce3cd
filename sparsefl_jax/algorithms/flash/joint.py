"""FLASH with masks that clients change: JMWST by vote, NST each on its own."""

from functools import partial

import jax.numpy as jnp
from jax import lax

from sparsefl_jax.algorithms.flash import surgery
from sparsefl_jax.algorithms.flash.common import (
    KERNELS,
    Changing,
    both,
    check,
    mean_model,
    no_client,
    summand,
    voted_mask,
)
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.wire.messages import pack_down, pack_up, renewed, unpack_model


def jmwst(
    loss_fn,
    optimizer,
    *,
    density: float,
    r_int: int = 1,
    prunable=KERNELS,
    prune_rate: float = 0.25,
    prune_rate_decay: bool = True,
    index: str = "bitmap",
) -> Algorithm:
    """Joint mask and weight sparse training: clients' masks vote every `r_int` rounds.

    Down and up: alive weights, dense leaves, statistics; positions where they changed.
    In rounds 0, r_int, 2 r_int, ... clients prune and regrow and the server then draws
    its mask anew; in the others the mask is frozen.

    Args:
      density: target share of alive prunable weights, in (0, 1].
      r_int: rounds between changes of the mask, at least 1.
      prune_rate: share of a layer that one surgery exchanges.
      prune_rate_decay: the rate falls linearly to 0 over the local steps.
      loss_fn, optimizer, prunable, index: as in `spdst`.
    """
    check(density=density, prune_rate=prune_rate, r_int=r_int)
    learn = partial(
        surgery.sparse_learning,
        loss_fn,
        density=density,
        prune_rate=prune_rate,
        decay=prune_rate_decay,
    )

    def init(key, model):
        del key
        return Changing(model, model.mask, jnp.int32(0))

    def broadcast(key, ctx, server):
        del key
        select = masks.prunable(server.model.params, prunable)
        model = server.model._replace(mask=server.mask)
        return pack_down(ctx, model, server.since, select, index=index)

    def update(key, ctx, downlink, client, batches):
        model = unpack_model(downlink)
        select = masks.prunable(model.params, prunable)
        adjust = ctx.round % r_int == 0
        training = learn(
            key, optimizer(ctx.round), model, batches, select=select, when=adjust
        )
        trained = SparseModel(
            training.state.params, training.mask, training.state.stats
        )
        uplink = pack_up(trained, model.mask, select, index=index)
        return uplink, client, {**training.state.sums, "work": training.work}

    def aggregate(key, ctx, server, total):
        del key
        adjust = ctx.round % r_int == 0
        model = mean_model(server, total)
        mask = lax.cond(
            adjust,
            lambda: voted_mask(server, model, total, density, prunable),
            lambda: server.mask,
        )
        since = renewed(ctx, server.mask, mask, server.since)
        return Changing(model, mask, since), {}

    return Algorithm(
        init,
        no_client,
        broadcast,
        update,
        summand(prunable),
        aggregate,
        both,
        alive=lambda round: density,
    )


def nst(
    loss_fn,
    optimizer,
    *,
    density: float,
    prunable=KERNELS,
    prune_rate: float = 0.25,
    prune_rate_decay: bool = True,
    index: str = "bitmap",
) -> Algorithm:
    """Naive sparse training: every client keeps and changes a mask of its own.

    Down: the aggregate, as dense as the union of the cohort's masks. Up: the client's
    alive weights and new mask, dense leaves, statistics. A client keeps one bit per
    prunable weight.

    Args:
      density: share of alive prunable weights on a client, in (0, 1].
      prune_rate: share of a layer that one surgery exchanges.
      prune_rate_decay: the rate falls linearly to 0 over the local steps.
      loss_fn, optimizer, prunable, index: as in `spdst`.
    """
    check(density=density, prune_rate=prune_rate)
    learn = partial(
        surgery.sparse_learning,
        loss_fn,
        density=density,
        prune_rate=prune_rate,
        decay=prune_rate_decay,
    )

    def init(key, model):
        select = masks.prunable(model.params, prunable)
        mask = masks.bernoulli(key, model.params, jnp.float32(density), select)
        return Changing(model._replace(mask=mask), mask, jnp.int32(0))

    def init_client(key, server, info):
        del key, info
        return server.mask

    def broadcast(key, ctx, server):
        del key
        select = masks.prunable(server.model.params, prunable)
        return pack_down(ctx, server.model, server.since, select, index=index)

    def update(key, ctx, downlink, client, batches):
        received = unpack_model(downlink)
        select = masks.prunable(received.params, prunable)
        model = SparseModel(
            masks.apply(received.params, client), client, received.stats
        )
        training = learn(key, optimizer(ctx.round), model, batches, select=select)
        trained = SparseModel(
            training.state.params, training.mask, training.state.stats
        )
        uplink = pack_up(trained, received.mask, select, index=index)
        return uplink, training.mask, {**training.state.sums, "work": training.work}

    def aggregate(key, ctx, server, total):
        del key
        model = mean_model(server, total)
        mask = voted_mask(server, model, total, density, prunable)
        since = renewed(ctx, server.model.mask, model.mask, server.since)
        return Changing(model, mask, since), {}

    return Algorithm(
        init, init_client, broadcast, update, summand(prunable), aggregate, both
    )
