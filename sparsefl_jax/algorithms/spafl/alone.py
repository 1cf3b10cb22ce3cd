"""Local: SpaFL's clients without a server.

The baseline of Kim et al., "SpaFL", NeurIPS 2024, https://arxiv.org/abs/2406.00431,
Table 2: weights and thresholds are trained, nothing travels, eq. (13) is left out.
"""

from sparsefl_jax.algorithms.spafl import client_training
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local


def local_only(
    model,
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
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.make_optimizer()
      >>> method = local_only(model, optimizer, alpha=0.001)
    """
    options = client_training.Options(
        alpha, ste, reset, warmup, clamp, False, keep_optimizer
    )
    client_training.check(options)
    loss_fn = local.objective(model)
    select = masks.prunable(model.macs, prunable)

    def init(key, start: SparseModel):
        del key
        return start

    def init_client(key, server, info):
        del key, info
        return client_training.start(server, select, optimizer, options)

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

    def aggregate(key, round, server, total):
        del key, round, total
        return server, {}

    def deploy(key, server):
        del key
        return {"newcomer": server._replace(mask=masks.full(server.params))}

    return Algorithm(
        init,
        broadcast,
        update,
        contribute,
        aggregate,
        deploy,
        init_client,
        client_training.personalize,
    )
