"""Federated averaging, with any server optimizer on the averaged update, and FedProx.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, https://arxiv.org/abs/1602.05629. Server optimizers: Reddi et al.,
"Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295. FedProx,
whose proximal term pulls local training towards the global model: Li et al., "Federated
Optimization in Heterogeneous Networks", MLSys 2020, https://arxiv.org/abs/1812.06127.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Message, Optimizer, method
from sparsefl_jax.core.types import NonNegative, PyTree, ServerContext, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import unpack_params
from sparsefl_jax.wire.packets import Packet


class Server(NamedTuple):
    """The global model and the server optimizer's state."""

    params: PyTree  # float32
    stats: PyTree  # float32
    opt_state: PyTree


@method
def fedavg(
    model: Model,
    optimizer: Optimizer,
    *,
    server_optimizer: optax.GradientTransformation | None = None,
    keep_optimizer: bool = False,
    weighting: means.Weighting = "examples",
    prune: Share | None = None,
) -> Algorithm:
    """FedAvg: clients train the whole model, the server averages what they send.

    Down and up: all parameters and normalisation statistics, float32.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      server_optimizer: an optax optimizer that takes the negated mean update for a
        gradient: `optax.adam(0.01)` gives FedAdam, `optax.yogi(0.01)` FedYogi. None
        adds the mean update.
      keep_optimizer: clients keep their optimizer's state between rounds.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.
      prune: deploys a second model, 'pruned', for evaluations: the common one without
        all but this share of the weights of its kernels, the largest by magnitude, see
        `magnitude`. None deploys no other model.

    Raises:
      ValueError: `model` is no `Model`, or an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> fedadam = fedavg(model, optimizer, server_optimizer=optax.adam(0.01))
    """
    weight, loss_fn = means.WEIGHTINGS[weighting], local.objective(model)
    server_tx = server_optimizer or optax.sgd(1.0)
    select = masks.prunable(model.macs, masks.KERNELS) if prune is not None else {}

    def init(key, start):
        return Server(start.params, start.stats, server_tx.init(start.params))

    def init_client(key, received, info):
        return local.init_optimizer(optimizer, model.shapes()[0], keep_optimizer)

    def broadcast(key, ctx, server):
        return {"params": Packet(server.params), "stats": Packet(server.stats)}

    def update(key, ctx, downlink, client, batches):
        return fit(key, loss_fn, optimizer(ctx.round), downlink, client, batches)

    def contribute(ctx, uplink):
        values = {name: packet.values for name, packet in uplink.items()}
        return means.weighted_sum(values, weight(ctx.client))

    def aggregate(key, ctx, server, total):
        mean = means.weighted_mean(total, unmoved(server, total))
        step, opt_state = server_step(ctx, server_tx, server, mean["delta"])
        params = optax.apply_updates(server.params, step)
        return Server(params, mean["stats"], opt_state), {}

    def deploy(key, server):
        whole = masks.dense(server.params, server.stats)
        if prune is None:  # static branch
            return {"global": whole}
        mask = masked.largest_weights(server.params, prune, select)
        return {"global": whole, "pruned": masks.pruned(whole, mask)}

    steps = init, broadcast, update, contribute, aggregate, deploy, init_client
    return Algorithm(*steps)


@method
def fedprox(
    model: Model,
    optimizer: Optimizer,
    *,
    mu: NonNegative = 0.01,
    server_optimizer: optax.GradientTransformation | None = None,
    keep_optimizer: bool = False,
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """FedAvg whose local loss has the term mu / 2 |w - w_global|^2.

    w_global is the model that the client received in this round. The packets are those
    of `fedavg`.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      mu: strength of the proximal term.
      server_optimizer, keep_optimizer, weighting: as in `fedavg`.

    Raises:
      ValueError: mu is out of range, or the weighting is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedprox(model, optimizer, mu=0.001)
    """
    loss_fn = local.objective(model)
    shared = {"keep_optimizer": keep_optimizer, "weighting": weighting}
    averaging = fedavg(model, optimizer, server_optimizer=server_optimizer, **shared)

    def update(key, ctx, downlink, client, batches):
        pulled = proximal(loss_fn, mu, downlink["params"].values)
        return fit(key, pulled, optimizer(ctx.round), downlink, client, batches)

    return averaging.replace(update=update)


def unmoved(server: Server, total: PyTree) -> PyTree:
    """Returns the means of a round in which nobody was heard: changes of 0."""
    return means.zeros(total) | {"stats": server.stats}


def server_step(
    ctx: ServerContext, tx: optax.GradientTransformation, server: Server, delta: PyTree
) -> tuple[PyTree, PyTree]:
    """Returns the server optimizer's step along an update, and its new state.

    If nobody was heard the step is 0, also that of momentum, and the state stays.
    """
    gradient = jax.tree.map(jnp.negative, delta)
    new = tx.update(gradient, server.opt_state, server.params)
    return means.if_heard(ctx, new, (optax.tree.zeros_like(delta), server.opt_state))


def fit(key, loss_fn, tx, downlink, client, batches) -> tuple[Message, PyTree, dict]:
    """Trains the received model; returns its change, the client's state and metrics."""
    start = unpack_params(downlink)
    trained = local.train(key, loss_fn, tx, start, batches, opt_state=client)
    delta = jax.tree.map(jnp.subtract, trained.model.params, start.params)
    uplink = {"delta": Packet(delta), "stats": Packet(trained.model.stats)}
    return uplink, trained.opt_state, trained.metrics


def proximal(loss_fn: Callable, mu: float, anchor: PyTree) -> Callable:
    """Returns a loss as `local.objective` has it, plus mu / 2 |w - anchor|^2."""

    def pulled(key, params, *rest):
        loss, others = loss_fn(key, params, *rest)
        gaps = jax.tree.map(lambda p, a: jnp.sum((p - a) ** 2), params, anchor)
        return loss + mu / 2 * sum(jax.tree.leaves(gaps)), others

    return pulled
