"""Local training with a mask that changes during it (FLASH, Algorithm 2)."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax.core.types import PyTree, SparseModel, Work
from sparsefl_jax.sparsity import masks, regrow, top_k
from sparsefl_jax.training import local


class Training(NamedTuple):
    """The state of a masked client, and its work so far."""

    state: local.LocalState
    mask: PyTree  # bool
    work: Work


def learner(
    loss_fn: Callable, select: PyTree, density: float, prune_rate: float, decay: bool
) -> Callable:
    """Returns training within a mask that it prunes and regrows (Algorithm 2).

    With one epoch there is one surgery, after the step with index floor(n / 2) of the
    client's n steps; with more epochs there is one after each epoch but the last.

    The optimizer sees the gradient within the current mask, and its state stays:
    what has grown begins with the momentum that is left from before it was pruned.

    A surgery is charged n log2(n + 1) FLOPs over the n prunable weights.

    Args:
      loss_fn: as `local.objective` returns it.
      select: tree of Python bools, the prunable leaves.
      density: share of the prunable weights that is alive after a surgery.
      prune_rate: share of a layer's alive weights that one surgery exchanges.
      decay: let the rate fall linearly to 0 over the client's local steps.

    Returns:
      `learn(key, tx, model, batches, *, density, when=True)`, which returns what
      `local.train` returns; its model has the mask after the last surgery. A client may
      have another `density`. `when` is a bool scalar that clients share: whether this
      round changes masks at all.
    """

    def learn(key, tx, model, batches, *, density=density, when=True):
        epochs = batches.order.shape[0]
        sorting = top_k.flops(model.params, select)
        train_key, surgery_key = jax.random.split(key)

        def surgery(training, carry, at, rate, when):
            def cut(training, carry):
                key, (state, mask, work) = jax.random.fold_in(surgery_key, at), training
                params, mask, carry = regrow.prune_regrow(
                    key, state.params, mask, rate, select=select, carry=carry
                )
                work = work._replace(extra=work.extra + sorting)
                return Training(state._replace(params=params), mask, work), carry

            return lax.cond(when, cut, lambda *same: same, training, carry)

        def part(training, epoch, first, last, num_trips):
            before, mask, work = training
            span = dict(epoch=epoch, first=first, last=last, num_trips=num_trips)
            key = jax.random.fold_in(train_key, epoch)
            project, inside = partial(masks.apply, mask=mask), local.within(tx, mask)
            state = local.train_steps(
                key, loss_fn, inside, before, batches, project=project, **span
            )
            count = state.sums["count"] - before.sums["count"]
            work = jax.tree.map(jnp.add, work, local.work(count, mask))
            return Training(state, mask, work)

        def trained(training):
            params, stats, opt_state, sums = training.state
            model = SparseModel(params, training.mask, stats)
            return local.Trained(model, opt_state, {**sums, "work": training.work})

        none = local.work(jnp.zeros((), jnp.float32), model.mask)
        training = Training(local.start(tx, model), model.mask, none)
        num_steps = local.own_steps(batches, 0)
        carry = regrow.start_carry(model.params, select, density)
        if epochs == 1:  # static branch
            half, shared = num_steps // 2 + 1, batches.num_steps // 2 + 1
            rate = regrow.prune_rate(prune_rate, half, num_steps, decay=decay)
            training = part(training, 0, 0, jnp.minimum(half, num_steps), shared)
            training, _ = surgery(training, carry, 0, rate, when)
            rest = batches.num_steps - shared
            return trained(part(training, 0, half, num_steps, rest))

        def epoch(e, state):
            training, carry = state
            training = part(training, e, 0, num_steps, batches.num_steps)
            rate = regrow.prune_rate(prune_rate, e + 1, epochs, decay=decay)
            return surgery(training, carry, e, rate, when & (e + 1 < epochs))

        return trained(lax.fori_loop(0, epochs, epoch, (training, carry))[0])

    return learn
