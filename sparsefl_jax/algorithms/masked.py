"""Federated averaging of the weights that a mask keeps.

The mask is given at the start and does not change. SPDST and PDST of FLASH are this
method, with the mask of stage 1 and with a random one. After `snip` and `grasp` it
trains the weights that they kept. Methods that change the mask replace some of its
functions.

Babakniya et al., "Revisiting Sparsity Hunting in Federated Learning: Why does Sparsity
Consensus Matter?", TMLR 2023, https://arxiv.org/abs/2208.13092. `magnitude` keeps the
largest weights of a trained dense model, once: Han et al., "Learning both Weights and
Connections for Efficient Neural Networks", NeurIPS 2015,
https://arxiv.org/abs/1506.02626.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import Algorithm, Message, Optimizer, method
from sparsefl_jax.core.types import Array, Context, PyTree, Share, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import last_change, pack_down, pack_up, unpack_model

# Names of functions of `layer_densities`.
Allocation = Literal["uniform", "erk", "erk_sparsity"]
Scope = Literal["global", "layer"]


class Server(NamedTuple):
    """The global model, and the first round whose broadcast carries its mask."""

    model: SparseModel
    changed_at: Array  # shape=(), int32


@method
def spdst(
    model: Model,
    optimizer: Optimizer,
    *,
    prunable: masks.Globs = masks.KERNELS,
    index: str = "bitmap",
    keep_optimizer: bool = False,
) -> Algorithm:
    """Sensitivity-driven pre-defined sparse training: keeps the mask of stage 1.

    Without a first stage nothing is masked, and this is FedAvg on the whole model.

    Down and up: alive weights, dense leaves and statistics, float32; the positions only
    when a client first takes part.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      prunable: globs of the leaves that can be pruned; the others are dense even if
        stage 1 has pruned them.
      index: how positions are written, see `packets.Packet`.
      keep_optimizer: clients keep their optimizer's state between rounds.

    Raises:
      ValueError: a glob matches no leaf.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = spdst(model, optimizer, prunable=("*kernel",))
    """
    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)

    def train(key, ctx, received, client, batches):
        tx = optimizer(ctx.round)
        trained = local.train(key, loss_fn, tx, received, batches, opt_state=client)
        return trained, trained.opt_state

    def init_client(key, received, info):
        return local.init_optimizer(optimizer, model.shapes()[0], keep_optimizer)

    return training_within(select, index, train).replace(init_client)


@method
def pdst(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    allocation: Allocation = "uniform",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "bitmap",
) -> Algorithm:
    """Pre-defined sparse training: `spdst` with a random mask in place of stage 1's.

    Args:
      density: target share of alive prunable weights.
      allocation: how density is divided among layers: 'uniform', 'erk'
        (Erdős-Rényi kernel) or 'erk_sparsity' (as FedDST scales it).
      model, optimizer, prunable, index: as in `spdst`.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = pdst(model, optimizer, density=0.1, allocation="erk")
    """
    frozen = spdst(model, optimizer, prunable=prunable, index=index)
    select = masks.prunable(model.macs, prunable)

    def init(key, start):
        layers = getattr(layer_densities, allocation)(start.params, select, density)
        mask = masks.bernoulli(key, start.params, layers, select)
        return frozen.init(key, start._replace(mask=mask))

    return frozen.replace(init)


@method
def magnitude(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    scope: Scope = "global",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "bitmap",
    keep_optimizer: bool = False,
) -> Algorithm:
    """Prunes the model of the stage before by magnitude, then trains as `spdst`.

    It is meant for a stage after `fedavg`; its rounds fine-tune the weights that stay.
    The mask of the stage before is not used.

    Down and up: alive weights, dense leaves and statistics, float32; the positions only
    when a client first takes part.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of the prunable weights that stay; 1 trains as FedAvg.
      scope: weights among which the largest are sought: 'global' for all prunable ones
        together, or those of each 'layer'. Either can empty a layer.
      prunable, index, keep_optimizer: as in `spdst`.

    Raises:
      ValueError: an argument is out of range, or a glob matches no leaf.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> stage = magnitude(model, optimizer, density=0.1)
    """
    shared = {"index": index, "keep_optimizer": keep_optimizer}
    frozen = spdst(model, optimizer, prunable=prunable, **shared)
    select = masks.prunable(model.macs, prunable)

    def init(key, start):
        mask = largest_weights(start.params, density, select, scope)
        return frozen.init(key, start._replace(mask=mask))

    return frozen.replace(init)


def largest_weights(
    params: PyTree, density: float, select: PyTree, scope: Scope = "global"
) -> PyTree:
    """Returns the mask of the int(n density) largest |w| of n, or of each layer's.

    Args:
      params: float32.
      density, scope: as in `magnitude`.
      select: tree of Python bools, the prunable leaves.

    Returns:
      A bool tree, True on the leaves that are not selected. Of equal weights those with
      the lowest index stay, in the order of the tree.

    Example:
      >>> params = {"a": jnp.array([3.0, -4.0]), "b": jnp.array([1.0, 3.0])}
      >>> mask = largest_weights(params, 0.5, {"a": True, "b": True})
      >>> mask["a"].tolist(), mask["b"].tolist()
      ([True, True], [False, False])
    """
    sizes, scores = trees.layer_sizes(params, select), jax.tree.map(jnp.abs, params)
    if scope == "layer":  # static branch
        return top_k.keep_top(scores, layer_densities.counts(density, sizes), select)
    count = int(layer_densities.counts(density, sizes.sum()))
    return top_k.largest_overall(scores, count, select)


def training_within(
    select: PyTree, index: str, train: Callable, *, optional: bool = False
) -> Algorithm:
    """Returns the method whose clients train within the mask that came down.

    The mask is that of the stage before and stays, unless a method replaces `init` and
    `aggregate`, which returns weighted means here. Clients keep nothing.

    Args:
      select: tree of Python bools, the prunable leaves.
      index: how positions are written, see `packets.Packet`.
      train: `(key, ctx, received, client, batches) -> (trained, client)`, what a client
        makes of the model that it received, as `local.train` returns it. Its mask may
        be another, whose positions then travel.
      optional: whether data decides if a mask is new, so that a bit has to say so.
    """
    written = {"index": index, "optional": optional}

    def init(key, start):
        return Server(within(start, select), jnp.int32(0))

    def broadcast(key, ctx, server):
        return pack_down(ctx, server.model, server.changed_at, select, **written)

    def update(key, ctx, downlink, client, batches):
        received = unpack_model(downlink)
        trained, client = train(key, ctx, received, client, batches)
        uplink = pack_up(trained.model, received.mask, select, **written)
        return uplink, client, trained.metrics

    def aggregate(key, ctx, server, total):
        return server._replace(model=average(server.model, total)), {}

    def deploy(key, server):
        return {"global": server.model}

    return Algorithm(init, broadcast, update, summand, aggregate, deploy)


def layer_counts(allocation: Allocation, density: float, select: PyTree) -> Callable:
    """Returns how many entries of each layer are alive, by an allocation.

    Args:
      allocation, density: as in `pdst`.
      select: tree of Python bools, the prunable leaves.

    Returns:
      `counts(params, cut=0.0) -> [L] int32`, on the host: int(n_l d_l) at the density
      (1 - cut) d, for `cut` below 1.
    """

    def counts(params: PyTree, cut: float = 0.0) -> np.ndarray:
        allocate = getattr(layer_densities, allocation)
        shares = allocate(params, select, density * (1 - cut))
        return layer_densities.counts(shares, trees.layer_sizes(params, select))

    return counts


def within(start: SparseModel, select: PyTree) -> SparseModel:
    """Returns the model pruned by its mask; leaves that are not selected are dense."""
    mask = masks.total(start.params, select, trees.layers(start.mask, select))
    return masks.prune(start, mask)


def summand(
    ctx: Context, uplink: Message, weight: Callable = means.WEIGHTINGS["examples"]
) -> dict[str, PyTree]:
    """Returns a client's weights and statistics, by default weighted by its samples."""
    sent = unpack_model(uplink)
    return means.weighted_sum((sent.params, sent.stats), weight(ctx.client))


def summand_with_mask(ctx: Context, uplink: Message) -> dict[str, PyTree]:
    """Returns the `summand` of a client whose mask may differ from the server's."""
    kept = jax.tree.map(lambda m: m.astype(jnp.float32), unpack_model(uplink).mask)
    return {"mean": summand(ctx, uplink), "masks": kept}


def covered_summand(
    ctx: Context, uplink: Message, weight: Callable = means.WEIGHTINGS["examples"]
) -> dict[str, PyTree]:
    """Returns a client's weights where its mask has them, and its statistics."""
    sent, share = unpack_model(uplink), weight(ctx.client)
    return {
        "covered": means.covered_sum(sent.params, sent.mask, share),
        "stats": means.weighted_sum(sent.stats, share),
    }


def covered_average(ctx, old: SparseModel, total: PyTree) -> SparseModel:
    """Returns the mean over the clients that hold an entry, 0 where none does.

    The mask is the union of their masks. If nobody was heard, the old model stays.
    """
    union = jax.tree.map(lambda w: w > 0, total["covered"]["weight"])
    mean = means.covered_mean(total["covered"])
    stats = means.weighted_mean(total["stats"], old.stats)
    return means.if_heard(ctx, SparseModel(mean, union, stats), old)


def mean_on_union(ctx, old: SparseModel, total: PyTree) -> SparseModel:
    """Returns the mean of weights, zeros included; its mask is the union of masks.

    Args:
      ctx: as `aggregate` has it.
      old: what stays if nobody was heard.
      total: the sum of `summand_with_mask`.
    """
    new = average(old, total["mean"])
    union = jax.tree.map(lambda votes: votes > 0, total["masks"])
    return means.if_heard(ctx, new._replace(mask=union), old)


def move(round: Array, server: Any, new: SparseModel, **others: Any) -> Any:
    """Returns a server with its next model, and `changed_at` by the masks.

    Args:
      round: t, as `aggregate` has it.
      server: a NamedTuple with the fields `model`, which round t broadcast, and
        `changed_at`, such as `Server`.
      new: the model that round t + 1 will broadcast.
      **others: new values of other fields.
    """
    changed_at = last_change(round, server.model.mask, new.mask, server.changed_at)
    return server._replace(model=new, changed_at=changed_at, **others)


def move_if_heard(ctx, server: Any, new: SparseModel, **others: Any) -> Any:
    """Returns what `move` does, or the old server if nobody was heard."""
    return means.if_heard(ctx, move(ctx.round, server, new, **others), server)


def add_mean(old: SparseModel, total: PyTree) -> SparseModel:
    """Returns a model plus the mean of the cohort's changes, with the old mask."""
    zeros, _ = means.zeros(total)
    change, stats = means.weighted_mean(total, (zeros, old.stats))
    params = jax.tree.map(jnp.add, old.params, change)
    return old._replace(params=params, stats=stats)


def average(old: SparseModel, total: PyTree) -> SparseModel:
    """Returns the mean of the cohort's models, with the old mask."""
    params, stats = means.weighted_mean(total, (old.params, old.stats))
    return old._replace(params=params, stats=stats)
