"""SNIP: prune once, before training, the weights that the loss feels least.

Lee et al., "SNIP: Single-shot Network Pruning based on Connection Sensitivity", ICLR
2019, https://arxiv.org/abs/1810.02340. As a first stage of federated training, one
random client prunes on its own data: a baseline of FedSparsify (Stripelis et al.).
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.training import local, means
from sparsefl_jax.wire.packets import Packet
from sparsefl_jax.wire.positions import POSITIONS

MODES = ("train", "inference")


def snip(
    model,
    optimizer,
    *,
    density: float,
    prunable=("*kernel",),
    first_samples: bool = False,
    mode: str = "train",
    index: str = "bitmap",
) -> Algorithm:
    """SNIP on one batch of a client: keeps the largest |w dL/dw|, over all layers.

    Exactly round(n density) of the n prunable weights stay, as in the official code;
    its scores are divided by their sum, which moves no mask. A bias that starts at 0
    scores 0 and goes first. See `one_shot` for what travels and for the batch.

    Args:
      model: the network and its loss, a `Model`.
      optimizer: not used, as nothing is trained.
      density: share of the prunable weights that stay, in (0, 1]; 1 - S of the papers.
      prunable: globs of the leaves that can be pruned. The paper has all, FedSparsify
        all but batch normalisation: `("*", "!bn*")`. Stage 2 needs the same.
      first_samples: not a random batch, but the client's first samples.
      mode: 'train' scores a batch as training sees it, with dropout and the batch's own
        normalisation, as the official code does; 'inference' as an evaluation does,
        with the statistics of the start, as FedSparsify's released code does.
      index: how positions are written: 'bitmap', 'coo' or 'csr'.

    Raises:
      ValueError: `density` is out of range, or there is no such mode or index.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.make_optimizer()
      >>> stage = snip(model, optimizer, density=0.1, prunable=("*",))
    """
    return one_shot(
        partial(saliency, scored(model, mode)),
        keep=lambda size: round(size * density),
        passes=1,
        density=density,
        select=masks.prunable(model.macs, prunable),
        first_samples=first_samples,
        index=index,
    )


def scored(model: Model, mode: str) -> Callable:
    """Returns the loss whose gradients score weights; `mode` as in `snip`.

    Raises:
      ValueError: there is no such mode, or no model.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}, expected one of {', '.join(MODES)}")
    return local.objective(model, train=mode == "train")


def saliency(loss_fn, key, params, stats, x, y, weight):
    """|w dL/dw|: how much the loss changes, to first order, if w is taken away.

    Returns:
      The scores, a tree like `params`, and the sums of `loss_fn`.
    """
    gradient = jax.grad(loss_fn, argnums=1, has_aux=True)
    grads, (_, sums) = gradient(key, params, stats, x, y, weight)
    return jax.tree.map(lambda g, w: jnp.abs(g * w), grads, params), sums


def one_shot(
    score: Callable,
    *,
    keep: Callable,
    passes: int,
    density: float,
    select: PyTree,
    first_samples: bool,
    index: str,
) -> Algorithm:
    """A stage that prunes by the scores of one batch and hands on untouched weights.

    Meant for one round and a cohort of one. Down: the initial weights and statistics,
    float32. Up: the positions that stay, as `index` writes them, and no values: the
    scores are the client's own. Of several clients each has a vote, and the server
    keeps the positions with most votes, as many as one client names, drawing lots
    among equals. A mask that an earlier stage would hand on is not used.

    The batch is the first of the stage, its `batch_size` of the client's samples drawn
    at random; of a client with fewer all. With `first_samples` it is the client's first
    samples in the partition's order: where that sorts them by class, all of one class.

    The ledger's FLOPs: `passes` times a training step's, and n log2(n) for choosing
    among n weights. Its `flops_executed` is that of an epoch, as of any other method.

    Args:
      score: `(key, params, stats, x, y, weight) -> (scores, sums)`, the larger the
        better, and the sums of `model.loss`.
      keep: `(n) -> int`, how many of n prunable weights stay.
      passes: forward and backward passes, counted in those of a training step.
      select: tree of Python bools, the leaves that can be pruned.
      density, first_samples, index: as in `snip`.
    """
    if not 0 < density <= 1:
        raise ValueError(f"density={density}, expected in (0, 1]")
    if index not in POSITIONS:
        raise ValueError(f"index={index!r}, expected one of {', '.join(POSITIONS)}")

    def best(scores):
        size = int(trees.layer_sizes(scores, select).sum())
        return top_k.largest_overall(scores, keep(size), select)

    def init(key, start: SparseModel):
        del key
        return start

    def broadcast(key, ctx, server):
        del key, ctx
        return {"params": Packet(server.params), "stats": Packet(server.stats)}

    def update(key, ctx, downlink, client, batches):
        params, stats = downlink["params"].values, downlink["stats"].values
        rows, weight = batches.order[0, 0], batches.weight[0, 0]
        if first_samples:  # static branch
            rows = jnp.arange(rows.size, dtype=jnp.int32)
            own = rows < ctx.client.num_examples
            rows, weight = jnp.where(own, rows, 0), own.astype(jnp.float32)
        x, y = batches.x[rows], batches.y[rows]
        scores, sums = score(key, params, stats, x, y, weight)
        mask, _ = trees.split(best(scores), select)
        work = local.dense_work(passes * sums["count"], params)
        size = float(trees.layer_sizes(params, select).sum())
        work = work._replace(extra=jnp.float32(size * np.log2(size + 1)))
        uplink = {"mask": Packet(mask, mask, bits=0, index=index)}
        return uplink, client, {**sums, "work": work}

    def contribute(ctx, uplink):
        del ctx
        return means.weighted_sum(uplink["mask"].mask, jnp.float32(1))

    def aggregate(key, round, server, total):
        del round
        _, others = trees.split(server.params, select)
        lots = masks.uniform_scores(key, server.params, select)  # below one vote
        votes = jax.tree.map(jnp.add, trees.merge(total["sum"], others), lots)
        mask = jax.tree.map(
            lambda new, old: jnp.where(total["weight"] > 0, new, old),
            best(votes),
            server.mask,
        )
        return server._replace(mask=mask), {}

    def deploy(key, server):
        del key
        return {"initial": server}

    return Algorithm(
        init,
        broadcast,
        update,
        contribute,
        aggregate,
        deploy,
        alive=lambda round: density,
    )
