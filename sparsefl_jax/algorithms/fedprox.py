"""FedProx: a proximal term pulls local training towards the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
https://arxiv.org/abs/1812.06127.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.algorithms.fedavg import fedavg, fit
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import NonNegative, PyTree
from sparsefl_jax.models.base import Model
from sparsefl_jax.training import local, means


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


def proximal(loss_fn: Callable, mu: float, anchor: PyTree) -> Callable:
    """Returns a loss as `local.objective` has it, plus mu / 2 |w - anchor|^2."""

    def pulled(key, params, *rest):
        loss, others = loss_fn(key, params, *rest)
        gaps = jax.tree.map(lambda p, a: jnp.sum((p - a) ** 2), params, anchor)
        return loss + mu / 2 * sum(jax.tree.leaves(gaps)), others

    return pulled
