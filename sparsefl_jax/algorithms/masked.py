"""Federated averaging of the weights that a mask keeps, and of nothing else.

The mask is that of the start and stands. SPDST and PDST of FLASH are this method, on
the mask of stage 1 and on a random one. After `snip` and `grasp` it trains what they
kept; methods whose mask moves replace some of its functions.

Babakniya et al., "Revisiting Sparsity Hunting in Federated Learning: Why does Sparsity
Consensus Matter?", TMLR 2023, https://arxiv.org/abs/2208.13092.
"""

from typing import NamedTuple

import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import Array, SparseModel
from sparsefl_jax.sparsity import layer_densities, masks, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import pack_down, pack_up, unpack_model

KERNELS = ("*kernel",)
ALLOCATIONS = {"uniform": layer_densities.uniform, "erk": layer_densities.erk}


class Server(NamedTuple):
    """The global model, and the first round whose broadcast carries its mask."""

    model: SparseModel
    since: Array  # shape=(), int32


def spdst(
    model,
    optimizer,
    *,
    prunable=KERNELS,
    index: str = "bitmap",
    keep_optimizer: bool = False,
) -> Algorithm:
    """Sensitivity-driven pre-defined sparse training: the mask of stage 1, frozen.

    Without a stage before it there is no mask, and this is FedAvg on the whole model.

    Down and up: alive weights, dense leaves, statistics; positions at a client's first
    participation only.

    Args:
      model: the network and its loss, a `Model`.
      optimizer: the clients', as `local.make_optimizer` returns it.
      prunable: globs of the leaves that can be pruned; the others are dense, though
        stage 1 should have pruned them.
      index: how positions are written, see `packets.Packet`.
      keep_optimizer: clients keep their optimizer's state from round to round.

    Raises:
      ValueError: a glob matches no leaf.
    """
    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)

    def init(key, start):
        del key
        return Server(within(start, select), jnp.int32(0))

    def init_client(key, server, info):
        del key, info
        return local.init_optimizer(optimizer, server.model.params, keep_optimizer)

    def broadcast(key, ctx, server):
        del key
        return pack_down(ctx, server.model, server.since, select, index=index)

    def update(key, ctx, downlink, client, batches):
        received, tx = unpack_model(downlink), optimizer(ctx.round)
        trained = local.train(key, loss_fn, tx, received, batches, opt_state=client)
        uplink = pack_up(trained.model, received.mask, select, index=index)
        return uplink, trained.opt_state, trained.metrics

    def contribute(ctx, uplink):
        sent = unpack_model(uplink)
        return means.weighted_sum((sent.params, sent.stats), ctx.client.num_examples)

    def aggregate(key, round, server, total):
        del key, round
        return server._replace(model=averaged(server.model, total)), {}

    def deploy(key, server):
        del key
        return {"global": server.model}

    return Algorithm(
        init, broadcast, update, contribute, aggregate, deploy, init_client
    )


def pdst(
    model,
    optimizer,
    *,
    density: float,
    allocation: str = "uniform",
    prunable=KERNELS,
    index: str = "bitmap",
) -> Algorithm:
    """Pre-defined sparse training: a random mask, frozen; `spdst` without stage 1.

    Args:
      density: target share of alive prunable weights, in (0, 1].
      allocation: densities of the layers: 'uniform' or 'erk'.
      model, optimizer, prunable, index: as in `spdst`.

    Raises:
      ValueError: an argument is out of range.
    """
    if not 0 < density <= 1:
        raise ValueError(f"density={density}, expected in (0, 1]")
    if allocation not in ALLOCATIONS:
        raise ValueError(
            f"allocation={allocation!r}, expected one of {', '.join(ALLOCATIONS)}"
        )
    frozen = spdst(model, optimizer, prunable=prunable, index=index)
    select = masks.prunable(model.macs, prunable)

    def init(key, start):
        layers = ALLOCATIONS[allocation](start.params, select, density)
        mask = masks.bernoulli(key, start.params, layers, select)
        return frozen.init(key, start._replace(mask=mask))

    return frozen._replace(init=init)


def within(start: SparseModel, select) -> SparseModel:
    """Returns the model pruned by its mask; leaves that are not selected are dense."""
    layers = trees.layers(start.mask, select)
    mask = trees.replace_layers(masks.full(start.params), select, layers)
    return SparseModel(masks.apply(start.params, mask), mask, start.stats)


def averaged(old: SparseModel, total) -> SparseModel:
    """Returns the mean of what the cohort sent, on the old mask."""
    params, stats = means.weighted_mean(total, (old.params, old.stats))
    return SparseModel(params, old.mask, stats)
