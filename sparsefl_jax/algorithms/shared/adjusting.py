"""What FedRTS, FedTiny and FedMef share: clients name pruned entries that could grow.

Layer l always has K_l alive entries. In round t the k_l = int(r_t K_l) weakest of them,
but no more than the layer has pruned entries, are in doubt; r_t falls from `prune_rate`
to 0 in round `adjust_until` by half a cosine. In the rounds t > 0 below `adjust_until`
that are multiples of `adjust_every`, the server adjusts the mask. Clients then also
name the k_l pruned entries of each layer with the largest gradient, on the first batch
of their last epoch, at the trained weights.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer
from sparsefl_jax.core.types import PyTree
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, schedules, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.training.screening import screen
from sparsefl_jax.wire.messages import free_positions, pack_up, unpack_model
from sparsefl_jax.wire.packets import Packet

Start = Literal["random", "magnitude"]  # the first mask


def adjusting(
    model: Model,
    optimizer: Optimizer,
    density: float,
    schedule: tuple[int, int, float],
    first: Start,
    allocation: masked.Allocation,
    prunable: masks.Globs,
    index: str,
    *,
    gradients: bool,
    adapt: Callable = lambda loss_fn, tx, received, doubt, batches: (loss_fn, tx),
) -> tuple[Algorithm, PyTree, Callable, Callable]:
    """Returns the parts of a method that adjusts its mask.

    Args:
      schedule: `adjust_every`, `adjust_until` and `prune_rate` of `fedrts`.
      model, optimizer, density, allocation, prunable, index: as in `fedrts`.
      first: its `start`.
      gradients: whether the gradients of the named entries, float32, travel with their
        positions.
      adapt: `(loss_fn, tx, received, doubt, batches) -> (loss_fn, tx)`, the loss and
        the optimizer of a client in a round; `doubt` is [L] int32, k_l in rounds that
        adjust, otherwise 0.

    Returns:
      frozen: the method without adjustments; its `update` and `contribute` handle the
        named entries. Each method replaces at least its `aggregate`.
      select: tree of Python bools, the prunable leaves.
      due: `(round) -> bool`, whether a round adjusts the mask.
      budget: `(params, round) -> (alive [L] int32, doubt [L] int32)`, K_l and k_l.
    """
    adjust_every, adjust_until, prune_rate = schedule
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    counts = masked.layer_counts(allocation, density, select)
    rates = schedules.cosine(prune_rate, adjust_until)
    bits = 32 if gradients else 0

    def due(round):
        return (round > 0) & (round % adjust_every == 0) & (round < adjust_until)

    def budget(params, round):
        alive, sizes = counts(params), trees.layer_sizes(params, select)
        doubt = jnp.asarray(in_doubt(rates, alive, sizes))
        return jnp.asarray(alive), doubt[jnp.minimum(round, adjust_until)]

    def init(key, start):
        scores = masks.uniform_scores(key, start.params, select)
        if first == "magnitude":  # static branch
            scores = jax.tree.map(jnp.abs, start.params)
        mask = top_k.largest(scores, jnp.asarray(counts(scores)), select)
        return masked.Server(masks.pruned(start, mask), jnp.int32(0))

    def update(key, ctx, downlink, client, batches):
        received, adjust = unpack_model(downlink), due(ctx.round)
        train_key, screen_key = jax.random.split(key)
        doubt = jnp.where(adjust, budget(received.params, ctx.round)[1], 0)
        loss, tx = adapt(loss_fn, optimizer(ctx.round), received, doubt, batches)
        trained = local.train(train_key, loss, tx, received, batches)
        zeros = jax.tree.map(jnp.zeros_like, received)

        def name():
            grads, work = screen(screen_key, loss_fn, trained, batches, select=select)
            steep = jax.tree.map(jnp.abs, grads)
            pruned = jax.tree.map(jnp.logical_not, trained.model.mask)
            named = top_k.largest(steep, doubt, select, within=pruned)
            return masks.apply(grads, named), named, work

        blank = zeros.params, zeros.mask, trained.metrics["work"]
        grads, named, work = lax.cond(adjust, name, lambda: blank)
        grads, named = (trees.split(tree, select)[0] for tree in (grads, named))
        uplink = pack_up(trained.model, received.mask, select, index=index)
        values = grads if gradients else named
        free = free_positions(index)
        grown = Packet(values, named, True, adjust, bits, index, assumed=free)
        return uplink | {"grown": grown}, client, trained.metrics | {"work": work}

    def contribute(ctx, uplink):
        grown, weight = uplink["grown"], ctx.client.num_examples
        named = jnp.where(grown.sent, weight, jnp.zeros_like(weight))
        values = grown.values if gradients else grown.mask
        mean = masked.summand(ctx, uplink)
        return {"mean": mean, "grown": means.weighted_sum(values, named)}

    frozen = masked.spdst(model, optimizer, prunable=prunable, index=index)
    frozen = frozen.replace(init=init, update=update, contribute=contribute)
    return frozen, select, due, budget


def in_doubt(rates: np.ndarray, alive: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns how many alive entries of each layer are in doubt in each round.

    Args:
      rates: [T] float64, r_t.
      alive: [L], K_l.
      sizes: [L], all entries of each layer.

    Returns:
      [T, L] int32, int(r_t K_l), at most the entries that are pruned.

    Example:
      >>> alive, sizes = np.array([50, 90]), np.array([100, 100])
      >>> in_doubt(np.array([0.4, 0.0]), alive, sizes).tolist()
      [[20, 10], [0, 0]]
    """
    wanted = layer_densities.whole(rates[:, None], alive)
    return np.minimum(wanted, sizes - alive).astype(np.int32)


def steepness(total: dict[str, PyTree], params: PyTree, select: PyTree) -> PyTree:
    """Returns the magnitude of the cohort's mean gradient at the entries that it names.

    Args:
      total: the sum over clients of what `contribute` returns, with gradients.
      params: a tree like the parameters; its leaves fill those that are not selected.
      select: tree of Python bools, the prunable leaves.

    Returns:
      A float32 tree like `params`; 0 at entries that no client has named.
    """
    mean = means.weighted_mean(total["grown"], means.zeros(total["grown"]))
    steep = jax.tree.map(jnp.abs, mean)
    return trees.merge(steep, trees.split(params, select)[1])
