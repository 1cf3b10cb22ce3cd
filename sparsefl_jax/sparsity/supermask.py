"""Supermasks: random weights that never change, under masks drawn from scores.

Zhou et al., "Deconstructing Lottery Tickets", NeurIPS 2019,
https://arxiv.org/abs/1905.01067 (masks from Bernoulli draws, signed constants); Isik et
al., ICLR 2023, https://arxiv.org/abs/2209.15328, for the constants and the gradient.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, Key, PyTree
from sparsefl_jax.sparsity import masks, trees


def has_score(params: PyTree) -> PyTree:
    """Selects the leaves that have scores: all of each layer that has a kernel.

    Args:
      params: the parameters, or a tree like them.

    Returns:
      A tree of Python bools.

    Example:
      >>> has_score({'fc': {'kernel': 1, 'bias': 2}, 'bn': {'scale': 3, 'bias': 4}})
      {'bn': {'bias': False, 'scale': False}, 'fc': {'bias': True, 'kernel': True}}
    """
    paths = trees.leaf_paths(params)
    return trees.map_by_path(lambda path, _: _kernel(path) in paths, params)


def split_scored(params: PyTree) -> tuple[PyTree, PyTree]:
    """Splits a tree into the leaves that have scores and the others.

    Example:
      >>> split_scored({'fc': {'kernel': 1, 'bias': 2}, 'bn': {'scale': 3}})[1]['bn']
      {'scale': 3}
    """
    return trees.split(params, has_score(params))


def signed_constants(key: Key, params: PyTree) -> PyTree:
    """Draws weights that are never trained: +c or -c, where c = e / sqrt(fan-in).

    Args:
      key: draws the signs.
      params: a tree of arrays or shapes. A kernel's last axis holds its outputs, and a
        bias has the fan-in of its kernel. In other layers, the leaves named `scale`
        become 1, and those named `bias` 0.

    Returns:
      A float32 tree like `params`.

    Raises:
      ValueError: a leaf is none of these, or there is no kernel.

    Example:
      >>> w = signed_constants(jax.random.key(0), {'kernel': jnp.zeros((4, 1))})
      >>> jnp.abs(w['kernel']).ravel().tolist()  # e / 2
      [1.3591, 1.3591, 1.3591, 1.3591]
    """
    leaves = trees.by_path(params)
    if not any(jax.tree.leaves(has_score(params))):
        raise UserError(f"no kernel among the leaves {[*leaves]}")
    keys, out = jax.random.split(key, len(leaves)), []
    for (path, leaf), sign_key in zip(leaves.items(), keys, strict=True):
        name = path.rpartition("/")[2]
        if (kernel := leaves.get(_kernel(path))) is not None:
            c = jnp.float32(math.e / math.sqrt(math.prod(kernel.shape[:-1])))
            sign = jax.random.bernoulli(sign_key, shape=leaf.shape)
            out.append(jnp.where(sign, c, -c))
        elif name in ("scale", "bias"):
            out.append(jnp.full(leaf.shape, name == "scale", jnp.float32))
        else:
            raise UserError(f"leaf {path!r}, expected a kernel, bias or scale")
    return jax.tree.unflatten(jax.tree.structure(params), out)


def _kernel(path: str) -> str:
    """Returns the path of the kernel of a leaf's layer."""
    return path[: path.rfind("/") + 1] + "kernel"


@jax.custom_vjp
def keep(uniform: Array, scores: Array, weights: Array) -> Array:
    """Keeps the weights where uniform < p = sigmoid(scores), the mask m; 0 elsewhere.

    As in the authors' code, the gradient passes the draw times p, and then the sigmoid:
    dL/ds = dL/dm p p (1 - p), with dL/dm = dL/dw weights also where m is 0.

    Args:
      uniform: float32 in (0, 1); has no gradient.
      scores: float32.
      weights: float32; has no gradient.

    Returns:
      float32, the common shape of all.

    Example:
      >>> grad = jax.grad(keep, argnums=1)
      >>> float(grad(jnp.float32(0.9), jnp.float32(0.0), jnp.float32(2.0)))  # p = 1 / 2
      0.25
    """
    kept = uniform < jax.nn.sigmoid(scores)
    return jnp.where(kept, weights, jnp.zeros_like(weights))


def _keep_forward(uniform, scores, weights):
    return keep(uniform, scores, weights), (scores, weights)


def _keep_backward(residual, g):
    scores, weights = residual
    p = jax.nn.sigmoid(scores)
    return None, g * weights * p * p * (1 - p), None


keep.defvjp(_keep_forward, _keep_backward)


def draw(key: Key, scores: PyTree, frozen: PyTree) -> PyTree:
    """Draws a mask, and returns the parameters that it keeps.

    Args:
      key: a typed key.
      scores: float32 tree, None where a leaf has none.
      frozen: all parameters, as `signed_constants` returns them.

    Returns:
      A tree like `frozen`, differentiable in `scores`.

    Example:
      >>> frozen, scores = {'kernel': jnp.ones(2)}, {'kernel': jnp.array([-99., 99.])}
      >>> draw(jax.random.key(0), scores, frozen)['kernel'].tolist()
      [0.0, 1.0]
    """
    weights, rest = split_scored(frozen)
    uniform = optax.tree.random_like(key, weights, _uniform)
    kept = jax.tree.map(keep, uniform, scores, weights)
    return trees.merge(kept, rest)


def mask_of(params: PyTree) -> PyTree:
    """Returns the mask of drawn parameters: False where a leaf with scores is 0.

    Example:
      >>> mask_of({'kernel': jnp.array([0.0, 2.0])})['kernel'].tolist()
      [False, True]
    """
    return masks.support(params, has_score(params))


def _uniform(key: Key, shape: Any, dtype: Any) -> Array:
    """Draws from (0, 1) on a grid of 2^-16, because drawing takes much of a step."""
    drawn = jax.random.bits(key, shape, jnp.uint16).astype(dtype)
    return (drawn + 0.5) / 65536
