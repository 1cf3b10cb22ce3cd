"""The gradient of one batch within a mask, pruned weights included, and its work.

Methods that let weights grow back by their gradients ask for it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, Batches, Key, PyTree, SparseModel, Work
from sparsefl_jax.training import local


def screen(
    key: Key,
    loss_fn: Callable,
    model: SparseModel,
    batches: Batches,
    *,
    epoch: int = -1,
    step: Array | int = 0,
) -> tuple[PyTree, Work]:
    """Computes the gradient of one of a client's batches at a sparse model.

    Args:
      key: of dropout.
      loss_fn: as `local.objective` returns it; the gradient is that of training or of
        an evaluation, whichever the loss is of.
      model: its parameters are 0 outside its mask.
      batches: the client's data.
      epoch: of the batch, from the end if negative.
      step: of the batch in its epoch; may be traced.

    Returns:
      The gradient, a float32 tree like the parameters, and its work: the gradient of
      the weights is dense, everything else skips what the mask removes.
    """
    rows, weight = batches.order[epoch, step], batches.weight[epoch, step]
    x, y = batches.x[rows], batches.y[rows]
    gradient = jax.grad(loss_fn, argnums=1, has_aux=True)
    grads, _ = gradient(key, model.params, model.stats, x, y, weight)
    return grads, work(jnp.sum(weight), model.mask)


def work(count: Array, mask: PyTree) -> Work:
    """Returns the work of `count` samples if pruned weights need gradients too."""
    sparse = local.work(count, mask)
    return sparse._replace(weight_grad=local.dense_work(count, mask).weight_grad)
