"""Rounds of Complement Sparsification whose clients send a given share of a layer."""

import jax.numpy as jnp
import numpy as np

from sparsefl_jax.algorithms import complement
from sparsefl_jax.training import local
from tests import silent
from tests.by_hand import model_of

CLIENTS = 10


def complement_network(name):
    shape, classes = {"ic": ((28, 28, 1), 62), "sa": ((768,), 3)}[name]
    return silent.network(name, classes, shape)


def outputs(model, layer) -> int:
    return silent.shapes(model).params[layer]["bias"].size


def rounds_of(model, sparsity, p) -> silent.Rounds:
    """Round 0, dense, after which the server prunes, and round 1.

    Args:
      model: as `silent.network` gives it.
      sparsity: by layer, the share of its kernel that the clients of round 1 together
        do not send.
      p: the server's.
    """
    counts = {}
    for layer, share in sparsity.items():
        entries = silent.shapes(model).params[layer]["kernel"].size
        counts[layer] = jnp.asarray(spread(1 - share, entries), jnp.int32)
    step = local.make_optimizer("sgd", learning_rate=1.0)
    method = complement(model_of(moves(counts), model.macs), step, density=1 - p)
    return silent.rounds(model, method, 2, clients=CLIENTS)


def moves(counts):
    """A loss that has so many zeros of every kernel trained by every client.

    Args:
      counts: [clients] by layer.
    """

    def loss_fn(key, params, stats, x, y, weight):
        del key, x
        loss = jnp.float32(0)
        for layer, number in counts.items():
            kernel = params[layer]["kernel"].reshape(-1)
            chosen = (kernel == 0) & (jnp.cumsum(kernel == 0) <= number[y[0]])
            loss += jnp.sum(jnp.where(chosen, kernel, 0))
        sums = {"loss": loss, "correct": loss, "count": jnp.sum(weight)}
        return loss, (stats, sums)

    return loss_fn


def spread(share, entries):
    """How many entries each client sends, that together they send a share of all."""
    total = round(share * entries * CLIENTS)
    return np.array([total // CLIENTS + (k < total % CLIENTS) for k in range(CLIENTS)])
