"""PruneFL's stage 1: a client trains and prunes until the density has settled."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from sparsefl_jax.algorithms.prunefl.rule import summing
from sparsefl_jax.core.types import Array, Batches, Key, PyTree, SparseModel, Work
from sparsefl_jax.sparsity import masks, top_k
from sparsefl_jax.training import local
from sparsefl_jax.training.screening import work

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


def prune(
    key: Key,
    tx: optax.GradientTransformation,
    model: SparseModel,
    batches: Batches,
    *,
    loss_fn: Callable,
    reconfigure: Callable,
    select: PyTree,
    num_batches: int,
    every: int,
    limit: int,
    start_accuracy: float,
) -> Search:
    """Runs the initial pruning of one client; arguments as in `prunefl_initial`."""
    sorting = top_k.flops(model.params, select)
    steps = jnp.minimum(local.own_steps(batches, 0), num_batches)
    shared = jnp.minimum(batches.num_steps, num_batches)
    span = {"epoch": 0, "first": 0, "last": steps, "num_trips": shared}
    tx = optax.chain(summing(2), tx)

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
        since = at.iteration - at.start
        due = (since >= 0) & (since % every == 0)
        at = lax.cond(due, cut, lambda same: same, at)
        return at._replace(iteration=at.iteration + 1)

    zero, none = jnp.zeros((), jnp.float32), jnp.int32(0)
    untrained = local.start(tx, model), model.mask, work(zero, model.mask)
    begin = Search(*untrained, none, jnp.int32(limit), zero, none)
    return lax.while_loop(
        lambda at: (at.iteration < limit) & (at.settled < _PATIENCE), iterate, begin
    )
