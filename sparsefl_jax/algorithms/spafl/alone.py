"""Local: SpaFL's clients without a server.

The baseline of Kim et al., "SpaFL", NeurIPS 2024, https://arxiv.org/abs/2406.00431,
Table 2: weights and thresholds are trained, nothing travels, eq. (13) is left out.
"""

from sparsefl_jax.algorithms.spafl import client_training
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks


def local_only(
    loss_fn,
    optimizer,
    *,
    alpha: float = 0.002,
    prunable=("*kernel",),
    ste: str = "identity",
    reset: str = "same",
    warmup: bool = False,
    clamp: bool = False,
    keep_optimizer: bool = False,
) -> Algorithm:
    """Every client trains its own sparse model, in the rounds in which it is drawn.

    Nothing travels. The arguments are those of `spafl`; with `alpha=0` the thresholds
    follow the loss alone.

    Raises:
      ValueError: an argument is out of range, or no kernel matches.

    Example:
      >>> method = local_only(None, None, alpha=0.001)
    """
    options = client_training.Options(
        alpha, prunable, ste, reset, warmup, clamp, False, keep_optimizer
    )
    client_training.check(options)

    def init(key, model: SparseModel):
        del key
        return model

    def init_client(key, server, info):
        del key, info
        return client_training.start(server, optimizer, options)

    def broadcast(key, ctx, server):
        del key, ctx, server
        return {}

    def update(key, ctx, downlink, client, batches):
        del downlink
        client = client_training.revived(client)
        client, metrics = client_training.train(
            key, ctx, client, batches, loss_fn, optimizer, options
        )
        return {}, client, metrics

    def contribute(ctx, uplink):
        del ctx, uplink
        return ()

    def aggregate(key, ctx, server, total):
        del key, ctx, total
        return server, {}

    def deploy(key, server, client, info):
        del key
        if info is not None:  # static branch
            return {"personal": client_training.personal(client)}
        return {"newcomer": server._replace(mask=masks.full(server.params))}

    return Algorithm(
        init, init_client, broadcast, update, contribute, aggregate, deploy
    )
