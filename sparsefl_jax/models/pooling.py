"""Pooling by slices and maxima, with gradients that read and never scatter.

Slices and `maximum` are many times cheaper than `lax.reduce_window` and its gradient.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from sparsefl_jax.core.types import Array
from sparsefl_jax.models import lowerings


def materialize(x: Array) -> Array:
    """Returns x, which XLA:CPU then writes to memory before anything reads it.

    XLA:CPU fuses an operation into every reader of its result, and a reader that reads
    an entry several times computes it as often: a pool that follows a convolution is
    computed again for each of the convolution's overlapping tiles. There
    `lax.optimization_barrier` does not help, because XLA:CPU removes it before it
    fuses. The same holds for the gradient by x. Other platforms fuse as they like.

    Example:
      >>> materialize(jnp.arange(3)).tolist()
      [0, 1, 2]
    """
    return lax.platform_dependent(x, cpu=_call, default=lambda x: x)


@jax.jit
def _barrier(x):
    return lax.optimization_barrier(x)  # jit would forward the argument of an identity


def _call(x):
    # Nothing is fused across the borders of a call that XLA does not inline.
    with set_xla_metadata(inlineable="false"):
        return _barrier(x)


def maximum(x: Array, size: Sequence[int], sliding: bool) -> Array:
    """Takes the maximum over windows of x [B, H, W, C], [B, h, w, C].

    Args:
      x: the images.
      size: height and width of a window.
      sliding: whether the windows are one step apart; otherwise they stand side by
        side.

    Example:
      >>> x = jnp.arange(9, dtype=jnp.float32).reshape(1, 3, 3, 1)
      >>> maximum(x, (3, 3), False).item()
      8.0
    """
    if sliding:
        _, _, y = _slide(x, size)
        return y.reshape(*y.shape[:2], -1, x.shape[3])
    return materialize(_take_largest(_places(x, size)))


def maximum_grad(x: Array, g: Array, size: Sequence[int], sliding: bool) -> Array:
    """Returns the gradient by x; equal maxima of a window share g equally.

    XLA computes once what `maximum` computes too.

    Args:
      x: as in `maximum`.
      g: [B, h, w, C], the gradient of the maxima.
      size, sliding: as in `maximum`.

    Example:
      >>> x, g = jnp.zeros((1, 2, 2, 1)), jnp.ones((1, 1, 1, 1))
      >>> maximum_grad(x, g, (2, 2), False).reshape(-1).tolist()
      [0.25, 0.25, 0.25, 0.25]
    """
    grad = _sliding_grad if sliding else _disjoint_grad
    return grad(x, materialize(g), size)


def _slide(x: Array, size: Sequence[int]) -> tuple[Array, Array, Array]:
    """Returns x as rows of W * C entries, and the maxima of columns and of windows.

    So both axes shift along contiguous memory. x is written first, as windows that
    overlap read every entry several times.
    """
    (height, width), channels = size, x.shape[3]
    x = materialize(x)
    x = x.reshape(*x.shape[:2], -1)
    down = materialize(_take_largest(_views(x, height, 1, 1)))
    return x, down, materialize(_take_largest(_views(down, width, channels, 2)))


def _take_largest(views: Sequence[Array]) -> Array:
    return functools.reduce(jnp.maximum, views)


def _hits(views: Sequence[Array], y: Array) -> Array:
    """Counts the entries of each window that equal its maximum, in float32."""
    return functools.reduce(jnp.add, [(v == y).astype(jnp.float32) for v in views])


def _share(g: Array, hits: Array) -> Array:
    return (g / hits).astype(g.dtype)


def _disjoint_grad(x, g, size):
    y, (k, m) = maximum(x, size, False), size
    batch, h, w, channels = y.shape
    share = _share(g, _hits(_places(x, size), y))
    share, top = (v[:, :, None, :, None] for v in (share, y))
    x_split = x[:, : h * k, : w * m].reshape(batch, h, k, w, m, channels)
    dx = jnp.where(x_split == top, share, 0.0)
    dx = dx.reshape(batch, h * k, w * m, channels)
    rest = [(0, n - m) for n, m in zip(x.shape, dx.shape, strict=True)]
    return jnp.pad(dx, rest)


def _sliding_grad(x, g, size):
    flat, down, y = _slide(x, size)
    (height, width), channels = size, x.shape[3]
    hits = materialize(_hits(_views(flat, height, 1, 1), down))  # of each column
    pairs = (_views(v, width, channels, 2) for v in (down, hits))
    hits = [jnp.where(v == y, n, 0.0) for v, n in zip(*pairs, strict=True)]
    share = _share(g.reshape(y.shape), functools.reduce(jnp.add, hits))
    g = _grad_along(down, y, share, width, channels, 2)
    return materialize(_grad_along(flat, down, g, height, 1, 1).reshape(x.shape))


def _views(x: Array, size: int, hop: int, axis: int) -> list[Array]:
    """Returns `size` views of x, each `hop` entries further along `axis`."""
    reach = x.shape[axis] - (size - 1) * hop
    return [
        lax.slice_in_dim(x, i, i + reach, axis=axis) for i in range(0, size * hop, hop)
    ]


def _grad_along(x, y, share, size, hop, axis):
    # Autodiff would scatter into one padded array per view. Reading windows is cheaper:
    # an entry sums the shares of the windows whose maximum it equals.
    pad = [(0, 0)] * x.ndim
    pad[axis] = ((size - 1) * hop,) * 2
    shares = jnp.pad(share, pad)
    tops = jnp.pad(y, pad, constant_values=jnp.inf)
    pairs = zip(
        _views(tops, size, hop, axis), _views(shares, size, hop, axis), strict=True
    )
    terms = [jnp.where(x == top, share, 0.0) for top, share in pairs]
    return functools.reduce(jnp.add, terms)


def _places(x: Array, size: Sequence[int]) -> list[Array]:
    """Returns the entries [B, h, w, C] of x at each place of disjoint windows."""
    out = [n // k for n, k in zip(x.shape[1:3], size, strict=True)]
    return lowerings.views(x, size, out, size)
