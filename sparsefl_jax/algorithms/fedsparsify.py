"""FedSparsify: models that grow sparse on a schedule while they train.

Stripelis et al., "Federated Progressive Sparsification (Purge, Merge, Tune)+", 2022,
https://arxiv.org/abs/2204.12430. `fedsparsify_global` purges on the server,
`fedsparsify_local` on the clients, whose masks then vote.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import Array, EmptyState, PyTree, SparseModel
from sparsefl_jax.sparsity import masks, schedules
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import pack_down, pack_up, renewed, unpack_model

CRITERIA = ("magnitude", "random")
MERGES = ("majority", "average")
ALL = ("*",)


class Server(NamedTuple):
    """The purged model, and since when its mask stands."""

    model: SparseModel
    since: Array  # shape=(), int32: first round whose broadcast carries the mask
    scores: PyTree  # float32 like params: what random purging orders by; else {}


def fedsparsify_global(
    loss_fn,
    optimizer,
    *,
    density: float,
    rounds: int,
    frequency: int = 1,
    power: float = 3.0,
    criterion: str = "magnitude",
    keep_optimizer: bool = True,
    prunable=ALL,
    index: str = "bitmap",
) -> Algorithm:
    """FedSparsify-Global: the server purges the average, and nothing grows back.

    Down: alive weights with their positions where these changed, dense leaves,
    statistics. Up: the same without positions. A client keeps its momentum, if it has
    any.

    Args:
      loss_fn: as `local.cross_entropy` returns it.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of prunable entries that is left after the last round, (0, 1].
      rounds: over which it is reached, see `schedules.polynomial`; it stays after them.
      frequency: rounds between two purges, at least 1.
      power: of the schedule; the larger, the earlier it purges.
      criterion: 'magnitude' drops the smallest entries of all leaves together; 'random'
        any, in an order drawn once: the baseline of the paper's figures.
      keep_optimizer: clients keep their optimizer's state from round to round.
      prunable: globs of the leaves that are purged; the paper purges all.
      index: how positions are written, see `codec.Packet`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> method = fedsparsify_global(None, None, density=0.1, rounds=200)
    """
    if criterion not in CRITERIA:
        raise ValueError(
            f"criterion={criterion!r}, expected one of {', '.join(CRITERIA)}"
        )
    schedule = schedules.polynomial(density, rounds, frequency=frequency, power=power)

    def init(key, model):
        scores, select = {}, masks.prunable(model.params, prunable)
        if criterion == "random":  # static branch
            scores = masks.uniform_scores(key, model.params, select)
        return Server(_applied(model), jnp.int32(0), scores)

    def update(key, ctx, downlink, client, batches):
        model, state = _train(key, ctx, loss_fn, optimizer, downlink, client, batches)
        select = masks.prunable(model.params, prunable)
        uplink = pack_up(model, model.mask, select, index=index)
        work = local.work(state.sums["count"], model.mask)
        return uplink, _kept(client, state), {**state.sums, "work": work}

    def contribute(ctx, uplink):
        sent = unpack_model(uplink)
        return means.weighted_sum((sent.params, sent.stats), ctx.client.num_examples)

    def aggregate(key, ctx, server, total):
        del key
        old, select = server.model, masks.prunable(server.model.params, prunable)
        params, stats = means.weighted_mean(total, (old.params, old.stats))
        scores = server.scores or jax.tree.map(jnp.abs, params)
        mask = _purge(scores, ctx.round, schedule, select)
        mask = jax.tree.map(jnp.logical_and, mask, old.mask)
        return _next(ctx, server, SparseModel(params, mask, stats)), {}

    def alive(round):
        return 1 - schedule[min(round, rounds) - 1]

    client = partial(_init_client, optimizer, keep_optimizer)
    broadcast = partial(_broadcast, prunable, index)
    return Algorithm(
        init, client, broadcast, update, contribute, aggregate, _deploy, alive
    )


def fedsparsify_local(
    loss_fn,
    optimizer,
    *,
    density: float,
    rounds: int,
    frequency: int = 1,
    power: float = 3.0,
    merge: str = "majority",
    keep_optimizer: bool = True,
    prunable=ALL,
    index: str = "bitmap",
) -> Algorithm:
    """FedSparsify-Local: clients purge what they trained, and their masks vote.

    Down: alive weights with their positions where these changed, dense leaves,
    statistics. Up: the client's own alive weights and their positions, the same beside
    them. A client keeps its momentum, if it has any. All arguments but `merge` are
    those of `fedsparsify_global`.

    Args:
      merge: 'majority' keeps what at least half of the cohort kept, zeros counting in
        the mean; 'average' whatever anyone kept.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> method = fedsparsify_local(None, None, density=0.1, rounds=200)
    """
    if merge not in MERGES:
        raise ValueError(f"merge={merge!r}, expected one of {', '.join(MERGES)}")
    schedule = schedules.polynomial(density, rounds, frequency=frequency, power=power)

    def init(key, model):
        del key
        return Server(_applied(model), jnp.int32(0), {})

    def update(key, ctx, downlink, client, batches):
        model, state = _train(key, ctx, loss_fn, optimizer, downlink, client, batches)
        select = masks.prunable(model.params, prunable)
        work = local.work(state.sums["count"], model.mask)
        scores = jax.tree.map(jnp.abs, model.params)
        received, mask = model.mask, _purge(scores, ctx.round, schedule, select)
        uplink = pack_up(model._replace(mask=mask), received, select, index=index)
        return uplink, _kept(client, state), {**state.sums, "work": work}

    def contribute(ctx, uplink):
        sent = unpack_model(uplink)
        mean = means.weighted_sum((sent.params, sent.stats), ctx.client.num_examples)
        votes = jax.tree.map(lambda m: m.astype(jnp.float32), sent.mask)
        return {"mean": mean, "votes": votes, "voters": jnp.float32(1)}

    def aggregate(key, ctx, server, total):
        del key
        old, voters = server.model, total["voters"]
        params, stats = means.weighted_mean(total["mean"], (old.params, old.stats))
        least = voters / 2 if merge == "majority" else jnp.float32(1)
        mask = jax.tree.map(
            lambda v, m: jnp.where(voters > 0, v >= least, m), total["votes"], old.mask
        )
        return _next(ctx, server, SparseModel(params, mask, stats)), {}

    def alive(round):
        most = 2 if merge == "majority" else jnp.inf  # times what each of them kept
        return min(1.0, most * (1 - schedule[min(round, rounds) - 1]))

    client = partial(_init_client, optimizer, keep_optimizer)
    broadcast = partial(_broadcast, prunable, index)
    return Algorithm(
        init, client, broadcast, update, contribute, aggregate, _deploy, alive
    )


def _init_client(optimizer, keep_optimizer, key, server, info):
    del key, info
    return optimizer(0).init(server.model.params) if keep_optimizer else EmptyState()


def _kept(client, state):
    """The client state after training: the optimizer's, where clients keep it."""
    return client if isinstance(client, EmptyState) else state.opt_state


def _broadcast(prunable, index, key, ctx, server):
    del key
    select = masks.prunable(server.model.params, prunable)
    return pack_down(ctx, server.model, server.since, select, index=index)


def _train(key, ctx, loss_fn, optimizer, downlink, client, batches):
    """The model as trained within the mask that was received, and the local state."""
    model, tx = unpack_model(downlink), optimizer(ctx.round)
    opt_state = None if isinstance(client, EmptyState) else client
    state = local.start(tx, model.params, model.stats, opt_state)
    project = partial(masks.apply, mask=model.mask)
    state = local.train(key, loss_fn, tx, state, batches, project=project)
    return SparseModel(state.params, model.mask, state.stats), state


def _purge(scores, round, schedule, select) -> PyTree:
    """The mask without int(s n) of the lowest scores, ties kept."""
    size = int(masks.layer_sizes(scores, select).sum())
    counts = jnp.asarray(schedules.alive(schedule, size))
    count = counts[jnp.minimum(round, len(counts) - 1)]
    return masks.at_least(scores, count, select)


def _next(ctx, server, model) -> Server:
    since = renewed(ctx, server.model.mask, model.mask, server.since)
    return server._replace(model=_applied(model), since=since)


def _applied(model) -> SparseModel:
    return model._replace(params=masks.apply(model.params, model.mask))


def _deploy(key, server, client, info):
    del key, client
    return {} if info is not None else {"global": server.model}
