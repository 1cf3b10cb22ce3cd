"""SCAFFOLD: control variates take the clients' drift out of their steps.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, https://arxiv.org/abs/1910.06378, Algorithm 1 with option II.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms.fedavg import fedavg, fit
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.core.types import Count, PyTree
from sparsefl_jax.models.base import Model
from sparsefl_jax.training import local
from sparsefl_jax.wire.packets import Packet


class Server(NamedTuple):
    """The global model and the mean of all clients' control variates."""

    params: PyTree  # float32
    stats: PyTree  # float32
    opt_state: PyTree
    control: PyTree  # float32 like the parameters: c


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
        return Server(*averaging.init(key, start), control=zeros)

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
        steps = jnp.sum(jnp.any(batches.weight > 0, axis=-1), dtype=jnp.float32)
        length = steps * rate(ctx.round)

        def renewed(own, drift, delta):
            safe = jnp.where(length > 0, length, 1.0)
            return jnp.where(length > 0, drift - delta / safe, own)

        new = jax.tree.map(renewed, client, drift, uplink["delta"].values)
        change = {"control": Packet(optax.tree.sub(new, client))}
        return uplink | change, new, metrics

    def aggregate(key, ctx, server, total):
        averaged, metrics = averaging.aggregate(key, ctx, server, total)
        moves = server.control, total["sum"]["control"]
        control = jax.tree.map(lambda c, change: c + change / clients, *moves)
        return Server(*averaged, control=control), metrics

    steps = {"init": init, "broadcast": broadcast, "update": update}
    keeps = {"init_client": init_client, "drop_uplink": lambda ctx, before, _: before}
    return averaging.replace(**steps, aggregate=aggregate, **keeps, clients=clients)


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
    return settings["schedule"] or (lambda round: settings["learning_rate"])
