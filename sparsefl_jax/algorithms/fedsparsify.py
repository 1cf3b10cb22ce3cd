"""FedSparsify: prunes the model on a schedule while it is trained.

Stripelis et al., "Federated Progressive Sparsification (Purge, Merge, Tune)+", 2022,
https://arxiv.org/abs/2204.12430. `fedsparsify_global` purges on the server,
`fedsparsify_local` on the clients, whose masks then vote.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, Positive, PyTree, Share, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, schedules, top_k, trees
from sparsefl_jax.training import means
from sparsefl_jax.wire.packets import pack_up, unpack_model

ALL = ("*",)


class Server(NamedTuple):
    """The purged model, and the round since which its mask has not changed."""

    model: SparseModel
    changed_at: Array  # shape=(), int32: first round whose broadcast carries the mask
    scores: PyTree  # float32 like params: the order of random purging; else {}
    opt_state: PyTree = ()  # of the server optimizer


@method
def fedsparsify_global(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    rounds: int,
    frequency: int = 1,
    power: Positive = 3.0,
    begin: int = 1,
    criterion: Literal["magnitude", "random"] = "magnitude",
    scope: masked.Scope = "global",
    server_optimizer: optax.GradientTransformation | None = None,
    keep_optimizer: bool = True,
    prunable: masks.Globs = ALL,
    index: str = "bitmap",
) -> Algorithm:
    """FedSparsify-Global: the server purges the average, and nothing grows back.

    Down: alive weights, their positions if these changed, dense leaves and statistics,
    float32. Up: the same without positions. A client keeps its optimizer's state unless
    `keep_optimizer` is False.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of prunable entries that is alive after the last round.
      rounds: length of the schedule, above `begin`, see `schedules.polynomial`. At its
        end the density is `density`, if `frequency` divides it, and does not change
        afterwards.
      frequency: rounds between two purges, from 1 to `rounds`.
      power: exponent of the schedule; a larger one purges earlier.
      begin: nothing is purged up to this round, from 0 to `rounds` - 1.
      criterion: 'magnitude' drops the smallest entries; 'random' drops them in a random
        order that is drawn once, the baseline of the paper's figures.
      scope: entries that are compared: 'global' for those of all leaves, as in the
        paper, or those of each 'layer', which then all have the same density.
      server_optimizer: as in `fedavg`; its step precedes the purge, and what has been
        purged stays 0.
      keep_optimizer: clients keep their optimizer's state between rounds.
      prunable: globs of the leaves that are purged; the paper purges all.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedsparsify_global(model, optimizer, density=0.1, rounds=200)
    """
    shape = {"frequency": frequency, "power": power, "begin": begin}
    purge, left = _make_purge(model, prunable, scope, density, rounds, **shape)
    shared = {"index": index, "keep_optimizer": keep_optimizer}
    frozen = masked.spdst(model, optimizer, prunable=prunable, **shared)

    def init(key, start):
        scores, select = {}, masks.prunable(model.macs, prunable)
        if criterion == "random":  # static branch
            scores = masks.uniform_scores(key, start.params, select)
        state = server_optimizer.init(start.params) if server_optimizer else ()
        return Server(*frozen.init(key, start), scores=scores, opt_state=state)

    def aggregate(key, ctx, server, total):
        mean = masked.average(server.model, total)
        if server_optimizer:  # static branch
            old, tx = server.model.params, server_optimizer
            gradient = jax.tree.map(_subtract, old, mean.params)
            new = tx.update(gradient, server.opt_state, old)
            still = optax.tree.zeros_like(old), server.opt_state
            step, state = means.if_heard(ctx, new, still)
            params = masks.apply(optax.apply_updates(old, step), mean.mask)
            mean = mean._replace(params=params)
            server = server._replace(opt_state=state)
        scores = server.scores or jax.tree.map(jnp.abs, mean.params)
        mask = jax.tree.map(jnp.logical_and, purge(scores, ctx.round), mean.mask)
        return masked.move(ctx.round, server, masks.prune(mean, mask)), {}

    return frozen.replace(init, aggregate, density_after=left)


@method
def fedsparsify_local(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    rounds: int,
    frequency: int = 1,
    power: Positive = 3.0,
    merge: Literal["majority", "average"] = "majority",
    keep_optimizer: bool = True,
    prunable: masks.Globs = ALL,
    index: str = "bitmap",
) -> Algorithm:
    """FedSparsify-Local: clients purge what they trained, and their masks vote.

    Down: alive weights, their positions if these changed, dense leaves and statistics,
    float32. Up: the weights that the client keeps, a bit that says whether these are
    all that it received, their positions if not, dense leaves and statistics. A client
    keeps its optimizer's state unless `keep_optimizer` is False.

    Args:
      merge: 'majority' keeps the entries that at least half of the clients kept whose
        uplinks arrived, 'average' those that any of these kept. Zeros count in the mean
        of both.
      model, optimizer, density, rounds, frequency, power: as in `fedsparsify_global`.
      keep_optimizer, prunable, index: as in `fedsparsify_global`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedsparsify_local(model, optimizer, density=0.1, rounds=200)
    """
    shape = {"frequency": frequency, "power": power}
    purge, left = _make_purge(model, prunable, "global", density, rounds, **shape)
    select = masks.prunable(model.macs, prunable)
    shared = {"index": index, "keep_optimizer": keep_optimizer}
    frozen = masked.spdst(model, optimizer, prunable=prunable, **shared)

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = frozen.update(key, ctx, downlink, client, batches)
        trained = unpack_model(uplink)
        scores = jax.tree.map(jnp.abs, trained.params)
        # Where fewer weights than the purge keeps are not 0, it would keep all.
        mask = jax.tree.map(jnp.logical_and, purge(scores, ctx.round), trained.mask)
        written = trained._replace(mask=mask), trained.mask, select
        return pack_up(*written, index=index, optional=True), client, metrics

    def contribute(ctx, uplink):
        return masked.summand_with_mask(ctx, uplink) | {"voters": jnp.float32(1)}

    def aggregate(key, ctx, server, total):
        mean, voters = masked.average(server.model, total["mean"]), total["voters"]
        least = voters / 2 if merge == "majority" else jnp.float32(1)
        mask = jax.tree.map(lambda votes: votes >= least, total["masks"])
        return masked.move_if_heard(ctx, server, masks.prune(mean, mask)), {}

    def density_after(round):
        most = 2 if merge == "majority" else jnp.inf  # times the density of a client
        return min(1.0, most * left(round))

    return frozen.replace(update, contribute, aggregate, density_after)


def _subtract(old, mean):
    """Returns old - mean, 0 for rounding alone, which Adam would make a whole step."""
    return jnp.where(jnp.isclose(old, mean, rtol=1e-6, atol=0.0), 0.0, old - mean)


def _make_purge(model, prunable, scope, density, rounds, **shape):
    """Returns a round's purge, and the share of entries that is left after it."""
    schedule = schedules.polynomial(density, rounds, **shape)
    select = masks.prunable(model.macs, prunable)

    def purge(scores, round):
        """Returns the mask without the int(s n) lowest scores.

        Ties are kept, except with `scope="layer"`.
        """
        sizes = trees.layer_sizes(scores, select)
        size = int(sizes.sum()) if scope == "global" else sizes
        counts = jnp.asarray(schedules.count_kept(schedule, size))
        count = counts[jnp.minimum(round, len(counts) - 1)]
        keep = top_k.at_least if scope == "global" else top_k.keep_top
        return keep(scores, count, select)

    return purge, lambda round: 1 - schedule[min(round, rounds) - 1] if round else 1.0
