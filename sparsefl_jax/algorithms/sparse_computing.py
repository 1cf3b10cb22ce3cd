"""Clients that compute with sparse weights and inputs: ZeroFL and SparsyFed.

ZeroFL has sparse forward and backward passes, and sparse uplinks: Qiu,
Fernandez-Marques, Gusmao, Gao, Parcollet and Lane, "ZeroFL: Efficient On-Device
Training for Federated Learning with Local Sparsity", ICLR 2022,
https://arxiv.org/abs/2208.02507. The passes are those of SWAT: Raihan and Aamodt,
"Sparse Weight Activation Training", NeurIPS 2020, https://arxiv.org/abs/2001.01969.

SparsyFed trains powers of weights, and sends the largest ones: Guastella, Sani, Iacob,
Mora, Bellavista and Lane, "SparsyFed: Sparse Adaptive Federated Training", ICLR 2025,
https://arxiv.org/abs/2504.05153. The power is that of Powerpropagation: Schwarz et al.,
NeurIPS 2021, https://arxiv.org/abs/2110.00296.
"""

from functools import partial
from typing import Annotated, Literal, get_args

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, Fraction, PyTree, Share, SparseModel
from sparsefl_jax.models import Model, adapters
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.training import means, sparse_passes
from sparsefl_jax.wire.packets import Packet, pack_up, unpack_params

Uplink = Literal["weights", "diff_on_top", "top_of_diff"]
UPLINKS = get_args(Uplink)
LEAST = 1e-7  # the share of inputs that the layer of a kernel of zeros saves


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
    weights = partial(_sparse, density=density, select=select)
    loss_fn = sparse_passes.objective(model, weights, select, inputs=inputs, sorts=True)

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
        new = masked.average if uplink == "weights" else masked.add_mean
        return new(server, total), {}

    def deploy(key, server):
        mask = _keep_largest(server.params, density, select)
        return {"global": masks.prune(server, mask), "unpruned": server}

    return Algorithm(init, broadcast, update, contribute, aggregate, deploy)


@method
def sparsyfed(
    model: Model,
    optimizer: Optimizer,
    *,
    density: Share,
    exponent: Annotated[float, "[1, inf)"] = 1.25,
    sparse_inputs: bool = True,
    prunable: masks.Globs = masks.KERNELS,
    index: str = "packed",
    weighting: means.Weighting = "examples",
) -> Algorithm:
    """SparsyFed: the network computes with sign(w) |w|^a, so large weights grow faster.

    After training a client keeps its largest |w| over all prunable leaves together, and
    the server averages, zeros included. The server's mask is where its mean is not 0.
    An exact zero has no gradient if a > 1, so the mask shrinks from the union of the
    first cohort's masks towards `density`, and no weight ever comes back.

    Down and up: weights that are not 0, a bit that says whether their positions have
    changed, these if so, dense leaves and statistics, float32. The first downlink is
    dense.

    The ledger's FLOPs: forward pass and input gradients at the share of weights that
    are not 0, weight gradients at the share of inputs that are saved; the order of all
    weights once a round. The search for the largest inputs is not counted.

    Args:
      model: the network and its loss.
      optimizer: the clients', as `local.make_optimizer` returns it; it starts afresh
        in every round. Weight decay acts on w.
      density: share of the prunable weights that a client sends.
      exponent: a. With 1 and no sparse inputs this is the top-k of weights.
      sparse_inputs: a layer saves as large a share of its inputs, for the gradient of
        its kernel, as the kernel has weights that are not 0.
      prunable: globs of the kernels that can be pruned and have the exponent.
      index: how positions are written, see `packets.Packet`.
      weighting: a client's weight in the mean, see `means.WEIGHTINGS`.

    Raises:
      ValueError: an argument is out of range, a glob matches no leaf, or the model has
        adapters and the exponent is not 1.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model, optimizer = sfl.testing.tiny_model(), sfl.training.make_optimizer()
      >>> method = sparsyfed(model, optimizer, density=0.05, exponent=1.25)
    """
    if exponent != 1:
        adapters.refuse(model, f"exponent={exponent} keeps B at 0, where it starts")
    contribute = partial(masked.summand, weight=means.WEIGHTINGS[weighting])
    select = masks.prunable(model.macs, prunable)
    inputs = _share_saved if sparse_inputs else None
    weights = partial(_power, exponent=exponent, select=select)
    loss_fn = sparse_passes.objective(model, weights, select, inputs=inputs)

    def init(key, start):
        model = masked.within(start, select)
        params = _power(model.params, 1 / exponent, select)
        alive = _mask_zeros(model._replace(params=params), select)
        return masked.Server(alive, jnp.int32(0))

    def train(key, ctx, received, client, batches):
        tx = optimizer(ctx.round)
        trained = sparse_passes.train(key, loss_fn, tx, received, batches)
        scores = jax.tree.map(jnp.abs, trained.model.params)
        size = int(trees.layer_sizes(scores, select).sum())
        count = size - round((1 - density) * size)
        mask = top_k.largest_overall(scores, count, select)
        pruned = masks.apply(trained.model.params, mask)
        sent = _mask_zeros(trained.model._replace(params=pruned), select)
        work = trained.metrics["work"]
        work = work._replace(extra=work.extra + top_k.flops(scores, select))
        metrics = trained.metrics | {"work": work}
        return trained._replace(model=sent, metrics=metrics), client

    def aggregate(key, ctx, server, total):
        new = _mask_zeros(masked.average(server.model, total), select)
        return masked.move(ctx.round, server, new), {}

    def deploy(key, server):
        params = _power(server.model.params, exponent, select)
        return {"global": _mask_zeros(server.model._replace(params=params), select)}

    method = masked.training_within(select, index, train, optional=True)
    return method.replace(init, aggregate, deploy, contribute=contribute)


def _keep_largest(params: PyTree, share: float, select: PyTree) -> PyTree:
    """Returns the mask of each selected leaf's largest |w|, ties included."""
    kept = [top_k.largest_share(w, share) for w in trees.layers(params, select)]
    return masks.total(params, select, kept)


def _sparse(params: PyTree, density: float, select: PyTree) -> PyTree:
    """Returns each leaf's largest weights; the gradient passes to all of them."""
    mask = _keep_largest(jax.lax.stop_gradient(params), density, select)
    kept = masks.apply(params, mask)
    return jax.tree.map(lambda w, k: w + jax.lax.stop_gradient(k - w), params, kept)


def _power(params: PyTree, exponent: float, select: PyTree) -> PyTree:
    """Returns sign(w) |w|^exponent on the selected leaves.

    At 0 the derivative is 0 if the exponent is above 1; in the form w |w|^(a - 1) it
    would be 0 * inf for a < 2.
    """
    if exponent == 1:  # static branch
        return params
    weights = trees.layers(params, select)
    powers = [jnp.sign(w) * jnp.abs(w) ** exponent for w in weights]
    return trees.replace_layers(params, select, powers)


def _mask_zeros(model: SparseModel, select: PyTree) -> SparseModel:
    """Returns the model with the mask of its weights that are not 0."""
    return model._replace(mask=masks.support(model.params, select))


def _share_saved(kernel: Array) -> Array:
    """Returns the share of its inputs that a layer saves."""
    return jnp.maximum(sparse_passes.nonzero(kernel), jnp.float32(LEAST))
