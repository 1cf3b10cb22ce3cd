"""The forms in which a pass of a convolution can be computed.

Each form of each pass uses only operations whose forward version is fast:

- `canonical`: both gradients are forward convolutions with axes exchanged;
- `patches`: shifted views side by side and one matmul (the transpose is col2im);
- `winograd2`, `winograd3`, `winograd4`: minimal filtering F(m x m, k x k) as batched
  matmuls (Lavin and Gray, CVPR 2016, arXiv:1509.09308), with Cook-Toom matrices;
- `plain`: the convolution of `jax.lax`, whose gradients stay as they are.

1x1 kernels have only `plain` and `patches`; of strided ones there is no Winograd form,
and the gradients are those of `patches`, as others would work on a dilated g.

Layouts: activations are NHWC, kernels HWIO; `I` and `O` count channels. Results have
the dtype of the operands. Winograd always computes in float32, because its transforms
take differences of large numbers.
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsefl_jax.core.types import Array

WINOGRAD = ("winograd2", "winograd3", "winograd4")
NAMES = ("plain", "canonical", "patches", *WINOGRAD)
DIMENSIONS = ("NHWC", "HWIO", "NHWC")
_WIDE = 17
# The interpolation points besides infinity, in the order with the smallest f32 errors.
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)


def forward(name: str, x: Array, w: Array, stride: int, pad: int) -> Array:
    """Convolves x [B, H, W, I] with w [k, k, I, O] -> [B, h, w, O]."""
    if name == "patches" or w.shape[0] == 1:
        columns = _patches(x, w.shape[0], stride, pad)
        return jnp.tensordot(columns, w.reshape(-1, w.shape[3]), 1)
    if name in WINOGRAD and stride == 1:
        return _winograd(int(name[-1]), x, w, pad).astype(x.dtype)
    if w.shape[2] == 1 and w.shape[3] < _WIDE:
        # XLA:CPU convolves one channel with 17 kernels three times faster than with 16.
        wide = jnp.pad(w, ((0, 0),) * 3 + ((0, _WIDE - w.shape[3]),))
        return plain(x, wide, stride, pad)[..., : w.shape[3]]
    return plain(x, w, stride, pad)


def input_grad(name: str, x: Array, g: Array, w: Array, stride: int, pad: int) -> Array:
    """Returns the gradient by x from g [B, h, w, O]; reads x's shape and dtype only."""
    if name == "patches" or w.shape[0] == 1 or stride > 1:
        return _fold(jnp.tensordot(g, w, ((3,), (3,))), x.shape[1:3], stride, pad)
    if name == "canonical":
        flipped = jnp.flip(w, (0, 1)).swapaxes(2, 3)
        return forward(name, g, flipped, 1, w.shape[0] - 1 - pad)
    return _winograd_input_grad(int(name[-1]), x, g, w, pad).astype(x.dtype)


def weight_grad(
    name: str, x: Array, g: Array, w: Array, stride: int, pad: int
) -> Array:
    """Returns the gradient by w from g [B, h, w, O]; reads w's shape and dtype only."""
    if name == "patches" or w.shape[0] == 1 or stride > 1:
        columns = _patches(x, w.shape[0], stride, pad)
        return jnp.tensordot(columns, g, ((0, 1, 2), (0, 1, 2))).reshape(w.shape)
    if name == "canonical":  # channels as batch, the batch as channels, g as kernel
        images, kernel = x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3)
        return plain(images, kernel, 1, pad).transpose(1, 2, 0, 3)
    return _winograd_weight_grad(int(name[-1]), x, g, w.shape[0], pad).astype(w.dtype)


def plain(x: Array, w: Array, stride: int, pad: int) -> Array:
    """Convolves x [B, H, W, I] with w [k, k, I, O] by `jax.lax`."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), ((pad, pad),) * 2, dimension_numbers=DIMENSIONS
    )


def _patches(x, size, stride, pad):
    """Returns the patches [B, h, w, size * size * I] of x [B, H, W, I]."""
    x = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    out = [(n - size) // stride + 1 for n in x.shape[1:3]]
    return jnp.concatenate(views(x, (size, size), out, (stride, stride)), -1)


def _fold(columns, sides, stride, pad):
    """Transposes `_patches`: [B, h, w, size, size, I] -> [B, H, W, I]."""
    size = columns.shape[3]

    def spread(v, axis, start):
        reach = start + stride * (v.shape[axis] - 1) + 1
        config = [(0, 0, 0)] * v.ndim
        config[axis] = (start, sides[axis - 1] + 2 * pad - reach, stride - 1)
        return lax.pad(v, jnp.zeros((), v.dtype), config)

    def row(i):
        return sum(spread(columns[:, :, :, i, j], 2, j) for j in range(size))

    image = sum(spread(row(i), 1, i) for i in range(size))
    return image[:, pad : pad + sides[0], pad : pad + sides[1]]


@functools.cache
def cook_toom(m: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns matrices B, G, A with correlation(d, g) = A^T ((G g) * (B^T d)).

    Cook-Toom computes a product of polynomials from its values at `a = m + size - 1`
    points; the correlation is its transpose. Moving each point's Lagrange factor into G
    makes most entries of B integers.

    Args:
      m: the outputs of a tile along one axis.
      size: k, the size of the kernel, at least 2 and with m at most 9.

    Returns:
      B [a, a], G [a, size] and A [a, m], float64.

    Example:
      >>> b, g, a = cook_toom(2, 3)
      >>> d, k = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 0.0, 2.0])
      >>> (a.T @ ((g @ k) * (b.T @ d))).tolist()
      [7.0, 10.0]
    """
    a = m + size - 1
    points = np.array(POINTS[: a - 1])

    def evaluate(n):  # coefficients -> values at the points and at infinity
        return np.vstack((np.vander(points, n, increasing=True), np.eye(1, n, n - 1)))

    gaps = points[:, None] - points[None] + np.eye(a - 1)
    factor = np.append(gaps.prod(1), 1.0)
    # Rounding restores the exact zeros and ones.
    b = np.round(np.linalg.inv(evaluate(a)) * factor[None], 9)
    return b, evaluate(size) / factor[:, None], evaluate(m)


def _on_both_axes(matrix, v):
    """Returns matrix V matrix^T, for v [n * n, ..., C] and matrix [a, n].

    The result is [a * a, ..., C]. It takes two matmuls, because XLA:CPU computes sums
    of views one by one, with all their indexing.
    """
    rows, size = matrix.shape
    matrix, highest = jnp.asarray(matrix, jnp.float32), lax.Precision.HIGHEST
    first = jnp.tensordot(matrix, v.reshape(size, -1), 1, precision=highest)
    batched = jnp.broadcast_to(matrix, (rows, rows, size))
    result = jnp.matmul(batched, first.reshape(rows, size, -1), precision=highest)
    return result.reshape(rows * rows, *v.shape[1:])


def _tiles(matrix, x, m, out, pad=0):
    """Evaluates tiles of x, m apart, at the points.

    Args:
      matrix: [a, n], for tiles of side n.
      x: [B, H, W, C], the images, or the gradient of the output.
      m: the outputs of a tile along one axis.
      out: the sides of the output.
      pad: on each side of x.

    Returns:
      [a * a, B * th * tw, C], and the tiles along each axis.
    """
    size, count = matrix.shape[1], [-(-n // m) for n in out]
    ends = [pad + m * t - n for t, n in zip(count, out, strict=True)]
    x = jnp.pad(x, ((0, 0), *((pad, end) for end in ends), (0, 0)))
    down, right = (m * (t - 1) + 1 for t in count)
    # XLA:CPU compiles 2 n copies in half the time of one for each of the n * n places.
    rows = jnp.stack([x[:, i : i + down : m] for i in range(size)])
    tiles = jnp.stack([rows[:, :, :, i : i + right : m] for i in range(size)], 1)
    return _on_both_axes(matrix, tiles.reshape(size * size, -1, x.shape[3])), count


def _filters(m, w):
    """Evaluates the kernel [k, k, I, O] at the points: [a * a, I, O]."""
    size, _, inputs, outputs = w.shape
    flat = w.reshape(size * size, inputs, outputs)
    return _on_both_axes(cook_toom(m, size)[1], flat)


def _assemble(y, m, batch, count):
    """Joins tiles [m, m, B * th * tw, C] -> [B, m * th, m * tw, C]."""
    y = y.reshape(m, m, batch, *count, -1).transpose(2, 3, 0, 4, 1, 5)
    return y.reshape(batch, m * count[0], m * count[1], -1)


def _winograd(m, x, w, pad):
    (b, _, a), size = cook_toom(m, w.shape[0]), w.shape[0]
    out = [n + 2 * pad - size + 1 for n in x.shape[1:3]]
    tiles, count = _tiles(b.T, x, m, out, pad)
    y = _on_both_axes(a.T, tiles @ _filters(m, w))
    return _assemble(y, m, x.shape[0], count)[:, : out[0], : out[1]]


def _winograd_input_grad(m, x, g, w, pad):
    """Transposes `_winograd`; XLA computes g's tiles once for both gradients."""
    size = w.shape[0]
    tiles, count = _tiles(cook_toom(m, size)[2], g, m, g.shape[1:3])
    values = jnp.einsum("pto,pio->pti", tiles, _filters(m, w))
    spread = _on_both_axes(cook_toom(m, size)[0], values)
    a, reach = m + size - 1, -(-(size - 1) // m)
    spread = spread.reshape(a, a, x.shape[0], *count, -1)
    total = 0  # tiles overlap: their parts of side m, each shifted by whole tiles
    for i in range(reach + 1):
        for j in range(reach + 1):
            part = spread[i * m : (i + 1) * m, j * m : (j + 1) * m]
            fill = [(0, m - n) for n in part.shape[:2]]
            shift = [(k, reach - k) for k in (i, j)]
            total += jnp.pad(part, (*fill, (0, 0), *shift, (0, 0)))
    dx = _assemble(total, m, x.shape[0], [t + reach for t in count])
    return dx[:, pad : pad + x.shape[1], pad : pad + x.shape[2]]


def _winograd_weight_grad(m, x, g, size, pad):
    (b, matrix, a), out = cook_toom(m, size), g.shape[1:3]
    tiles, _ = _tiles(b.T, x, m, out, pad)
    values = jnp.einsum("pti,pto->pio", tiles, _tiles(a, g, m, out)[0])
    dw = _on_both_axes(matrix.T, values)
    return dw.reshape(size, size, *dw.shape[1:])


def convolve_any(
    x: Array,
    kernel: Array,
    out: Sequence[int],
    groups: int,
    strides: Sequence[int],
    dilation: Sequence[int],
) -> Array:
    """Convolves padded images x [B, H, W, G I] with a kernel [k, l, I, G O].

    Of any kernel, stride, dilation and number of groups, by one view of the images for
    each place of the kernel: with one input channel in a group, as in a depthwise
    convolution, the views are multiplied and added; otherwise they stand side by side
    and one matmul for each group sums them.

    Args:
      x: the images, with their borders.
      kernel: of x's dtype.
      out: the shape [B, h, w, G O] of the result.
      groups: G.
      strides: steps between windows.
      dilation: steps between the places of a window.

    Example:
      >>> x, kernel = jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 1, 2))
      >>> convolve_any(x, kernel, (1, 2, 2, 2), 2, (1, 1), (1, 1))[0, 0, 0].tolist()
      [9.0, 9.0]
    """
    size, inputs = kernel.shape[:2], kernel.shape[2]
    places = views(x, size, out[1:3], strides, dilation)
    kernels = kernel.reshape(-1, inputs, groups, kernel.shape[3] // groups)
    if inputs == 1:
        pairs = zip(places, kernels[:, None, None], strict=True)
        y = sum(v[..., None] * k for v, k in pairs)
    else:
        columns = jnp.stack(places, 3)
        columns = columns.reshape(*columns.shape[:4], groups, inputs)
        y = jnp.einsum("bhwkgi,kigo->bhwgo", columns, kernels)
    return y.reshape(out)


def weight_grad_any(
    x: Array,
    g: Array,
    out: Sequence[int],
    groups: int,
    dilation: Sequence[int],
    strides: Sequence[int],
) -> Array:
    """Returns the gradient [k, l, I, G O] of `convolve_any` by the kernel from g.

    Args:
      x: as in `convolve_any`.
      g: [B, h, w, G O], the gradient of the result.
      out: the shape of the kernel.
      groups, dilation, strides: of the convolution.

    Example:
      >>> x, g = jnp.ones((1, 4, 4, 2)), jnp.ones((1, 2, 2, 2))
      >>> weight_grad_any(x, g, (3, 3, 1, 2), 2, (1, 1), (1, 1))[0, 0].tolist()
      [[4.0, 4.0]]
    """
    places = views(x, out[:2], g.shape[1:3], strides, dilation)
    if out[2] == 1:
        # Rows first, which XLA:CPU sums much faster than three leading axes at once.
        each = (jnp.repeat(v, out[3] // groups, axis=3) * g for v in places)
        dw = jnp.stack([v.sum(1).sum((0, 1)) for v in each])
    else:
        g = g.reshape(*g.shape[:3], groups, -1)
        columns = jnp.stack(places, 3)
        columns = columns.reshape(*columns.shape[:4], groups, out[2])
        dw = jnp.einsum("bhwkgi,bhwgo->kigo", columns, g)
    return dw.reshape(out)


def views(
    x: Array,
    size: Sequence[int],
    out: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> list[Array]:
    """Returns the entries [B, h, w, C] of x at each place of its windows.

    Args:
      x: [B, H, W, C], with its borders.
      size: the places of a window along each axis.
      out: h and w, the windows along each axis.
      strides: steps between windows.
      dilation: steps between the places of a window.

    Example:
      >>> x = jnp.arange(4).reshape(1, 2, 2, 1)
      >>> [v.item() for v in views(x, (2, 2), (1, 1), (2, 2))]
      [0, 1, 2, 3]
    """
    reach = [s * (n - 1) + 1 for s, n in zip(strides, out, strict=True)]
    rows, columns = (
        [slice(i * d, i * d + r, s) for i in range(n)]
        for n, d, r, s in zip(size, dilation, reach, strides, strict=True)
    )
    return [x[:, i, j] for i in rows for j in columns]
