"""SNIP: prunes once, before training, the weights that change the loss least.

Lee et al., "SNIP: Single-shot Network Pruning based on Connection Sensitivity", ICLR
2019, https://arxiv.org/abs/1810.02340. As a first stage of federated training, in
which one random client prunes on its data, it is a baseline of FedSparsify (Stripelis
et al.).
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.check import check
from sparsefl_jax.core.types import Array, Key, PyTree, Share, SparseModel
from sparsefl_jax.models import adapters
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet
from sparsefl_jax.wire.positions import POSITIONS

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
    index: str = "bitmap",
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
    return one_shot(
        partial(saliency, scored(model, mode)),
        keep=lambda size: round(size * density),
        select=masks.prunable(model.macs, prunable),
        first_samples=first_samples,
        index=index,
    )


def scored(model: Model, mode: Mode) -> Callable:
    """Returns the loss whose gradients score weights; `mode` as in `snip`.

    Raises:
      ValueError: `model` is no `Model` or has adapters.
    """
    loss_fn = local.objective(model, train=mode == "train")
    adapters.refuse(model, "the scores of all adapters are 0, as B starts at 0")
    return loss_fn


def saliency(
    loss_fn: Callable, key: Key, params: PyTree, stats: PyTree, *batch: Array
) -> tuple[PyTree, dict[str, Array]]:
    """Computes |w dL/dw|, the change of the loss, to first order, if w is removed.

    Args:
      loss_fn: as `local.objective` returns it.
      key: of dropout and augmentation.
      params, stats: the model.
      *batch: samples [B, ...], labels [B], and [B] float32, 0 for padded samples.

    Returns:
      The scores, a tree like `params`, and the sums of `loss_fn`.
    """
    gradient = jax.grad(loss_fn, argnums=1, has_aux=True)
    grads, (_, sums) = gradient(key, params, stats, *batch)
    return jax.tree.map(lambda g, w: jnp.abs(g * w), grads, params), sums


def one_shot(
    score: Callable,
    *,
    keep: Callable,
    select: PyTree,
    passes: int = 1,
    first_samples: bool = False,
    index: str = "bitmap",
) -> Algorithm:
    """Builds a stage that prunes by the scores of one batch and does not train.

    It is meant for one round and a cohort of one. Down: the initial weights and
    statistics, float32. Up: the positions that stay, as `index` writes them; scores do
    not travel. With several clients, the server keeps the positions with most votes, as
    many as one client names, and breaks ties at random. Until then the mask is random;
    that of an earlier stage is not used.

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

    Raises:
      ValueError: the index is unknown.
    """
    check("index", index, POSITIONS)

    def best(scores):
        size = int(trees.layer_sizes(scores, select).sum())
        return top_k.largest_overall(scores, keep(size), select)

    def init(key, start: SparseModel):
        random = masks.uniform_scores(key, start.params, select)
        return start._replace(mask=best(random))

    def broadcast(key, ctx, server):
        return {"params": Packet(server.params), "stats": Packet(server.stats)}

    def update(key, ctx, downlink, client, batches):
        params, stats = downlink["params"].values, downlink["stats"].values
        rows, weight = batches.order[0, 0], batches.weight[0, 0]
        if first_samples:  # static branch
            rows = jnp.arange(rows.size, dtype=jnp.int32)
            valid = rows < ctx.client.num_examples
            rows, weight = jnp.where(valid, rows, 0), valid.astype(jnp.float32)
        x, y = batches.x[rows], batches.y[rows]
        scores, sums = score(key, params, stats, x, y, weight)
        mask, _ = trees.split(best(scores), select)
        work = local.dense_work(passes * sums["count"], params)
        work = work._replace(extra=top_k.flops(params, select))
        uplink = {"mask": Packet(mask, mask, bits=0, index=index)}
        return uplink, client, {**sums, "work": work}

    def contribute(ctx, uplink):
        return means.weighted_sum(uplink["mask"].mask, jnp.float32(1))

    def aggregate(key, ctx, server, total):
        _, others = trees.split(server.params, select)
        random = masks.uniform_scores(key, server.params, select)  # below one vote
        votes = jax.tree.map(jnp.add, trees.merge(total["sum"], others), random)
        return means.if_heard(ctx, server._replace(mask=best(votes)), server), {}

    def deploy(key, server):
        return {"initial": server}

    return Algorithm(init, broadcast, update, contribute, aggregate, deploy)
