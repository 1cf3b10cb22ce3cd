"""Models of clients' own beside the common one: Ditto and fine-tuning.

In Ditto a client trains its own model, pulled towards the global one, beside FedAvg: Li
et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
https://arxiv.org/abs/2012.04221, Algorithm 1.

In fine-tuning it trains the common model further on its own data, a baseline for every
method with personal models: Wang et al., "Federated Evaluation of On-device
Personalization", 2019, https://arxiv.org/abs/1910.10252.
"""

from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from sparsefl_jax.algorithms import masked
from sparsefl_jax.algorithms.fedavg import add_proximal_term, fedavg
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, NonNegative, PyTree, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import pack_up, unpack_model


class Client(NamedTuple):
    """A client's own model; zeros until the client is first drawn."""

    params: PyTree  # float32
    stats: PyTree  # float32
    drawn: Array  # shape=(), bool


@method
def ditto(
    model: Model,
    optimizer: Optimizer,
    *,
    lam: NonNegative = 1.0,
    personal_epochs: Annotated[int, "[1, 10000]"] | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """FedAvg, beside which a client trains v_i on its loss plus lam / 2 |v_i - w|^2.

    w is the model that the client received in this round, and v_i starts from the first
    one that it received. The server's model is that of `fedavg` with the same
    arguments, bit for bit, and so are the packets, float32: v_i does not travel. A
    client trains v_i on the same batches in the same order as w, with the same dropout,
    and with an optimizer that starts anew in every round; the work counts both. A
    client that was never drawn has no v_i. It is evaluated with the server's model,
    which it would have to receive first.

    Args:
      model: the network and its loss.
      optimizer: the clients', for both models, as `local.make_optimizer` returns it.
      lam: strength of the pull; the paper tries 0.05 to 2. With 0 v_i is trained
        independently of w.
      personal_epochs: local epochs for v_i; they repeat the batches of the stage's
        epochs in turn. None for as many as the stage has.
      server_optimizer, weighting: as in `fedavg`.

    Returns:
      The method. A client keeps v_i and its normalisation statistics.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = ditto(model, optimizer, lam=0.1)
    """
    loss_fn = local.objective(model)
    shared = {"server_optimizer": server_optimizer, "weighting": weighting}
    averaging = fedavg(model, optimizer, **shared)

    def init_client(key, received, info):
        zeros = optax.tree.zeros_like(model.shapes())
        return Client(*zeros, drawn=jnp.zeros((), bool))

    def update(key, ctx, downlink, client, batches):
        uplink, _, metrics = averaging.update(key, ctx, downlink, local.ANEW, batches)
        received = downlink["params"].values, downlink["stats"].values
        params, stats = _read_own(client, received)
        pulled = add_proximal_term(loss_fn, lam, received[0])
        count = batches.order.shape[0]
        epochs = np.arange(personal_epochs or count) % count
        order, weight = batches.order[epochs], batches.weight[epochs]
        again = batches._replace(order=order, weight=weight)
        start = SparseModel(params, None, stats)
        # The same key as above: dropout of the same units, as well as the same batches.
        own = local.train(key, pulled, optimizer(ctx.round), start, again)
        work = optax.tree.add(metrics["work"], own.metrics["work"])
        client = Client(own.model.params, own.model.stats, jnp.ones((), bool))
        return uplink, client, metrics | {"work": work}

    def personalize(key, server, client, info):
        params, stats = _read_own(client, (server.params, server.stats))
        return {"personal": masks.dense(params, stats)}

    return averaging.replace(init_client, update, personalize)


@method
def finetune(
    model: Model,
    optimizer: Optimizer,
    *,
    scale: NonNegative = 1.0,
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
) -> Algorithm:
    """Trains a model for each client, from the one that the stage before deploys.

    It is meant for the last stage of a run: one round in which all clients take part.
    The server's model does not change. In further rounds a client continues with its
    own model. A client that was never drawn uses the common model.

    Down: before a client's first round the alive weights with their positions, dense
    leaves and statistics, float32. With `index='packed'` the positions of a leaf of
    which nothing is pruned take a few bits. Up: nothing.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      scale: factor of the optimizer's steps: a run's stages share an optimizer, whose
        schedule starts anew in this one.
      prunable: globs of the leaves that can be pruned; the others are dense.
      index: how positions are written, see `packets.Packet`.

    Returns:
      The method. A client keeps its weights, statistics and mask.

    Raises:
      ValueError: `scale` is out of range, or a glob matches no leaf.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> last = sfl.Stage(finetune(model, optimizer, scale=0.1), 1, 100, epochs=5)
    """
    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)

    def init(key, start):
        return masked.within(start, select)

    def send_once(server):
        return pack_up(server, None, select, index=index)

    def init_client(key, received, info):
        return unpack_model(received)

    def broadcast(key, ctx, server):
        return {}

    def update(key, ctx, downlink, client, batches):
        tx = optax.chain(optimizer(ctx.round), optax.scale(scale))
        trained = local.train(key, loss_fn, tx, client, batches)
        return {}, trained.model, trained.metrics

    def contribute(ctx, uplink):
        return ()

    def aggregate(key, ctx, server, total):
        return server, {}

    def deploy(key, server):
        return {"global": server}

    def personalize(key, server, client, info):
        return {"personal": client}

    steps = init, broadcast, update, contribute, aggregate, deploy, init_client
    return Algorithm(*steps, personalize, send_once=send_once)


def _read_own(client: Client, other: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
    """Returns a client's own parameters and statistics, or others before its first."""
    return optax.tree.where(client.drawn, (client.params, client.stats), other)
