"""FLASH with a mask that never changes: SPDST, and PDST without stage 1."""

import jax.numpy as jnp

from sparsefl_jax.algorithms.flash import surgery
from sparsefl_jax.algorithms.flash.common import KERNELS, Server, check, no_client
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import layer_densities, masks
from sparsefl_jax.training import means
from sparsefl_jax.wire.messages import pack_down, pack_up, unpack_model

ALLOCATIONS = {"uniform": layer_densities.uniform, "erk": layer_densities.erk}


def spdst(
    loss_fn,
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
      loss_fn: as `local.cross_entropy` returns it.
      optimizer: the clients', as `local.make_optimizer` returns it.
      prunable: globs of the leaves that can be pruned; the others are dense, though
        stage 1 should have pruned them.
      index: how positions are written, see `codec.Packet`.
      keep_optimizer: clients keep their optimizer's state from round to round.
    """

    def init(key, model):
        del key
        select = masks.prunable(model.params, prunable)
        layers = masks.layers(model.mask, select)
        mask = masks.replace_layers(masks.full(model.params), select, layers)
        params = masks.apply(model.params, mask)
        return Server(SparseModel(params, mask, model.stats), jnp.int32(0))

    def init_client(key, server, info):
        if not keep_optimizer:  # static branch
            return no_client(key, server, info)
        return optimizer(0).init(server.model.params)

    def broadcast(key, ctx, server):
        del key
        select = masks.prunable(server.model.params, prunable)
        return pack_down(ctx, server.model, server.since, select, index=index)

    def update(key, ctx, downlink, client, batches):
        model = unpack_model(downlink)
        select = masks.prunable(model.params, prunable)
        kept = client if keep_optimizer else None
        state, work = surgery.masked_train(
            key, loss_fn, optimizer(ctx.round), model, batches, kept
        )
        trained = SparseModel(state.params, model.mask, state.stats)
        uplink = pack_up(trained, model.mask, select, index=index)
        client = state.opt_state if keep_optimizer else client
        return uplink, client, {**state.sums, "work": work}

    def contribute(ctx, uplink):
        sent = unpack_model(uplink)
        return means.weighted_sum((sent.params, sent.stats), ctx.client.num_examples)

    def aggregate(key, ctx, server, total):
        del key, ctx
        old = server.model
        params, stats = means.weighted_mean(total, (old.params, old.stats))
        return server._replace(model=SparseModel(params, old.mask, stats)), {}

    def deploy(key, server, client, info):
        del key, client
        return {} if info is not None else {"global": server.model}

    return Algorithm(
        init, init_client, broadcast, update, contribute, aggregate, deploy
    )


def pdst(
    loss_fn,
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
      loss_fn, optimizer, prunable, index: as in `spdst`.
    """
    check(density=density)
    if allocation not in ALLOCATIONS:
        raise ValueError(
            f"allocation={allocation!r}, expected one of {', '.join(ALLOCATIONS)}"
        )
    frozen = spdst(loss_fn, optimizer, prunable=prunable, index=index)

    def init(key, model):
        select = masks.prunable(model.params, prunable)
        layers = ALLOCATIONS[allocation](model.params, select, density)
        mask = masks.bernoulli(key, model.params, layers, select)
        return frozen.init(key, model._replace(mask=mask))

    return frozen._replace(init=init)
