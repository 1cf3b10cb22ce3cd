"""Pruning once, before training, by the scores of one batch: SNIP, GraSP and SSFL.

SNIP keeps the weights that change the loss most: Lee et al., "SNIP: Single-shot Network
Pruning based on Connection Sensitivity", ICLR 2019, https://arxiv.org/abs/1810.02340.

GraSP keeps those that the norm of the gradient needs: Wang et al., "Picking Winning
Tickets Before Training by Preserving Gradient Flow", ICLR 2020,
https://arxiv.org/abs/2002.07376. Temperature and halves follow the authors' code.

As a first stage of federated training, in which one random client prunes on its data,
both are baselines of FedSparsify (Stripelis et al.). SSFL averages SNIP's scores over
clients: Ohib et al., "SSFL: Discovering Sparse Unified Subnetworks at Initialization
for Efficient Federated Learning", TMLR 2026, https://arxiv.org/abs/2405.09037.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Positive, PyTree, Share, SparseModel
from sparsefl_jax.models import Model, adapters
from sparsefl_jax.sparsity import layer_densities, masks, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Initial, Packet, pack_initial
from sparsefl_jax.wire.positions import Index

Mode = Literal["train", "inference"]


@method
def snip(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    prunable: masks.Globs = masks.KERNELS,
    first_samples: bool = False,
    mode: Mode = "train",
    index: Index = "bitmap",
) -> Algorithm:
    """SNIP on one batch of a client: keeps the largest |w dL/dw|, over all layers.

    Exactly round(n density) of the n prunable weights stay, as in the official code.
    That code divides the scores by their sum, which does not change the mask. A bias
    that starts at 0 scores 0 and is pruned first. `one_shot` describes the packets and
    the batch.

    Args:
      model: the network and its loss.
      optimizer: not used, as nothing is trained.
      density: share of the prunable weights that stay; 1 - S of the papers.
      prunable: globs of the leaves that can be pruned. The paper prunes all,
        FedSparsify all but batch normalisation: `("*", "!bn*")`. Stage 2 needs the same
        globs.
      first_samples: use the client's first samples instead of a random batch.
      mode: 'train' scores a batch as in training, with dropout and the batch's
        normalisation, as the official code does; 'inference' as in an evaluation, with
        the initial statistics, as FedSparsify's released code does.
      index: how positions are written, see `packets.Packet`; 'none' is refused.

    Raises:
      ValueError: `density` is out of range, the mode or index is unknown, a glob
        matches no leaf, or the model has adapters.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> stage = snip(model, optimizer, density=0.1, prunable=("*",))
    """
    score, select = saliency(model, mode), masks.prunable(model.macs, prunable)

    def keep(size):
        return round(size * density)

    return one_shot(score, keep, select, first_samples=first_samples, index=index)


@method
def grasp(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    temperature: Positive = 200.0,
    halves: bool = True,
    prunable: masks.Globs = masks.KERNELS,
    first_samples: bool = False,
    mode: Mode = "train",
    index: Index = "bitmap",
) -> Algorithm:
    """GraSP on one batch of a client: keeps the largest w * Hg, over all layers.

    H is the Hessian of the loss in the prunable weights and g its gradient; all other
    weights are constants, as in the authors' code. To first order, removing w adds
    -2 w * Hg to |g|^2. The weights whose removal adds most are pruned, the paper's
    rule: exactly int(n (1 - density)) of the n prunable ones. A weight of 0 scores 0,
    which is not low. `one_shot` describes the packets and the batch. The authors' batch
    has 25 samples of every class, FedSparsify's has 32 samples, temperature 1 and no
    halves.

    FLOPs: three training steps. One is the gradient; its derivative along g takes two
    products for each of the gradient's.

    Args:
      model: the network and its loss.
      optimizer: not used, as nothing is trained.
      density: share of the prunable weights that stay; 1 - S of the papers.
      temperature: divisor of the logits. The logged loss includes it.
      halves: sum the losses of two halves of the batch, each of which batch
        normalisation sees separately; without such layers and dropout, halves of equal
        size leave the mask as it is.
      prunable: globs of the leaves that can be pruned. FedSparsify prunes all,
        `("*",)`.
      first_samples, mode, index: as in `snip`.

    Raises:
      ValueError: a number is out of range, the mode or index is unknown, a glob matches
        no leaf, or the model has adapters.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> stage = grasp(model, optimizer, density=0.1, temperature=1.0)
    """
    select = masks.prunable(model.macs, prunable)

    def apply(*args, **kwargs):
        logits, stats = model.apply(*args, **kwargs)
        return logits / temperature, stats

    softened = model._replace(apply=apply) if temperature != 1 else model
    loss_fn = make_score_loss(softened, mode)

    def score(key, params, stats, *batch):
        """Returns w * Hg of the summed losses of the parts of a batch, 0 elsewhere.

        Each part draws its dropout and augmentation anew.
        """
        number = min(2 if halves else 1, len(batch[0]))
        keys = jax.random.split(key, number)

        def total(params):
            losses = [
                loss_fn(key, params, stats, *(v[i::number] for v in batch))
                for i, key in enumerate(keys)
            ]
            loss, (_, sums) = jax.tree.map(lambda *v: sum(v), *losses)
            return loss, sums

        gradient = jax.grad(total, has_aux=True)
        grads, along, sums = jax.linearize(gradient, params, has_aux=True)
        curved = masks.apply(along(masks.apply(grads, select)), select)
        return jax.tree.map(jnp.multiply, params, curved), sums

    def keep(size):
        # It is n - int(n (1 - d)).
        return layer_densities.whole_up(density, size)

    batch = {"first_samples": first_samples, "index": index}
    return one_shot(score, keep, select, passes=3, **batch)


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
        `packets.pack_initial`.

    Raises:
      ValueError: `density` is out of range, another argument is unknown, a glob matches
        no leaf, or the model has adapters.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> stage = ssfl(model, optimizer, density=0.5)
    """
    score, select = saliency(model, mode), masks.prunable(model.macs, prunable)

    def keep(size):
        return max(1, layer_densities.counts(density, size))

    weight = means.WEIGHTINGS[weighting]
    return one_shot(score, keep, select, initial=initial, weight=weight)


def make_score_loss(model: Model, mode: Mode) -> Callable:
    """Returns the loss whose gradients score weights; `mode` as in `snip`.

    Raises:
      ValueError: `model` is no `Model` or has adapters.
    """
    loss_fn = local.objective(model, train=mode == "train")
    adapters.refuse(model, "the scores of all adapters are 0, as B starts at 0")
    return loss_fn


def saliency(model: Model, mode: Mode) -> Callable:
    """Returns the score |w dL/dw|: the change of the loss, to first order, without w.

    Args:
      model, mode: as in `make_score_loss`.

    Returns:
      `score`, as `one_shot` takes it.
    """
    gradient = jax.grad(make_score_loss(model, mode), argnums=1, has_aux=True)

    def score(key, params, *batch):
        grads, (_, sums) = gradient(key, params, *batch)
        return jax.tree.map(lambda g, w: jnp.abs(g * w), grads, params), sums

    return score


def one_shot(
    score: Callable,
    keep: Callable,
    select: PyTree,
    *,
    passes: int = 1,
    first_samples: bool = False,
    index: Index = "bitmap",
    initial: Initial = "sent",
    weight: Callable | None = None,
) -> Algorithm:
    """Builds a stage that prunes by the scores of one batch and does not train.

    It is meant for one round and a cohort of one. Down: the initial weights and
    statistics, float32. Up: the positions that stay, as `index` writes them, or scores
    with a `weight`. With several clients, the server keeps the positions with most
    votes, as many as one client names, and breaks ties at random. Until then the mask
    is random; that of an earlier stage is not used.

    The batch is the first of the stage: `batch_size` of the client's samples drawn at
    random, or all samples of a client that has fewer. With `first_samples` it is the
    client's first samples in the partition's order; if the partition sorts them by
    class, these are all of one class.

    The ledger's FLOPs: `passes` times those of a training step, and n log2(n + 1) to
    choose among n weights. `flops_executed` is that of the stage's epochs, as for any
    other method.

    Args:
      score: `(key, params, stats, x, y, weight) -> (scores, sums)`: scores like
        `params`, of which the largest stay, and the sums of `model.loss`.
      keep: `(n) -> int`, the number of the n prunable weights that stay.
      select: tree of Python bools, the leaves that can be pruned.
      passes: the work of scoring, in training steps.
      first_samples, index: as in `snip`.
      initial: as in `ssfl`.
      weight: a client's weight by its `ClientInfo`, if scores travel in the place of
        positions: the server then keeps the largest means.

    Raises:
      ValueError: the index is unknown.
    """

    def keep_best(scores):
        size = int(trees.layer_sizes(scores, select).sum())
        return top_k.largest_overall(scores, keep(size), select)

    def init(key, start: SparseModel):
        random = masks.uniform_scores(key, start.params, select)
        return start._replace(mask=keep_best(random))

    def broadcast(key, ctx, server):
        start = {"params": server.params, "stats": server.stats}
        return pack_initial(start, initial)

    def update(key, ctx, downlink, client, batches):
        params, stats = downlink["params"].values, downlink["stats"].values
        rows, valid = batches.order[0, 0], batches.weight[0, 0]
        if first_samples:  # static branch
            rows = jnp.arange(rows.size, dtype=jnp.int32)
            own = rows < ctx.client.num_examples
            rows, valid = jnp.where(own, rows, 0), own.astype(jnp.float32)
        batch = batches.x[rows], batches.y[rows], valid
        scores, sums = score(key, params, stats, *batch)
        work = local.dense_work(passes * sums["count"], params)
        if weight is None:  # static branch
            mask, _ = trees.split(keep_best(scores), select)
            uplink = {"mask": Packet(mask, mask, bits=0, index=index)}
            work = work._replace(extra=top_k.flops(params, select))
        else:
            uplink = {"scores": Packet(trees.split(scores, select)[0])}
        return uplink, client, {**sums, "work": work}

    def contribute(ctx, uplink):
        if weight is None:  # static branch
            return means.weighted_sum(uplink["mask"].mask)
        return means.weighted_sum(uplink["scores"].values, weight(ctx.client))

    def aggregate(key, ctx, server, total):
        if weight is None:  # static branch
            random = masks.uniform_scores(key, server.params, select)  # below one vote
            scores = jax.tree.map(jnp.add, trees.merge(total["sum"], random), random)
        else:
            scores = trees.merge(means.weighted_mean(total), server.params)
        return means.if_heard(ctx, server._replace(mask=keep_best(scores)), server), {}

    def deploy(key, server):
        return {"initial": server}

    return Algorithm(init, broadcast, update, contribute, aggregate, deploy)
