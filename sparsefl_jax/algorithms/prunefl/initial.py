"""PruneFL's stage 1: one client trains and prunes until the density settles."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from sparsefl_jax.algorithms.prunefl.rule import make_rule, summing
from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import (
    Array,
    Count,
    Fraction,
    NonNegative,
    PyTree,
    Share,
    SparseModel,
    Work,
)
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, top_k
from sparsefl_jax.training import local
from sparsefl_jax.training.screening import work
from sparsefl_jax.wire.messages import pack_up, unpack_model

_CHANGE, _PATIENCE = 0.1, 5  # settled: five times in a row, no more than a tenth


class Search(NamedTuple):
    """The state of a client's initial pruning."""

    state: local.LocalState  # opt_state[0]: squared gradients since the last cut
    mask: PyTree  # bool
    work: Work
    iteration: Array  # shape=(), int32: passes over the batches so far
    start: Array  # shape=(), int32: iteration of the first cut; the limit before it
    density: Array  # shape=(), float32: after the last cut, 0 before the first
    settled: Array  # shape=(), int32: number of last cuts that hardly changed it


@method
def prunefl_initial(
    model: Model,
    optimizer: Optimizer,
    *,
    num_batches: Count = 10,
    reconfigure_every: Count = 50,
    max_iterations: Count = 1000,
    start_accuracy: Fraction = 0.15,
    prune_rate: Fraction = 0.3,
    layer_time: tuple[float, ...] | None = None,
    constant_time: NonNegative = 0.0,
    max_density: Share = 1.0,
    prunable: masks.Globs = masks.KERNELS,
    index: str = "bitmap",
) -> Algorithm:
    """PruneFL's initial pruning: one client trains and prunes within one round.

    The client trains on its first `num_batches` minibatches repeatedly; one pass over
    them is an iteration. From the first iteration with an accuracy of at least
    `start_accuracy`, and then every `reconfigure_every` iterations, it applies the rule
    of `rule.make_rule` to the squares of its gradients, summed over all steps since the
    last time. It ends after `max_iterations`, or when the density has changed by at
    most a tenth five times in a row.

    The next stage starts from the mask and the trained weights. Down and up: alive
    weights and their positions, dense leaves and statistics, float32. With several
    clients, the server takes the mean of the weights and the union of the masks. A
    reconfiguration is charged n log2(n + 1) FLOPs over the n prunable weights.

    Args:
      model: the network and its loss.
      optimizer: the client's, as `local.make_optimizer` returns it.
      num_batches: minibatches that the client uses; of 20 samples in the paper.
      reconfigure_every: iterations between reconfigurations.
      max_iterations: maximum number of iterations.
      start_accuracy: training accuracy on the minibatches that starts the pruning; 1.5
        / classes in the paper.
      prune_rate: share of a layer's alive weights that may be pruned at a time.
      layer_time, constant_time, prunable, index: as in `prunefl`.
      max_density: as in `prunefl`; 1 in the paper.

    Raises:
      ValueError: an argument is out of range, or `layer_time` of another length.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> for_62_classes = prunefl_initial(model, optimizer, start_accuracy=1.5 / 62)
    """
    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)
    reconfigure = make_rule(select, prune_rate, layer_time, constant_time, max_density)
    # Its init, broadcast and deploy also serve a mask that changes.
    frozen = masked.spdst(model, optimizer, prunable=prunable, index=index)

    def update(key, ctx, downlink, client, batches):
        received = unpack_model(downlink)
        tx = optax.chain(summing(2), optimizer(ctx.round))
        sorting = top_k.flops(received.params, select)
        steps = jnp.minimum(local.own_steps(batches, 0), num_batches)
        shared = jnp.minimum(batches.num_steps, num_batches)
        span = {"epoch": 0, "first": 0, "last": steps, "num_trips": shared}

        def train(at: Search) -> Search:
            step_key = jax.random.fold_in(key, at.iteration)
            project = partial(masks.apply, mask=at.mask)
            state = local.train_steps(
                step_key, loss_fn, tx, at.state, batches, project=project, **span
            )
            seen = jax.tree.map(jnp.subtract, state.sums, at.state.sums)
            good = seen["correct"] >= start_accuracy * jnp.maximum(seen["count"], 1)
            start = jnp.where(good, jnp.minimum(at.start, at.iteration), at.start)
            done = jax.tree.map(jnp.add, at.work, work(seen["count"], at.mask))
            return at._replace(state=state, start=start, work=done)

        def cut(at: Search) -> Search:
            squared, *rest = at.state.opt_state
            before = SparseModel(at.state.params, at.mask, at.state.stats)
            after = reconfigure(before, squared, jnp.float32(0))
            density = masks.density(after.mask, select)
            change = jnp.abs(density - at.density)
            same = (at.density > 0) & (change <= jnp.float32(_CHANGE) * at.density)
            opt_state = (jax.tree.map(jnp.zeros_like, squared), *rest)
            return at._replace(
                state=at.state._replace(params=after.params, opt_state=opt_state),
                mask=after.mask,
                work=at.work._replace(extra=at.work.extra + sorting),
                density=density,
                settled=jnp.where(same, at.settled + 1, jnp.int32(0)),
            )

        def iterate(at: Search) -> Search:
            at = train(at)
            changed_at = at.iteration - at.start
            due = (changed_at >= 0) & (changed_at % reconfigure_every == 0)
            at = lax.cond(due, cut, lambda same: same, at)
            return at._replace(iteration=at.iteration + 1)

        def unsettled(at: Search) -> Array:
            return (at.iteration < max_iterations) & (at.settled < _PATIENCE)

        zero, none = jnp.zeros((), jnp.float32), jnp.int32(0)
        untrained = local.start(tx, received), received.mask, work(zero, received.mask)
        begin = Search(*untrained, none, jnp.int32(max_iterations), zero, none)
        found = lax.while_loop(unsettled, iterate, begin)
        trained = SparseModel(found.state.params, found.mask, found.state.stats)
        metrics = {**found.state.sums, "work": found.work}
        metrics["iterations"] = found.iteration.astype(jnp.float32)
        uplink = pack_up(trained, received.mask, select, index=index)
        return uplink, client, metrics

    def aggregate(key, ctx, server, total):
        new = masked.mean_on_union(ctx, server.model, total)
        return masked.moved(ctx.round, server, new), {}

    changed = {"contribute": masked.summand_with_mask, "aggregate": aggregate}
    return frozen.replace(update=update, **changed)
