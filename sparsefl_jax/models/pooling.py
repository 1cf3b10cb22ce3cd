"""Pooling by slices and maxima, with gradients that read and never scatter.

Slices and `maximum` are many times cheaper than `lax.reduce_window` and its gradient.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from sparsefl_jax.core.types import Array
from sparsefl_jax.models import shifts


class Windows(NamedTuple):
    """Windows over the two spatial axes of images [B, H, W, C]."""

    size: tuple[int, int]
    strides: tuple[int, int]
    pad: tuple[tuple[int, int], tuple[int, int]]  # -inf before and behind each axis

    @property
    def kind(self) -> str:
        """'disjoint', 'sliding' by one step, or 'other'."""
        if self.pad == ((0, 0), (0, 0)):
            if self.size == self.strides:
                return "disjoint"
            if self.strides == (1, 1):
                return "sliding"
        return "other"


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


def maximum(x: Array, windows: Windows) -> Array:
    """Takes the maximum over windows of x [B, H, W, C], [B, h, w, C].

    Example:
      >>> x = jnp.arange(9, dtype=jnp.float32).reshape(1, 3, 3, 1)
      >>> maximum(x, Windows((3, 3), (3, 3), ((0, 0), (0, 0)))).item()
      8.0
    """
    # A convolution reads every entry of its images several times, and so do windows
    # that overlap; disjoint ones read it once.
    x = x if windows.kind == "disjoint" else materialize(x)
    if windows.kind == "sliding":
        _, _, y = _slide(x, windows.size)
        return y.reshape(*y.shape[:2], -1, x.shape[3])
    return materialize(
        _take_largest(_places(_add_border(x, windows, -jnp.inf), windows))
    )


def maximum_grad(x: Array, g: Array, windows: Windows) -> Array:
    """Returns the gradient by x; equal maxima of a window share g equally.

    XLA computes once what `maximum` computes too.

    Args:
      x: as in `maximum`.
      g: [B, h, w, C], the gradient of the maxima.
      windows: as in `maximum`.

    Example:
      >>> x, g = jnp.zeros((1, 2, 2, 1)), jnp.ones((1, 1, 1, 1))
      >>> windows = Windows((2, 2), (2, 2), ((0, 0), (0, 0)))
      >>> maximum_grad(x, g, windows).reshape(-1).tolist()
      [0.25, 0.25, 0.25, 0.25]
    """
    g = materialize(g)
    if windows.kind == "disjoint":
        return _disjoint_grad(x, g, maximum(x, windows), windows)
    if windows.kind == "sliding":
        flat, down, y = _slide(materialize(x), windows.size)
        (height, width), channels = windows.size, x.shape[3]
        hits = materialize(_hits(_views(flat, height, 1, 1), down))  # of each column
        pairs = (_views(v, width, channels, 2) for v in (down, hits))
        hits = [jnp.where(v == y, n, 0.0) for v, n in zip(*pairs, strict=True)]
        share = _share(g.reshape(y.shape), functools.reduce(jnp.add, hits))
        g = _sliding_grad(down, y, share, width, channels, 2)
        return materialize(_sliding_grad(flat, down, g, height, 1, 1).reshape(x.shape))
    padded = _add_border(x, windows, jnp.nan)  # equals no maximum
    views, y = _places(padded, windows), maximum(x, windows)
    share = _share(g, _hits(views, y))
    parts = [jnp.where(v == y, share, 0.0) for v in views]
    placed = jax.linear_transpose(lambda x: _places(x, windows), padded)
    dx = materialize(*placed(parts))
    (top, _), (left, _) = windows.pad
    return dx[:, top : top + x.shape[1], left : left + x.shape[2]]


def _slide(x: Array, size: Sequence[int]) -> tuple[Array, Array, Array]:
    """Returns x as rows of W * C entries, and the maxima of columns and of windows.

    So both axes shift along contiguous memory.
    """
    (height, width), channels = size, x.shape[3]
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


def _split(x: Array, size: Sequence[int]) -> Array:
    """Returns the disjoint windows [B, h, k, w, l, C] of x [B, H, W, C]."""
    (batch, height, width, channels), (k, m) = x.shape, size
    h, w = height // k, width // m
    return x[:, : h * k, : w * m].reshape(batch, h, k, w, m, channels)


def _disjoint_grad(x, g, y, windows):
    share = _share(g, _hits(_places(x, windows), y))
    share, top = (v[:, :, None, :, None] for v in (share, y))
    x_split = _split(x, windows.size)
    dx = jnp.where(x_split == top, share, 0.0)
    batch, h, k, w, m, channels = x_split.shape
    dx = dx.reshape(batch, h * k, w * m, channels)
    rest = [(0, n - m) for n, m in zip(x.shape, dx.shape, strict=True)]
    return jnp.pad(dx, rest)


def _views(x: Array, size: int, hop: int, axis: int) -> list[Array]:
    """Returns `size` views of x, each `hop` entries further along `axis`."""
    reach = x.shape[axis] - (size - 1) * hop
    return [
        lax.slice_in_dim(x, i, i + reach, axis=axis) for i in range(0, size * hop, hop)
    ]


def _sliding_grad(x, y, share, size, hop, axis):
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


def _add_border(x: Array, windows: Windows, value: float) -> Array:
    return jnp.pad(x, ((0, 0), *windows.pad, (0, 0)), constant_values=value)


def _places(x: Array, windows: Windows) -> list[Array]:
    """Returns the entries [B, h, w, C] of bordered x at each place of the windows."""
    sides = zip(x.shape[1:3], windows.size, windows.strides, strict=True)
    out = [(n - k) // s + 1 for n, k, s in sides]
    return shifts.views(x, windows.size, out, windows.strides)
