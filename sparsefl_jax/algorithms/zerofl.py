"""ZeroFL: sparse forward and backward passes on the clients, and sparse uplinks.

Qiu, Fernandez-Marques, Gusmao, Gao, Parcollet and Lane, "ZeroFL: Efficient On-Device
Training for Federated Learning with Local Sparsity", ICLR 2022,
https://arxiv.org/abs/2208.02507. The passes are those of SWAT: Raihan and Aamodt,
"Sparse Weight Activation Training", NeurIPS 2020, https://arxiv.org/abs/2001.01969.
"""

from functools import partial
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Fraction, PyTree, Share, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.training import means, sparse_passes
from sparsefl_jax.wire.messages import pack_up, unpack_params
from sparsefl_jax.wire.packets import Packet

Uplink = Literal["weights", "diff_on_top", "top_of_diff"]
UPLINKS = get_args(Uplink)


@method
def zerofl(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    mask_ratio: Fraction = 0.2,
    uplink: Uplink = "top_of_diff",
    sparse_inputs: bool = True,
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """ZeroFL: clients compute with the largest weights and inputs, and train all.

    In each step a prunable layer computes its output and the gradient of its input with
    the largest |w| of its kernel, and the gradient of the whole kernel from the largest
    |x| of its input. All weights are trained, also those that the layer does not use.

    Down: the whole model and statistics, float32. Up: for each prunable leaf the
    `density` + `mask_ratio` largest entries, ties included, without those that are 0,
    and their positions; other leaves whole; statistics.
    The network runs sparse: the headline is the aggregate's `density` largest weights
    of each prunable leaf, and `unpruned` is the dense aggregate.

    The ledger's FLOPs: prunable layers at `density` in all three passes, or in two with
    `sparse_inputs=False`; the order of each leaf's weights in every step. The search
    for the largest inputs is not counted.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it; it starts afresh
        in every round.
      density: 1 - sp, the share of weights and of inputs that layers compute with.
      mask_ratio: r, the further share of weights that is sent; everything is if
        `density` + r reaches 1.
      uplink: what travels. 'weights': the largest trained weights, which the server
        averages, zeros included. 'diff_on_top': their change in training.
        'top_of_diff': the largest changes. The server adds the mean of changes.
      sparse_inputs: False computes gradients of kernels from all of the input.
      prunable: globs of the sparse kernels; the paper's are the 3x3 convolutions of a
        ResNet, but for the first.
      index: how positions are written, see `packets.Packet`.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.

    Raises:
      ValueError: an argument is out of range, or a glob matches no leaf.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = zerofl(model, optimizer, density=0.1, mask_ratio=0.2)
    """
    contribute = partial(masked.summand, weight=means.WEIGHTINGS[weighting])
    select = masks.prunable(model.macs, prunable)
    inputs = (lambda kernel: jnp.float32(density)) if sparse_inputs else None
    loss_fn = sparse_passes.objective(
        model, lambda w: _sparse(w, density, select), select, inputs=inputs, sorts=True
    )

    def init(key, start):
        return masks.dense(masks.apply(start.params, start.mask), start.stats)

    def broadcast(key, ctx, server):
        return {"params": Packet(server.params), "stats": Packet(server.stats)}

    def update(key, ctx, downlink, client, batches):
        received, tx = unpack_params(downlink), optimizer(ctx.round)
        trained = sparse_passes.train(key, loss_fn, tx, received, batches)
        weights = trained.model.params
        change = jax.tree.map(jnp.subtract, weights, received.params)
        scores = change if uplink == "top_of_diff" else weights
        values = weights if uplink == "weights" else change
        mask = _keep_largest(scores, min(1.0, density + mask_ratio), select)
        # A layer whose inputs are not among the largest leaves ties of exact zeros.
        mask = jax.tree.map(jnp.logical_and, mask, masks.support(values, select))
        sent = SparseModel(values, mask, trained.model.stats)
        message = pack_up(sent, None, select, index=index)
        return message, client, trained.metrics

    def aggregate(key, ctx, server, total):
        new = masked.averaged if uplink == "weights" else masked.added
        return new(server, total), {}

    def deploy(key, server):
        mask = _keep_largest(server.params, density, select)
        return {"global": masks.pruned(server, mask), "unpruned": server}

    return Algorithm(init, broadcast, update, contribute, aggregate, deploy)


def _keep_largest(params: PyTree, share: float, select: PyTree) -> PyTree:
    """Returns the mask of each selected leaf's largest |w|, ties included."""
    kept = [top_k.largest_share(w, share) for w in trees.layers(params, select)]
    return masks.total(params, select, kept)


def _sparse(params: PyTree, density: float, select: PyTree) -> PyTree:
    """Returns each leaf's largest weights; the gradient passes to all of them."""
    mask = _keep_largest(lax.stop_gradient(params), density, select)
    kept = masks.apply(params, mask)
    return jax.tree.map(lambda w, k: w + lax.stop_gradient(k - w), params, kept)
