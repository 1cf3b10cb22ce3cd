"""Local training of an update that the network sees as a function of it.

The selected leaves stay as they were received, and their update is trained from 0; the
other leaves are trained as usual.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.core.types import Array, Batches, EmptyState, Key, PyTree, SparseModel
from sparsefl_jax.sparsity import trees
from sparsefl_jax.training import local

NOTHING = EmptyState()


class Learnt(NamedTuple):
    """What the optimizer changes."""

    update: PyTree  # float32; None in the place of leaves that are not selected
    extra: PyTree  # float32, what a method learns beside it
    rest: PyTree  # float32, the other leaves; None in the place of the selected ones


class Progress(NamedTuple):
    """What a step leaves for the next one, in the place of the statistics."""

    stats: PyTree  # float32
    step: Array  # shape=(), int32: steps so far
    kept: PyTree  # what a method keeps


def num_steps(batches: Batches) -> Array:
    """Counts a client's own steps in all epochs; shape=(), int32, at least 1."""
    epochs = range(batches.order.shape[0])
    return jnp.maximum(sum(local.own_steps(batches, epoch) for epoch in epochs), 1)


def train(
    key: Key,
    loss_fn: Callable,
    tx: optax.GradientTransformation,
    model: SparseModel,
    batches: Batches,
    *,
    select: PyTree,
    seen: Callable,
    extra: PyTree = NOTHING,
    kept: PyTree = NOTHING,
) -> tuple[Learnt, Progress, dict[str, Any]]:
    """Trains the update of the selected leaves, and the other leaves.

    Args:
      key: the key of the client and round.
      loss_fn: as `local.objective` returns it.
      tx: the optimizer, whose state starts anew.
      model: the model that was received; its mask is not used.
      batches: the client's data.
      select: tree of Python bools.
      seen: `(key, step, learnt, kept) -> (update, kept)`, what the network sees in the
        place of `learnt.update` in a step, from 1, and what the next step gets. The
        gradient flows through it.
      extra: what else is learnt, float32.
      kept: what the first step gets.

    Returns:
      What is learnt, in which `rest` is the change of the other leaves; what the last
      step leaves; and the metrics of `local.train`, whose work is that of a dense
      network.
    """
    received, rest = trees.split(model.params, select)
    zeros = jax.tree.map(jnp.zeros_like, received)

    def seen_loss(key, learnt, progress, x, y, weight):
        own, key = jax.random.split(key)
        step = progress.step + 1
        update, kept = seen(own, step, learnt, progress.kept)
        moved = jax.tree.map(jnp.add, received, update)
        params = trees.merge(moved, learnt.rest)
        loss, (stats, sums) = loss_fn(key, params, progress.stats, x, y, weight)
        return loss, (Progress(stats, step, kept), sums)

    begin = Progress(model.stats, jnp.int32(0), kept)
    start = SparseModel(Learnt(zeros, extra, rest), None, begin)
    trained = local.train(key, seen_loss, tx, start, batches)
    learnt, end = trained.model.params, trained.model.stats
    change = jax.tree.map(jnp.subtract, learnt.rest, rest)
    work = local.dense_work(trained.metrics["count"], model.params)
    return learnt._replace(rest=change), end, trained.metrics | {"work": work}
