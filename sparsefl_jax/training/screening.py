"""The gradient of one batch for pruned weights too, and what grows back by it.

Evci et al., "Rigging the Lottery" (RigL), ICML 2020, https://arxiv.org/abs/1911.11134.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, Batches, Key, PyTree, SparseModel, Work
from sparsefl_jax.sparsity import regrow, top_k
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


def readjust(
    key: Key,
    loss_fn: Callable,
    trained: local.Trained,
    batches: Batches,
    kept: Array,
    alive: Array,
    *,
    select: PyTree,
    step: Array | int = 0,
    anywhere: bool = False,
) -> local.Trained:
    """Prunes and regrows a trained model by magnitude and the gradient of one batch.

    Args:
      key, loss_fn, batches, step: as in `screen`; the batch is of the last epoch.
      trained: what local training left.
      kept, alive, select, anywhere: as in `regrow.exchange`.

    Returns:
      `trained` with the new model; its work counts the gradient, and the choice among
      the prunable weights.
    """
    grads, passes = screen(key, loss_fn, trained.model, batches, step=step)
    model, scores = trained.model, jax.tree.map(jnp.abs, grads)
    params, mask = regrow.exchange(
        model.params, model.mask, scores, kept, alive, select=select, anywhere=anywhere
    )
    done = jax.tree.map(jnp.add, trained.metrics["work"], passes)
    done = done._replace(extra=done.extra + top_k.flops(params, select))
    return trained._replace(
        model=model._replace(params=params, mask=mask),
        metrics=trained.metrics | {"work": done},
    )


def work(count: Array, mask: PyTree) -> Work:
    """Returns the work of `count` samples if pruned weights need gradients too."""
    sparse = local.work(count, mask)
    return sparse._replace(weight_grad=local.dense_work(count, mask).weight_grad)
