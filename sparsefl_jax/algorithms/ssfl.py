"""SSFL: SNIP's scores, averaged over clients, choose one mask before training.

Ohib et al., "SSFL: Discovering Sparse Unified Subnetworks at Initialization for
Efficient Federated Learning", TMLR 2026, https://arxiv.org/abs/2405.09037.
"""

from functools import partial

from sparsefl_jax.algorithms.snip import Mode, one_shot, saliency, scored
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Share
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.messages import Initial, pack_initial
from sparsefl_jax.wire.packets import Packet


@method
def ssfl(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    weighting: means.Weighting = "examples",
    prunable: masks.Globs = masks.KERNELS,
    mode: Mode = "inference",
    initial: Initial = "sent",
) -> Algorithm:
    """SSFL's first stage: keeps the largest mean |w dL/dw|, over all layers.

    It is meant for one round in which all clients take part, and for `spdst` as the
    stage after it. A client scores one random batch, as `snip` does. The server keeps
    int(n density) largest means of the n scores, at least one; the released code keeps
    all ties with the last one. A random mask is used until then. The weights stay as
    they are.

    Down: the initial weights and statistics, float32, or the seed of both. Up: the
    scores of the prunable weights, float32.

    Args:
      model: the network and its loss.
      optimizer: not used, as nothing is trained.
      density: share of the prunable weights that stay.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`; the released
        code has 'uniform', the paper 'examples'.
      prunable: globs of the leaves that can be pruned. Stage 2 needs the same globs.
      mode: 'inference' scores a batch as in an evaluation, like the released code;
        'train' as in training, which networks with batch normalisation need.
      initial: how clients get the initial network: 'sent', or 'seed', 32 bits, see
        `messages.pack_initial`.

    Raises:
      ValueError: `density` is out of range, another argument is unknown, a glob matches
        no leaf, or the model has adapters.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> stage = ssfl(model, optimizer, density=0.5)
    """
    weight, score = means.WEIGHTINGS[weighting], partial(saliency, scored(model, mode))
    select = masks.prunable(model.macs, prunable)
    size = int(trees.layer_sizes(model.shapes()[0], select).sum())
    count = max(1, layer_densities.whole(density, size))
    # Its init, broadcast and deploy also serve scores that travel.
    vote = one_shot(score, keep=lambda _: count, select=select)

    def broadcast(key, ctx, server):
        message = vote.broadcast(key, ctx, server)
        return pack_initial({k: v.values for k, v in message.items()}, initial)

    def update(key, ctx, downlink, client, batches):
        params, stats = downlink["params"].values, downlink["stats"].values
        rows, valid = batches.order[0, 0], batches.weight[0, 0]
        batch = batches.x[rows], batches.y[rows], valid
        scores, sums = score(key, params, stats, *batch)
        scores, _ = trees.split(scores, select)
        work = local.dense_work(sums["count"], params)
        return {"scores": Packet(scores)}, client, {**sums, "work": work}

    def contribute(ctx, uplink):
        return means.weighted_sum(uplink["scores"].values, weight(ctx.client))

    def aggregate(key, ctx, server, total):
        _, others = trees.split(server.params, select)
        mean = means.weighted_mean(total, means.zeros(total))
        mask = top_k.largest_overall(trees.merge(mean, others), count, select)
        return means.if_heard(ctx, server._replace(mask=mask), server), {}

    steps = {"broadcast": broadcast, "update": update, "contribute": contribute}
    return vote.replace(**steps, aggregate=aggregate)
