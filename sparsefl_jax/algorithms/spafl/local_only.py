"""Local: SpaFL's clients without a server.

The baseline of Kim et al., "SpaFL", NeurIPS 2024, https://arxiv.org/abs/2406.00431,
Table 2: clients train weights and thresholds, nothing travels, and eq. (13) is left
out.
"""

from sparsefl_jax.algorithms.finetune import aggregate, broadcast, contribute
from sparsefl_jax.algorithms.spafl import client_training
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import NonNegative, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks
from sparsefl_jax.wire.messages import Initial, pack_initial


@method
def local_only(
    model: Model,
    optimizer: Optimizer,
    *,
    alpha: NonNegative = 0.002,
    prunable: masks.Globs = masks.KERNELS,
    variant: client_training.VariantName = "paper",
    clamp: bool = False,
    keep_optimizer: bool = False,
    initial: Initial = "seed",
) -> Algorithm:
    """Trains each client's sparse model in the rounds in which the client is drawn.

    Nothing travels, except the initial network with `initial='sent'`; by default a
    client draws its own. With `alpha=0` the thresholds follow the loss alone.

    Args:
      model: the network and its loss.
      optimizer: the clients', for weights and thresholds, as `local.make_optimizer`
        returns it.
      alpha: weight of the regulariser sum exp(-threshold).
      prunable: globs of the kernels that have thresholds.
      variant, clamp, keep_optimizer: as in `spafl`.
      initial: 'seed', each client draws a network by a key of its own; or 'sent', all
        start from the network that training starts from, such as that of an earlier
        run, at 32 bits a value before a client's first round.

    Returns:
      The method. A client keeps its weights, statistics and thresholds [O].

    Raises:
      ValueError: an argument is out of range, a glob matches no kernel, or the model
        has adapters.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = local_only(model, optimizer, alpha=0.001)
    """
    options = alpha, prunable, variant, clamp, keep_optimizer
    begin, train = client_training.make_training(model, optimizer, *options)

    def init(key, start: SparseModel):
        return start

    def handed(server):
        start = {"params": server.params, "stats": server.stats}
        return pack_initial(start, initial) if initial == "sent" else {}

    def init_client(key, handed, info):
        if initial == "seed":  # static branch
            return begin(*model.init(key))
        return begin(handed["params"].values, handed["stats"].values)

    def update(key, ctx, downlink, client, batches):
        return {}, *train(key, ctx.round, client_training.revived(client), batches)

    def deploy(key, server):
        return {"newcomer": masks.dense(server.params, server.stats)}

    steps = init, broadcast, update, contribute, aggregate, deploy, init_client
    return Algorithm(*steps, client_training.personalize, handed=handed)
