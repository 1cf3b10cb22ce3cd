"""FLASH with masks that clients change: JMWST by vote (Algorithm 3), and NST."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsefl_jax.algorithms.flash.surgery import learner
from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Message, Optimizer, method
from sparsefl_jax.core.types import Array, Count, Fraction, PyTree, Share, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import last_change, pack_down, pack_up, unpack_model
from sparsefl_jax.wire.packets import Packet


class Changing(NamedTuple):
    """The state of a server whose aggregate is denser than its target."""

    model: SparseModel  # the aggregate; mask: the union of the last cohort's masks
    mask: PyTree  # bool, at the target density
    changed_at: Array  # int32, first round that broadcasts it: (), or one per density
    seed: Array | tuple = ()  # uint32, of the first mask that clients keep, if they do


Average = Literal["fedavg", "wfa"]
AVERAGES = {  # Algorithm 3: what a client adds, and what follows from the sum
    "fedavg": (masked.summand_with_mask, masked.mean_on_union),
    "wfa": (masked.covered_summand, masked.covered_average),
}


@method
def jmwst(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    r_int: Count = 1,
    average: Average = "fedavg",
    prunable: masks.Globs = masks.KERNELS,
    prune_rate: Fraction = 0.25,
    prune_rate_decay: bool = True,
    index: str = "bitmap",
) -> Algorithm:
    """Joint mask and weight sparse training: clients' masks vote every `r_int` rounds.

    Down and up: alive weights, dense leaves and statistics, float32; positions if they
    changed. In rounds 0, r_int, 2 r_int, ... clients prune and regrow, and the server
    then chooses a new mask; in the other rounds the mask does not change.

    Args:
      density: target share of alive prunable weights.
      r_int: rounds between changes of the mask.
      average: 'fedavg' counts an entry that a client lacks as its 0; 'wfa' takes the
        mean over the clients that hold it.
      prune_rate: share of a layer's alive weights that one surgery exchanges.
      prune_rate_decay: the rate falls linearly to 0 over the local steps.
      model, optimizer, prunable, index: as in `spdst`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = jmwst(model, optimizer, density=0.1, r_int=5)
    """
    weights, merged = AVERAGES[average]
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    learn = learner(loss_fn, select, density, prune_rate, prune_rate_decay)

    def init(key, start):
        return Changing(start, masked.within(start, select).mask, jnp.int32(0))

    def broadcast(key, ctx, server):
        target = server.model._replace(mask=server.mask)
        return pack_down(ctx, target, server.changed_at, select, index=index)

    def update(key, ctx, downlink, client, batches):
        received, adjust = unpack_model(downlink), ctx.round % r_int == 0
        found = learn(key, optimizer(ctx.round), received, batches, when=adjust)
        uplink = pack_up(found.model, received.mask, select, index=index)
        return uplink, client, found.metrics

    def aggregate(key, ctx, server, total):
        mean = merged(ctx, server.model, total)
        vote = (ctx.round % r_int == 0) & (ctx.heard > 0)
        voted = partial(voted_mask, mean, total, density, select)
        mask = lax.cond(vote, voted, lambda: server.mask)
        changed_at = last_change(ctx.round, server.mask, mask, server.changed_at)
        return Changing(mean, mask, changed_at), {}

    contribute = partial(summand, select=select, weights=weights)
    return Algorithm(init, broadcast, update, contribute, aggregate, both)


@method
def nst(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    prunable: masks.Globs = masks.KERNELS,
    prune_rate: Fraction = 0.25,
    prune_rate_decay: bool = True,
    index: str = "bitmap",
) -> Algorithm:
    """Naive sparse training: each client keeps and changes a personal mask.

    Down: the aggregate, as dense as the union of the cohort's masks, with the positions
    if these are new to the client; before a client's first round the seed of the mask
    that all start from, 32 bits. Up: the client's alive weights and new mask, dense
    leaves, statistics. A client keeps its mask, one bit per parameter.

    Args:
      density: share of alive prunable weights on a client.
      model, optimizer, prunable, prune_rate, prune_rate_decay, index: as in `jmwst`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = nst(model, optimizer, density=0.1)
    """
    loss_fn, select = local.objective(model), masks.prunable(model.macs, prunable)
    learn = learner(loss_fn, select, density, prune_rate, prune_rate_decay)

    def drawn(seed):
        key, (params, _) = jax.random.key(seed), model.shapes()
        return masks.bernoulli(key, params, jnp.float32(density), select)

    def init(key, start):
        seed = jax.random.bits(key, (), jnp.uint32)
        mask = drawn(seed)
        return Changing(start._replace(mask=mask), mask, jnp.int32(0), seed)

    def send_once(server):
        return {"seed": Packet(server.seed)}

    def init_client(key, received, info):
        return drawn(received["seed"].values)

    def broadcast(key, ctx, server):
        return pack_down(ctx, server.model, server.changed_at, select, index=index)

    def update(key, ctx, downlink, client, batches):
        received = unpack_model(downlink)
        start = masks.pruned(received, client)
        found = learn(key, optimizer(ctx.round), start, batches)
        uplink = pack_up(found.model, received.mask, select, index=index)
        return uplink, found.model.mask, found.metrics

    def aggregate(key, ctx, server, total):
        mean = masked.mean_on_union(ctx, server.model, total)
        mask = voted_mask(mean, total, density, select)
        return masked.moved_if_heard(ctx, server, mean, mask=mask), {}

    contribute = partial(summand, select=select)
    steps = init, broadcast, update, contribute, aggregate, both, init_client
    return Algorithm(*steps, send_once=send_once)


def summand(
    ctx, uplink: Message, select: PyTree, weights: Callable = masked.summand_with_mask
) -> dict[str, PyTree]:
    """Returns a client's weights, mask and layer densities, to be summed."""
    layers = masks.layer_densities(unpack_model(uplink).mask, select)
    density = means.weighted_sum(layers, jnp.float32(1))
    return weights(ctx, uplink) | {"density": density}


def voted_mask(
    model: SparseModel, total: dict[str, PyTree], density: float, select: PyTree
) -> PyTree:
    """Returns the mask of Eq. 3 from the mean layer densities of the cohort's masks."""
    mean = means.weighted_mean(total["density"], means.zeros(total["density"]))
    return target_mask(model, mean, density, select)


def target_mask(
    model: SparseModel, layers: Array, density: float, select: PyTree
) -> PyTree:
    """Returns the mask of the largest |w| of each layer at recalibrated densities.

    Args:
      model: the aggregate; weights outside its mask are not chosen.
      layers: [L] float32, densities to scale by Eq. 3. If together they lie below the
        target they stay as they are, so that the server only gets sparser.
      density: the target.
      select: tree of Python bools, the prunable leaves.
    """
    sizes = trees.layer_sizes(model.params, select)
    layers = layer_densities.recalibrate(layers, sizes, density, raises=False)
    counts = layer_densities.floor_count(layers * np.float32(sizes))
    return top_k.largest_alive(model, counts, select)


def both(key, server: Changing) -> dict[str, SparseModel]:
    """Returns the aggregate cut to the target, and the aggregate, which is denser."""
    masked = masks.pruned(server.model, server.mask)
    return {"masked": masked, "aggregated": server.model}
