"""Federated averaging, with any server optimizer on the averaged update.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, https://arxiv.org/abs/1602.05629. Server optimizers: Reddi et al.,
"Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import EmptyState, PyTree, SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet


class Server(NamedTuple):
    """The global model and the server optimizer's state."""

    params: PyTree  # float32
    stats: PyTree  # float32
    opt_state: PyTree


def fedavg(
    loss_fn,
    optimizer,
    *,
    server_optimizer: optax.GradientTransformation | None = None,
    keep_optimizer: bool = False,
    weighting: str = "examples",
) -> Algorithm:
    """FedAvg: clients train the whole model, the server averages what they send.

    Down and up: all parameters and normalisation statistics, float32.

    Args:
      loss_fn: as `local.cross_entropy` returns it.
      optimizer: the clients', as `local.make_optimizer` returns it.
      server_optimizer: applied to the negated mean update as if it were a gradient:
        `optax.adam(0.01)` is FedAdam, `optax.yogi(0.01)` FedYogi. None: plain mean.
      keep_optimizer: clients keep their optimizer's state from round to round.
      weighting: what a client's part of the mean is proportional to, see
        `aggregate.WEIGHTINGS`.

    Raises:
      ValueError: the weighting is unknown.

    Example:
      >>> import optax
      >>> fedadam = fedavg(None, None, server_optimizer=optax.adam(0.01))
    """
    server_tx = server_optimizer or optax.sgd(1.0)
    weight = means.weigh(weighting)

    def init(key, model: SparseModel):
        del key
        return Server(model.params, model.stats, server_tx.init(model.params))

    def init_client(key, server, info):
        del key, info
        return optimizer(0).init(server.params) if keep_optimizer else EmptyState()

    def broadcast(key, ctx, server):
        del key, ctx
        return {"params": Packet(server.params), "stats": Packet(server.stats)}

    def update(key, ctx, downlink, client, batches):
        params = downlink["params"].values
        tx = optimizer(ctx.round)
        state = local.start(
            tx, params, downlink["stats"].values, client if keep_optimizer else None
        )
        state = local.train(key, loss_fn, tx, state, batches)
        delta = jax.tree.map(jnp.subtract, state.params, params)
        uplink = {"delta": Packet(delta), "stats": Packet(state.stats)}
        work = local.dense_work(state.sums["count"], params)
        client = state.opt_state if keep_optimizer else client
        return uplink, client, {**state.sums, "work": work}

    def contribute(ctx, uplink):
        values = {name: packet.values for name, packet in uplink.items()}
        return means.weighted_sum(values, weight(ctx.client))

    def aggregate(key, ctx, server, total):
        del key, ctx
        still = jax.tree.map(jnp.zeros_like, server.params)
        mean = means.weighted_mean(total, {"delta": still, "stats": server.stats})
        gradient = jax.tree.map(jnp.negative, mean["delta"])
        step, opt_state = server_tx.update(gradient, server.opt_state, server.params)
        params = optax.apply_updates(server.params, step)
        return Server(params, mean["stats"], opt_state), {}

    def deploy(key, server, client, info):
        del key, client
        if info is not None:  # static branch: no personal models
            return {}
        return {
            "global": SparseModel(
                server.params, masks.full(server.params), server.stats
            )
        }

    return Algorithm(
        init, init_client, broadcast, update, contribute, aggregate, deploy
    )
