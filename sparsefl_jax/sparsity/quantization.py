"""Affine quantisation: a tensor as small unsigned codes, a scale and a zero point.

    x ~ scale (code - zero),  scale = (max - min) / (2^bits - 1)

The range is widened to hold 0, as that of a pruned tensor does anyway. So 0 has a code
and comes back exactly, and no value is off by more than scale / 2. Without widening,
the zero point of a tensor of one sign would lie outside the codes, and most values
would be clipped.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, https://arxiv.org/abs/1712.05877.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, PyTree


class Grid(NamedTuple):
    """The scale and the zero point of every leaf's codes."""

    scale: PyTree  # shape=(), float32, >= 0; 0 where all values are 0
    zero: PyTree  # shape=(), int32, the code of 0


def quantize(tree: PyTree, bits: int = 8) -> tuple[PyTree, Grid]:
    """Quantizes every leaf to the nearest codes on a grid of its own.

    Args:
      tree: float32 arrays. A leaf with a NaN or an infinity comes back as NaN.
      bits: of a code, 1 to 8.

    Returns:
      A tree of codes in [0, 2^bits - 1], uint8, and the grid. A constant leaf gets the
      code at one end of the range, and comes back up to rounding.

    Example:
      >>> codes, grid = quantize({'w': jnp.array([-1., 0., 0.1, 2.])}, bits=2)
      >>> codes['w'].tolist(), grid.scale['w'].item(), grid.zero['w'].item()
      ([0, 1, 1, 3], 1.0, 1)
    """
    top = jnp.float32(2**bits - 1)

    def scale_of(x):
        return (jnp.max(x, initial=0.0) - jnp.min(x, initial=0.0)) / top

    def zero_of(x, scale):
        return jnp.round(-jnp.min(x, initial=0.0) / _divisor(scale)).astype(jnp.int32)

    def encode(x, scale, zero):
        steps = jnp.round(x / _divisor(scale)) + zero.astype(jnp.float32)
        return jnp.clip(steps, 0, top).astype(jnp.uint8)

    scale = jax.tree.map(scale_of, tree)
    zero = jax.tree.map(zero_of, tree, scale)
    return jax.tree.map(encode, tree, scale, zero), Grid(scale, zero)


def dequantize(codes: PyTree, grid: Grid) -> PyTree:
    """Returns the values of codes.

    Args:
      codes: uint8 tree, as `quantize` returns it.
      grid: of the same leaves.

    Returns:
      A float32 tree.

    Example:
      >>> grid = Grid(jnp.float32(0.5), jnp.int32(1))
      >>> dequantize(jnp.array([0, 1, 3], jnp.uint8), grid).tolist()
      [-0.5, 0.0, 1.0]
    """

    def decode(code, scale, zero):
        return scale * (code.astype(jnp.float32) - zero.astype(jnp.float32))

    return jax.tree.map(decode, codes, grid.scale, grid.zero)


def _divisor(scale: Array) -> Array:
    return jnp.where(scale > 0, scale, jnp.ones_like(scale))
