"""FedTiny: the server prunes by magnitude and grows by the clients' mean gradient.

Huang et al., "Distributed Pruning Towards Tiny Neural Networks in Federated Learning",
ICDCS 2023, https://arxiv.org/abs/2212.01977: its progressive pruning. The choice of the
first mask among candidates is not here.
"""

from jax import lax

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.algorithms.shared.adjusting import Start, adjusting, steepness
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Count, Fraction, Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, regrow


@method
def fedtiny(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    adjust_every: Count = 10,
    adjust_until: Count = 300,
    prune_rate: Fraction = 0.4,
    start: Start = "random",
    allocation: masked.Allocation = "erk",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
) -> Algorithm:
    """FedAvg within a mask whose weakest entries make room for the steepest ones.

    In rounds that adjust, see `adjusting`, clients name the k_l pruned entries of each
    layer with the largest gradients and send these. The server prunes the k_l smallest
    weights of the aggregate and grows the k_l largest mean gradients, from 0. No client
    names what the server prunes in the same round, so that comes back at once only if
    fewer than k_l mean gradients are not 0.

    Down and up: alive weights, dense leaves and statistics, float32; down the positions
    of a new mask; up, in rounds that adjust, the positions of the entries named and
    their gradients, float32. FLOPs: such a round is charged the dense gradient of a
    batch and n log2(n + 1) over the n prunable weights.

    Args:
      model, optimizer, density, adjust_every, adjust_until: as in `fedrts`.
      prune_rate, start, allocation, prunable, index: as in `fedrts`.

    Raises:
      ValueError: an argument is out of range, or a name is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedtiny(model, optimizer, density=0.2)
    """
    schedule = adjust_every, adjust_until, prune_rate
    options = density, schedule, start, allocation, prunable, index
    frozen, select, due, budget = adjusting(model, optimizer, *options, gradients=True)

    def aggregate(key, ctx, server, total):
        mean = masked.averaged(server.model, total["mean"])
        scores = steepness(total, mean.params, select)
        alive, doubt = budget(scores, ctx.round)

        def exchange():
            return regrow.exchange(mean, scores, alive - doubt, alive, select=select)

        new = lax.cond(due(ctx.round), exchange, lambda: mean)
        return masked.moved_if_heard(ctx, server, new), {}

    return frozen.replace(aggregate=aggregate)
