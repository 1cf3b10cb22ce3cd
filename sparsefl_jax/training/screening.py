"""The gradient of one batch for pruned weights too, and regrowth by it.

Evci et al., "Rigging the Lottery" (RigL), ICML 2020, https://arxiv.org/abs/1911.11134.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, Batches, Key, PyTree, Work
from sparsefl_jax.sparsity import regrow, top_k
from sparsefl_jax.training import local


def screen(
    key: Key,
    loss_fn: Callable,
    trained: local.Trained,
    batches: Batches,
    *,
    select: PyTree,
    step: Array | int = 0,
) -> tuple[PyTree, Work]:
    """Computes the gradient of one batch at a trained model, to choose among weights.

    Args:
      key: of dropout and augmentation.
      loss_fn: as `local.objective` returns it; the gradient is that of training or of
        an evaluation, like the loss.
      trained: the result of local training.
      batches: the client's data.
      select: the prunable leaves.
      step: of the batch in the last epoch; may be traced.

    Returns:
      The gradient, a float32 tree like the parameters, and the work so far: that of
      training, of the gradient, which is dense for the weights, and of the choice.
    """
    model = trained.model
    rows, weight = batches.order[-1, step], batches.weight[-1, step]
    x, y = batches.x[rows], batches.y[rows]
    gradient = jax.grad(loss_fn, argnums=1, has_aux=True)
    grads, _ = gradient(key, model.params, model.stats, x, y, weight)
    passes = work(jnp.sum(weight), model.mask)
    done = jax.tree.map(jnp.add, trained.metrics["work"], passes)
    return grads, done._replace(extra=done.extra + top_k.flops(grads, select))


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
      key, loss_fn, trained, batches, step: as in `screen`.
      kept, alive, select, anywhere: as in `regrow.exchange`.

    Returns:
      `trained` with the new model, and the work as `screen` returns it.
    """
    grads, done = screen(key, loss_fn, trained, batches, select=select, step=step)
    moves = trained.model, jax.tree.map(jnp.abs, grads), kept, alive
    model = regrow.exchange(*moves, select=select, anywhere=anywhere)
    return trained._replace(model=model, metrics=trained.metrics | {"work": done})


def work(count: Array, mask: PyTree) -> Work:
    """Returns the work of `count` samples if pruned weights need gradients too."""
    sparse = local.work(count, mask)
    return sparse._replace(weight_grad=local.dense_work(count, mask).weight_grad)
