"""Fine-tuning: each client trains the common model further on its own data.

Wang et al., "Federated Evaluation of On-device Personalization", 2019,
https://arxiv.org/abs/1910.10252. A baseline for every method with personal models.
"""

import optax

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import NonNegative
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local
from sparsefl_jax.wire.messages import pack_up, unpack_model


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
