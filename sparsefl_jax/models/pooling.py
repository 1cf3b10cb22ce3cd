"""Pooling by slices and maxima, with gradients that read and never scatter."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from sparsefl_jax.core.types import Array
from sparsefl_jax.core.validate import one_of
from sparsefl_jax.models.fusion import materialize


def max_pool(x: Array, size: int = 2, stride: int = 2) -> Array:
    """Takes the maximum over windows, without padding.

    Slices and `maximum` are many times cheaper than `lax.reduce_window` and its
    gradient. Equal maxima of a window share the gradient.

    Args:
      x: [B, H, W, C].
      size: the side of the window; rows and columns beyond the last whole window are
        dropped.
      stride: the step between windows, 1 or `size`.

    Returns:
      [B, (H - size) // stride + 1, (W - size) // stride + 1, C].

    Raises:
      ValueError: the window is larger than the image, or the stride is another one.

    Example:
      >>> max_pool(jnp.arange(9, dtype=jnp.float32).reshape(1, 3, 3, 1)).item()
      4.0
    """
    if size > min(x.shape[1:3]):
        raise ValueError(f"size={size} is larger than the image {x.shape[1:3]}")
    one_of("stride", stride, (1, size))
    # A convolution reads every entry of its images several times, and so do windows
    # that overlap; disjoint ones read it once.
    y = _slide(materialize(x), size) if stride == 1 else _disjoint_max(x, size)
    return materialize(y)


def _slide(x: Array, size: int) -> Array:
    """Returns the maximum of windows one step apart, [B, H - size + 1, ..., C]."""
    batch, height, width, channels = x.shape
    # Rows of W * C entries: both axes shift along contiguous memory.
    x = _sliding_max(x.reshape(batch, height, width * channels), size, 1, 1)
    x = _sliding_max(x, size, channels, 2)
    return x.reshape(batch, height - size + 1, width - size + 1, channels)


def _windows(x: Array, size: int) -> Array:
    """Returns the disjoint windows [B, h, size, w, size, C] of x [B, H, W, C]."""
    batch, height, width, channels = x.shape
    h, w = height // size, width // size
    x = x[:, : h * size, : w * size]
    return x.reshape(batch, h, size, w, size, channels)


def _corners(windows: Array) -> list[Array]:
    """Returns the entries of windows one by one, each [B, h, w, C]."""
    sides = range(windows.shape[2])
    return [windows[:, :, i, :, j] for i in sides for j in sides]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _disjoint_max(x: Array, size: int) -> Array:
    """Returns the maximum of windows without overlap or gaps, [B, h, w, C]."""
    return functools.reduce(jnp.maximum, _corners(_windows(x, size)))


def _disjoint_max_forward(x, size):
    y = functools.reduce(jnp.maximum, _corners(_windows(x, size)))
    return y, (x, y)


def _disjoint_max_backward(size, residual, g):
    # Autodiff would add one padded array per entry of a window.
    x, y = residual
    windows = _windows(x, size)
    hits = [(v == y).astype(g.dtype) for v in _corners(windows)]
    share = g / functools.reduce(jnp.add, hits)
    share, top = (v[:, :, None, :, None] for v in (share, y))
    batch, h, _, w, _, channels = windows.shape
    dx = jnp.where(windows == top, share, 0.0)
    dx = dx.reshape(batch, h * size, w * size, channels)
    rest = [(0, n - m) for n, m in zip(x.shape, dx.shape, strict=True)]
    return (jnp.pad(dx, rest),)


_disjoint_max.defvjp(_disjoint_max_forward, _disjoint_max_backward)


def _views(x: Array, size: int, hop: int, axis: int) -> list[Array]:
    """Returns `size` views of x, each `hop` entries further along `axis`."""
    reach = x.shape[axis] - (size - 1) * hop
    return [
        lax.slice_in_dim(x, i, i + reach, axis=axis) for i in range(0, size * hop, hop)
    ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _sliding_max(x: Array, size: int, hop: int, axis: int) -> Array:
    """Returns the maximum of `size` entries `hop` apart, at each place of `axis`."""
    return materialize(functools.reduce(jnp.maximum, _views(x, size, hop, axis)))


def _sliding_max_forward(x, size, hop, axis):
    # The backward pass reads each maximum several times.
    y = materialize(functools.reduce(jnp.maximum, _views(x, size, hop, axis)))
    return y, (x, y)


def _sliding_max_backward(size, hop, axis, residual, g):
    # Autodiff would scatter into one padded array per view. Reading windows is cheaper:
    # an entry sums the shares of the windows whose maximum it equals.
    x, y = residual
    hits = [(v == y).astype(g.dtype) for v in _views(x, size, hop, axis)]
    pad = [(0, 0)] * x.ndim
    pad[axis] = ((size - 1) * hop,) * 2
    shares = jnp.pad(g / functools.reduce(jnp.add, hits), pad)
    tops = jnp.pad(y, pad, constant_values=jnp.inf)
    pairs = zip(
        _views(tops, size, hop, axis), _views(shares, size, hop, axis), strict=True
    )
    terms = [jnp.where(x == top, share, 0.0) for top, share in pairs]
    return (functools.reduce(jnp.add, terms),)


_sliding_max.defvjp(_sliding_max_forward, _sliding_max_backward)
