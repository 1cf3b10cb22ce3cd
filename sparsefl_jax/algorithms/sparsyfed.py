"""SparsyFed: clients train powers of weights, and send the largest ones.

Guastella, Sani, Iacob, Mora, Bellavista and Lane, "SparsyFed: Sparse Adaptive Federated
Training", ICLR 2025, https://arxiv.org/abs/2504.05153. The power is that of
Powerpropagation: Schwarz et al., NeurIPS 2021, https://arxiv.org/abs/2110.00296.
"""

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms.shared import masked
from sparsefl_jax.core.algorithm import Algorithm, Optimizer, method
from sparsefl_jax.core.types import Array, PyTree, Share, SparseModel
from sparsefl_jax.models import adapters
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import masks, top_k, trees
from sparsefl_jax.training import means, sparse_passes

LEAST = 1e-7  # the share of inputs that the layer of a kernel of zeros saves


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
    inputs = _saved_share if sparse_inputs else None
    loss_fn = sparse_passes.objective(
        model, lambda w: _power(w, exponent, select), select, inputs=inputs
    )

    def init(key, start):
        model = masked.within(start, select)
        params = _power(model.params, 1 / exponent, select)
        alive = _alive(model._replace(params=params), select)
        return masked.Server(alive, jnp.int32(0))

    def train(key, ctx, received, client, batches):
        tx = optimizer(ctx.round)
        trained = sparse_passes.train(key, loss_fn, tx, received, batches)
        scores = jax.tree.map(jnp.abs, trained.model.params)
        size = int(trees.layer_sizes(scores, select).sum())
        count = size - round((1 - density) * size)
        mask = top_k.largest_overall(scores, count, select)
        pruned = masks.apply(trained.model.params, mask)
        sent = _alive(trained.model._replace(params=pruned), select)
        work = trained.metrics["work"]
        work = work._replace(extra=work.extra + top_k.flops(scores, select))
        metrics = trained.metrics | {"work": work}
        return trained._replace(model=sent, metrics=metrics), client

    def aggregate(key, ctx, server, total):
        new = _alive(masked.averaged(server.model, total), select)
        return masked.moved(ctx.round, server, new), {}

    def deploy(key, server):
        params = _power(server.model.params, exponent, select)
        return {"global": _alive(server.model._replace(params=params), select)}

    steps = {"init": init, "contribute": contribute, "aggregate": aggregate}
    method = masked.training_within(select, index, train, optional=True)
    return method.replace(**steps, deploy=deploy)


def _power(params: PyTree, exponent: float, select: PyTree) -> PyTree:
    """Returns sign(w) |w|^exponent on the selected leaves.

    At 0 the derivative is 0 if the exponent is above 1; in the form w |w|^(a - 1) it
    would be 0 * inf for a < 2.
    """
    if exponent == 1:  # static branch
        return params
    powers = [
        jnp.sign(w) * jnp.abs(w) ** exponent for w in trees.layers(params, select)
    ]
    return trees.replace_layers(params, select, powers)


def _alive(model: SparseModel, select: PyTree) -> SparseModel:
    """Returns the model with the mask of its weights that are not 0."""
    return model._replace(mask=masks.support(model.params, select))


def _saved_share(kernel: Array) -> Array:
    """Returns the share of its inputs that a layer saves."""
    return jnp.maximum(sparse_passes.nonzero(kernel), jnp.float32(LEAST))
