"""Federated averaging, and what keeps its clients from drifting: FedProx and SCAFFOLD.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, https://arxiv.org/abs/1602.05629. Server optimizers: Reddi et al.,
"Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.

FedProx has a proximal term, which pulls local training towards the global model: Li et
al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
https://arxiv.org/abs/1812.06127.

SCAFFOLD has control variates, which take the drift out of the clients' steps:
Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, https://arxiv.org/abs/1910.06378, Algorithm 1 with option II.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core.algorithm import Algorithm, Message, Optimizer, method
from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.core.types import Count, NonNegative, PyTree, ServerContext, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet, unpack_params


class Server(NamedTuple):
    """The global model and the server optimizer's state."""

    params: PyTree  # float32
    stats: PyTree  # float32
    opt_state: PyTree


class Controlled(NamedTuple):
    """The global model and the mean of all clients' control variates."""

    params: PyTree  # float32
    stats: PyTree  # float32
    opt_state: PyTree
    control: PyTree  # float32 like the parameters: c


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
        mean = means.weighted_mean(total, keep_model(server, total))
        step, opt_state = server_step(ctx, server_tx, server, mean["delta"])
        params = optax.apply_updates(server.params, step)
        return Server(params, mean["stats"], opt_state), {}

    def deploy(key, server):
        whole = masks.dense(server.params, server.stats)
        if prune is None:  # static branch
            return {"global": whole}
        mask = masked.largest_weights(server.params, prune, select)
        return {"global": whole, "pruned": masks.prune(whole, mask)}

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
        objective = add_proximal_term(loss_fn, mu, downlink["params"].values)
        return fit(key, objective, optimizer(ctx.round), downlink, client, batches)

    return averaging.replace(update)


@method
def scaffold(
    model: Model,
    optimizer: Optimizer,
    *,
    clients: Count,
    server_optimizer: optax.GradientTransformation | None = None,
) -> Algorithm:
    """FedAvg whose local gradients are corrected by g - c_i + c.

    c_i estimates the gradient of client i and c that of all clients. After tau_i steps
    at rate eta from x to y, c_i' = c_i - c + (x - y) / (tau_i eta); a client without a
    step, or with a rate of 0, keeps c_i. All variates start at 0, so the first round is
    FedAvg's with equal weights. The clients of a round have equal weights, and c moves
    by the sum of their changes divided by the number of all clients: it stays the mean
    of all c_i.

    Down: the model and c. Up: the changes of the model and of c_i. Both: normalisation
    statistics. All are float32, so the parameters take twice as many bits as in FedAvg.
    A client keeps c_i. If its uplink was lost, it keeps the old one, because c lacks
    the change.

    Args:
      model: the network and its loss.
      optimizer: the clients', `local.make_optimizer` of plain SGD, with any schedule
        and weight decay. With other optimizers (x - y) / (tau_i eta) is not a mean of
        gradients.
      clients: number of all clients.
      server_optimizer: an optax optimizer that takes the negated mean update for a
        gradient: `optax.sgd(0.5)` has the paper's eta_g of 0.5. None adds the update.

    Raises:
      ValueError: the optimizer is not plain SGD, `clients` is out of range, or the run
        has another number of clients.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = scaffold(model, optimizer, clients=100)
    """
    loss_fn, rate = local.objective(model), _rate(optimizer)
    shared = {"server_optimizer": server_optimizer, "weighting": "uniform"}
    averaging = fedavg(model, optimizer, **shared)

    def init(key, start):
        zeros = optax.tree.zeros_like(start.params)
        return Controlled(*averaging.init(key, start), control=zeros)

    def init_client(key, received, info):
        return optax.tree.zeros_like(model.shapes()[0])

    def broadcast(key, ctx, server):
        control = {"control": Packet(server.control)}
        return averaging.broadcast(key, ctx, server) | control

    def update(key, ctx, downlink, client, batches):
        drift = optax.tree.sub(client, downlink["control"].values)
        corrected = optax.stateless(lambda grads, _: optax.tree.sub(grads, drift))
        tx = optax.chain(corrected, optimizer(ctx.round))
        uplink, _, metrics = fit(key, loss_fn, tx, downlink, local.ANEW, batches)
        length = local.own_steps(batches).astype(jnp.float32) * rate(ctx.round)

        def renew(own, drift, delta):
            safe = jnp.where(length > 0, length, 1.0)
            return jnp.where(length > 0, drift - delta / safe, own)

        new = jax.tree.map(renew, client, drift, uplink["delta"].values)
        change = {"control": Packet(optax.tree.sub(new, client))}
        return uplink | change, new, metrics

    def aggregate(key, ctx, server, total):
        averaged, metrics = averaging.aggregate(key, ctx, server, total)
        change = total["sum"]["control"]
        control = jax.tree.map(lambda c, d: c + d / clients, server.control, change)
        return Controlled(*averaged, control=control), metrics

    def drop_uplink(ctx, before, after):
        return before

    changed = init, init_client, broadcast, update, aggregate, drop_uplink
    return averaging.replace(*changed, clients=clients)


def keep_model(server: Server, total: PyTree) -> PyTree:
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
    delta = optax.tree.sub(trained.model.params, start.params)
    uplink = {"delta": Packet(delta), "stats": Packet(trained.model.stats)}
    return uplink, trained.opt_state, trained.metrics


def add_proximal_term(loss_fn: Callable, mu: float, anchor: PyTree) -> Callable:
    """Returns a loss as `local.objective` has it, plus mu / 2 |w - anchor|^2."""

    def objective(key, params, *rest):
        loss, others = loss_fn(key, params, *rest)
        gaps = jax.tree.map(lambda p, a: jnp.sum((p - a) ** 2), params, anchor)
        return loss + mu / 2 * sum(jax.tree.leaves(gaps)), others

    return objective


def _rate(optimizer: Optimizer) -> Callable:
    """Returns the rate of plain SGD as a function of the round; refuses any other."""
    name, settings = (getattr(optimizer, key, None) for key in ("name", "settings"))
    if name != "sgd" or settings is None:
        raise UserError(f"optimizer.name={name!r}, expected 'sgd' with scaffold")
    for field, value in settings.items():
        plain = field in ("learning_rate", "schedule", "weight_decay")
        if value and not plain:  # variates are gradients in plain SGD alone
            raise UserError(f"optimizer.{field}={value!r}, expected none with scaffold")
    check("optimizer.learning_rate", settings["learning_rate"], float)
    return optimizer.rate
