"""Structured pruning by trainable thresholds, with straight-through estimators.

A kernel has its outputs, the filters or neurons, on the last axis. Filter i is alive
while its importance, the mean of its |w|, lies above its threshold.

Source: Kim et al., "SpaFL", NeurIPS 2024, https://arxiv.org/abs/2406.00431, eq. (1).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.sparsity import trees

DEAD = 1  # at most this percentage of filters alive: thresholds are reset to 0


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def unit_step(d: Array, estimator: str = "identity") -> Array:
    """Returns 1 where d > 0, else 0; an estimator defines the gradient.

    Args:
      d: any float array.
      estimator: where the gradient passes the step: 'identity' for everywhere, 'window'
        for where |d| > 1, as in SpaFL's official CIFAR code.

    Returns:
      An array of the shape and dtype of `d`.

    Example:
      >>> unit_step(jnp.array([-0.5, 0.0, 0.5])).tolist()
      [0.0, 0.0, 1.0]
      >>> jax.grad(unit_step)(jnp.float32(-0.5)).item()
      1.0
    """
    return (d > 0).astype(d.dtype)


def _step_backward(estimator, d, g):
    return (g if estimator == "identity" else jnp.where(jnp.abs(d) > 1, g, 0.0),)


unit_step.defvjp(lambda d, estimator: (unit_step(d, estimator), d), _step_backward)


def importance(kernel: Array) -> Array:
    """Returns the mean |w| of every filter; the slope of |w| at 0 is 0.

    Args:
      kernel: float32 [..., O].

    Returns:
      float32 [O].

    Example:
      >>> importance(jnp.array([[1.0, 0.0], [-3.0, 0.0]])).tolist()
      [2.0, 0.0]
    """
    # The derivative of `jnp.abs` at 0 is 1.
    size = kernel * jax.lax.stop_gradient(jnp.sign(kernel))
    return jnp.mean(size, tuple(range(kernel.ndim - 1)))


def along_outputs(values: Array, kernel: Array) -> Array:
    """Gives values the axes of a kernel.

    Args:
      values: [O].
      kernel: [..., O].

    Returns:
      [1, ..., 1, O].

    Example:
      >>> along_outputs(jnp.ones(2), jnp.ones((5, 3, 2))).shape
      (1, 1, 2)
    """
    return jnp.expand_dims(values, tuple(range(kernel.ndim - 1)))


def is_dead(kernel: Array, threshold: Array) -> Array:
    """Returns whether at most 1 % of a layer's filters are alive.

    It counts in integers: a mean in float32 puts 5 of 500 above 0.01.

    Args:
      kernel: float32 [..., O].
      threshold: float32 [O].

    Returns:
      shape=(), bool.

    Example:
      >>> is_dead(jnp.ones((3, 2)), jnp.array([2.0, 3.0])).item()
      True
    """
    alive = jnp.sum(importance(kernel) > threshold, dtype=jnp.int32)
    return 100 * alive <= DEAD * threshold.size


def revive(params: PyTree, thresholds: dict[str, Array]) -> dict[str, Array]:
    """Sets the thresholds of dead layers to 0; the gradient passes.

    Args:
      params: the parameters.
      thresholds: [O] by the path of a kernel [..., O].

    Returns:
      Thresholds by path.

    Example:
      >>> revive({'w': jnp.ones((3, 2))}, {'w': jnp.array([2.0, 3.0])})['w'].tolist()
      [0.0, 0.0]
    """

    def revive(kernel, threshold):
        cut = jnp.where(is_dead(kernel, threshold), threshold, 0.0)
        return threshold - jax.lax.stop_gradient(cut)

    leaves = trees.by_path(params)
    return {path: revive(leaves[path], t) for path, t in thresholds.items()}


def prune(
    params: PyTree, thresholds: dict[str, Array], estimator: str = "identity"
) -> PyTree:
    """Sets pruned filters to 0, differentiably in parameters and thresholds.

    Let g be the gradient of a layer's result and n the inputs of a filter. With the
    estimator 'identity' the gradients are

        threshold_i: -sum_j g_ij w_ij
        w_ij:        p_i g_ij + sign(w_ij) / n sum_j' g_ij' w_ij'

    Args:
      params: the parameters.
      thresholds: [O] by the path of a kernel [..., O].
      estimator: as in `unit_step`.

    Returns:
      A tree like `params`.

    Example:
      >>> pruned = prune({'w': jnp.array([[1.0, 3.0]])}, {'w': jnp.array([2.0, 2.0])})
      >>> pruned['w'].tolist()
      [[0.0, 3.0]]
    """

    def prune_leaf(path, kernel):
        if path not in thresholds:
            return kernel
        alive: Any = unit_step(importance(kernel) - thresholds[path], estimator)
        return kernel * along_outputs(alive, kernel)

    return trees.map_by_path(prune_leaf, params)


def filter_masks(params: PyTree, thresholds: dict[str, Array]) -> PyTree:
    """Returns the mask that thresholds define, after reviving dead layers.

    Args:
      params: the parameters.
      thresholds: [O] by the path of a kernel [..., O].

    Returns:
      A bool tree like `params`, True on leaves without thresholds.

    Example:
      >>> params = {'b': jnp.ones(2), 'w': jnp.array([[1.0, 3.0]])}
      >>> filter_masks(params, {'w': jnp.array([2.0, 2.0])})['w'].tolist()
      [[False, True]]
    """
    thresholds = revive(params, thresholds)

    def mask_of(path, leaf):
        if path not in thresholds:
            return jnp.ones(leaf.shape, bool)
        alive = importance(leaf) > thresholds[path]
        return jnp.broadcast_to(along_outputs(alive, leaf), leaf.shape)

    return trees.map_by_path(mask_of, params)


def zeros(params: PyTree, select: PyTree) -> dict[str, Array]:
    """Returns a threshold of 0 for every filter of the selected kernels.

    Args:
      params: a tree of arrays or shapes.
      select: tree of Python bools.

    Returns:
      float32 [O] by the path of a kernel [..., O].

    Example:
      >>> zeros({'w': jnp.ones((3, 2))}, {'w': True})['w'].tolist()
      [0.0, 0.0]
    """
    chosen = zip(trees.layer_paths(select), trees.layers(params, select), strict=True)
    return {path: jnp.zeros(kernel.shape[-1:], jnp.float32) for path, kernel in chosen}
