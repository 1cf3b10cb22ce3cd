"""Local training of dense weights whose passes through the network are sparse.

The network computes with weights that are a function of the trained ones, and its
layers save a sparse input for the gradients of their kernels.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import Array, PyTree, Work
from sparsefl_jax.models.base import Model
from sparsefl_jax.sparsity import top_k, trees
from sparsefl_jax.training import local


def objective(
    model: Model,
    weights: Callable,
    select: PyTree,
    *,
    inputs: Callable | None = None,
    sorts: bool = False,
) -> Callable:
    """Returns the loss of trained weights at those that the network computes with.

    Args:
      model: the network and its loss.
      weights: `(params) -> params`, what the network computes with. The gradient flows
        through it.
      select: tree of Python bools, the kernels that `weights` makes sparse.
      inputs: `(kernel) -> share`, how much of its input a layer saves for the gradient
        of a selected kernel, which the network computes with: the largest |x| of the
        batch, ties included. None saves all.
      sorts: whether `weights` orders the entries of each selected kernel, which the
        work charges in each step.

    Returns:
      `loss_fn` as `local.objective` returns it. Its sums have `work`: selected kernels
      count by their share of non-zeros in the forward pass and in the gradient of the
      inputs, and by `inputs` in the gradient of the weights.

    Raises:
      ValueError: from `loss_fn`: with `inputs`, a selected kernel is in no layer that
        can be hooked.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model = sfl.testing.tiny_model()
      >>> select = sfl.masks.prunable(model.macs, ("fc1/kernel",))
      >>> loss_fn = objective(model, lambda params: params, select)
    """
    if inputs is not None:  # static branch
        model = with_inputs(model, select, inputs)
    loss_fn = local.objective(model)

    def work(count, used):
        def of(share):
            return jax.tree.map(
                lambda w, s: count * (share(w) if s else jnp.float32(1)), used, select
            )

        passes = of(nonzero)
        gradient = of(inputs or (lambda kernel: jnp.float32(1)))
        sizes = trees.layer_sizes(used, select) if sorts else np.zeros(1)
        extra = np.sum(sizes * np.log2(sizes + 1))
        return Work(passes, passes, gradient, count, jnp.float32(extra))

    def sparse_loss(key, params, stats, x, y, weight):
        used = weights(params)
        loss, (stats, sums) = loss_fn(key, used, stats, x, y, weight)
        return loss, (stats, sums | {"work": work(sums["count"], used)})

    return sparse_loss


def with_inputs(model: Model, select: PyTree, inputs: Callable) -> Model:
    """Returns a model whose layers save their largest inputs; arguments as above.

    Example:
      >>> import sparsefl_jax as sfl
      >>> model = sfl.testing.tiny_model()
      >>> select = sfl.masks.prunable(model.macs, ("*kernel",))
      >>> model = with_inputs(model, select, lambda kernel: 0.5)
    """

    def save(x, kernel, weight):
        kept = top_k.largest_share(x, inputs(kernel), weight)
        return jnp.where(kept, x, jnp.zeros_like(x))

    return model.with_inputs(save, trees.layer_paths(select))


def train(key, loss_fn, tx, model, batches) -> local.Trained:
    """Trains all weights of a model by its `objective`; arguments of `local.train`."""
    sums = {"work": local.dense_work(jnp.float32(0), model.params)}
    dense = model._replace(mask=None)
    return local.train(key, loss_fn, tx, dense, batches, sums=sums)


def nonzero(kernel: Array) -> Array:
    """Returns the share of entries that are not 0; shape=(), float32.

    Example:
      >>> nonzero(jnp.array([0.0, 2.0])).item()
      0.5
    """
    return jnp.mean(kernel != 0, dtype=jnp.float32)
