"""Local training with a mask that may change on the way (FLASH, Algorithm 2)."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsefl_jax.core.types import Array, Batches, Key, PyTree, SparseModel, Work
from sparsefl_jax.sparsity import masks, regrow, trees
from sparsefl_jax.training import local


class Training(NamedTuple):
    """The state of a masked client, and the work so far."""

    state: local.LocalState
    mask: PyTree  # bool
    work: Work


def begin(tx, model: SparseModel) -> Training:
    """The state before the first step."""
    zero = jnp.zeros((), jnp.float32)
    work = local.work(zero, model.mask)
    state = local.start(tx, model)
    return Training(state, model.mask, work)


def steps(
    key: Key, loss_fn: Callable, tx, training: Training, batches, **span
) -> Training:
    """Masked steps; the mask is applied to the weights after every one."""
    state = local.train_steps(
        key,
        loss_fn,
        tx,
        training.state,
        batches,
        project=partial(masks.apply, mask=training.mask),
        **span,
    )
    count = state.sums["count"] - training.state.sums["count"]
    work = jax.tree.map(jnp.add, training.work, local.work(count, training.mask))
    return training._replace(state=state, work=work)


def sparse_learning(
    loss_fn: Callable,
    key: Key,
    tx,
    model: SparseModel,
    batches: Batches,
    *,
    select: PyTree,
    density: Array | float,
    prune_rate: float,
    decay: bool,
    when: Array | bool = True,
) -> local.Trained:
    """Trains within a mask, with prune-regrow on the way (FLASH, Algorithm 2).

    One epoch: one surgery, after the step with index floor(n / 2) of the client's n.
    More epochs: one after each but the last. The rate falls linearly to 0 over the
    client's local steps where `decay` is set.

    A surgery is charged n log2(n) FLOPs over the n prunable weights.

    Args:
      when: bool scalar that clients share: whether this round changes masks at all.
    """
    epochs = batches.order.shape[0]
    prunable = float(np.sum(trees.layer_sizes(model.params, select)))
    sorting = jnp.float32(prunable * np.log2(prunable + 1))
    train_key, surgery_key = jax.random.split(key)

    def surgery(training, carry, at, rate, when):
        def cut(training, carry):
            params, mask, carry = regrow.prune_regrow(
                jax.random.fold_in(surgery_key, at),
                training.state.params,
                training.mask,
                rate,
                select=select,
                carry=carry,
            )
            work = training.work._replace(extra=training.work.extra + sorting)
            return Training(training.state._replace(params=params), mask, work), carry

        return lax.cond(when, cut, lambda *same: same, training, carry)

    def part(training, epoch, first, last, num_trips):
        return steps(
            jax.random.fold_in(train_key, epoch),
            loss_fn,
            tx,
            training,
            batches,
            epoch=epoch,
            first=first,
            last=last,
            num_trips=num_trips,
        )

    def trained(training):
        params, stats, opt_state, sums = training.state
        model = SparseModel(params, training.mask, stats)
        return local.Trained(model, opt_state, {**sums, "work": training.work})

    training, own = begin(tx, model), local.own_steps(batches, 0)
    carry = regrow.start_carry(model.params, select, density)
    if epochs == 1:  # static branch
        half, shared = own // 2 + 1, batches.num_steps // 2 + 1
        rate = regrow.prune_rate(prune_rate, half, own, decay=decay)
        training = part(training, 0, 0, jnp.minimum(half, own), shared)
        training, _ = surgery(training, carry, 0, rate, when)
        return trained(part(training, 0, half, own, batches.num_steps - shared))

    def epoch(e, state):
        training, carry = state
        training = part(training, e, 0, own, batches.num_steps)
        rate = regrow.prune_rate(prune_rate, e + 1, epochs, decay=decay)
        return surgery(training, carry, e, rate, when & (e + 1 < epochs))

    return trained(lax.fori_loop(0, epochs, epoch, (training, carry))[0])
