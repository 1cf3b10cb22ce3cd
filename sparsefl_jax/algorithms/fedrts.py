"""FedRTS: the server draws the mask from posteriors that votes of clients update.

Huang et al., "FedRTS: Federated Robust Pruning via Combinatorial Thompson Sampling",
NeurIPS 2025, https://arxiv.org/abs/2501.19122.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.algorithms.shared.adjusting import Start, adjusting
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import (
    Array,
    Count,
    Fraction,
    Key,
    Positive,
    PyTree,
    Share,
    SparseModel,
)
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.training import means
from sparsefl_jax.wire.messages import unpack_model


class Server(NamedTuple):
    """The global model and the Beta posterior of each prunable entry."""

    model: SparseModel
    changed_at: Array  # shape=(), int32: first round whose broadcast carries the mask
    a: PyTree  # float32, prunable leaves; 1 plus the votes for an entry
    b: PyTree  # float32, the same against it


@method
def fedrts(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    adjust_every: Count = 10,
    adjust_until: Count = 300,
    prune_rate: Fraction = 0.4,
    gamma: Fraction = 0.5,
    vote_weight: Positive = 10.0,
    start: Start = "random",
    allocation: masked.Allocation = "erk",
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
) -> Algorithm:
    """FedAvg within a mask of K_l entries a layer that the server draws anew at times.

    An alive entry gets the vote X = (1 - gamma) [it is one of the K_l - k_l largest
    weights of the aggregate] + gamma (the share of the cohort, by samples, in whose
    weights it is). In rounds that adjust, see `adjusting`, clients also name the k_l
    pruned entries of each layer with the largest gradients, and a pruned entry gets X =
    (1 - gamma) / 2 + gamma (the share of the cohort that names it). Votes add
    `vote_weight` X to a and `vote_weight` (1 - X) to b; then the server draws from
    Beta(a, b) for every entry, and the K_l largest of each layer are the new mask. What
    grows starts at 0.

    Down and up: alive weights, dense leaves and statistics, float32; down the positions
    of a new mask; up, in rounds that adjust, the positions of the entries named. FLOPs:
    such a round is charged the dense gradient of a batch and n log2(n + 1) over the n
    prunable weights.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it.
      density: share of alive prunable weights; K_l = int(n_l d_l). The paper's density
        also counts the dense leaves.
      adjust_every: rounds between adjustments.
      adjust_until: the round in which the rate reaches 0.
      prune_rate: share of the alive weights in doubt in round 0.
      gamma: how much clients' votes count beside the aggregate's.
      vote_weight: lambda.
      start: 'random', or 'magnitude' as in the released code: the first mask.
      allocation: as in `pdst`.
      prunable: globs of the leaves that can be pruned; the paper leaves the last layer
        dense.
      index: how positions are written, see `packets.Packet`.

    Raises:
      ValueError: an argument is out of range, or a name is unknown.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = fedrts(model, optimizer, density=0.2)
    """
    schedule = adjust_every, adjust_until, prune_rate
    options = density, schedule, start, allocation, prunable, index
    frozen, select, due, budget = adjusting(model, optimizer, *options, gradients=False)

    def core(model, round):
        alive, doubt = budget(model.params, round)
        kept = top_k.largest_alive(model, alive - doubt, select)
        return trees.split(kept, select)[0]

    def init(key, start):
        ones, _ = trees.split(jax.tree.map(jnp.ones_like, start.params), select)
        return Server(*frozen.init(key, start), a=ones, b=ones)

    def contribute(ctx, uplink):
        strong = core(unpack_model(uplink), ctx.round), ctx.client.num_examples
        return frozen.contribute(ctx, uplink) | {"core": means.weighted_sum(*strong)}

    def aggregate(key, ctx, server, total):
        mean = masked.averaged(server.model, total["mean"])
        alive, strong = trees.split(mean.mask, select)[0], core(mean, ctx.round)
        strong_at = means.weighted_mean(total["core"], means.zeros(total["core"]))
        named_at = means.weighted_mean(total["grown"], means.zeros(total["grown"]))

        def vote(alive, strong, strong_at, named_at):
            mine, theirs = jnp.where(alive, strong, 0.5), (strong_at, named_at)
            return gamma * jnp.where(alive, *theirs) + (1 - gamma) * mine

        def weigh(alive):
            return jnp.where(alive | due(ctx.round), jnp.float32(vote_weight), 0.0)

        x = jax.tree.map(vote, alive, strong, strong_at, named_at)
        weight = jax.tree.map(weigh, alive)
        a = jax.tree.map(lambda a, w, x: a + w * x, server.a, weight, x)
        b = jax.tree.map(lambda b, w, x: b + (w - w * x), server.b, weight, x)

        def draw():
            scores, others = beta_logits(key, a, b), trees.split(mean.params, select)[1]
            scores = trees.merge(scores, others)
            return top_k.largest(scores, budget(scores, ctx.round)[0], select)

        mask = lax.cond(due(ctx.round), draw, lambda: mean.mask)
        new = masks.pruned(mean, mask)
        return masked.moved_if_heard(ctx, server, new, a=a, b=b), {}

    return frozen.replace(init=init, contribute=contribute, aggregate=aggregate)


def beta_logits(key: Key, a: PyTree, b: PyTree) -> PyTree:
    """Draws from Beta(a, b) for every entry, and returns the logits of the draws.

    They have the order of the draws, and none rounds to 1. All leaves are one draw, as
    a sampler takes long to compile.

    Args:
      key: a typed key.
      a, b: float32 trees, above 0.

    Returns:
      A float32 tree like `a`.

    Example:
      >>> a, b = {'w': jnp.array([1e6, 1.])}, {'w': jnp.array([1., 1e6])}
      >>> (beta_logits(jax.random.key(0), a, b)['w'] > 0).tolist()
      [True, False]
    """
    flat, unravel = ravel_pytree(a)
    pair = jnp.stack([flat, ravel_pytree(b)[0]])
    of_a, of_b = jax.random.loggamma(key, pair)
    return unravel(of_a - of_b)
