"""The forms in which a pass of a convolution can be computed.

Every form of every pass is an operation that is fast forward:

- `canonical`: both gradients are forward convolutions with axes exchanged;
- `patches`: shifted views side by side and one matmul; its transpose is col2im;
- `winograd2`, `winograd3`, `winograd4`: minimal filtering F(m x m, k x k) as batched
  matmuls (Lavin and Gray, CVPR 2016, arXiv:1509.09308), matrices by Cook-Toom;
- `plain`: what `jax.lax` does by itself.

Layouts: activations NHWC, kernels HWIO, float32. `I` and `O` count channels.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

NAMES = ("plain", "canonical", "patches", "winograd2", "winograd3", "winograd4")
DIMENSIONS = ("NHWC", "HWIO", "NHWC")
_WIDE = 17
# With infinity: small rationals, in the order that keeps float32 errors smallest.
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)


def forward(name, x, w, stride, pad):
    """The convolution of x [B, H, W, I] with w [k, k, I, O] -> [B, h, w, O]."""
    if name == "canonical" and w.shape[2] == 1 and w.shape[3] < _WIDE:
        # XLA:CPU convolves one channel with 17 kernels three times faster than with 16.
        wide = jnp.pad(w, ((0, 0),) * 3 + ((0, _WIDE - w.shape[3]),))
        return plain(x, wide, stride, pad)[..., : w.shape[3]]
    if name in ("plain", "canonical"):
        return plain(x, w, stride, pad)
    if name == "patches":
        columns = _patches(x, w.shape[0], stride, pad)
        return jnp.tensordot(columns, w.reshape(-1, w.shape[3]), 1)
    return _winograd(int(name[-1]), x, w, pad)


def input_grad(name, x, g, w, stride, pad):
    """The gradient by x (only its shape is read), from g [B, h, w, O]."""
    if name == "plain":
        return jax.linear_transpose(lambda v: plain(v, w, stride, pad), x)(g)[0]
    if name == "patches":
        return _fold(jnp.tensordot(g, w, ((3,), (3,))), x.shape[1:3], stride, pad)
    flipped = jnp.flip(w, (0, 1)).swapaxes(2, 3)
    return forward(name, g, flipped, 1, w.shape[0] - 1 - pad)


def weight_grad(name, x, g, w, stride, pad):
    """The gradient by w (only its shape is read), from g [B, h, w, O]."""
    if name == "plain":
        return jax.linear_transpose(lambda v: plain(x, v, stride, pad), w)(g)[0]
    if name == "canonical":  # channels as batch, the batch as channels, g as kernel
        images, kernel = x.transpose(3, 1, 2, 0), g.transpose(1, 2, 0, 3)
        return plain(images, kernel, 1, pad).transpose(1, 2, 0, 3)
    if name == "patches":
        columns = _patches(x, w.shape[0], stride, pad)
        return jnp.tensordot(columns, g, ((0, 1, 2), (0, 1, 2))).reshape(w.shape)
    return _winograd_weight_grad(int(name[-1]), x, g, w.shape[0], pad)


def plain(x, w, stride, pad):
    """The convolution as `jax.lax` has it."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), ((pad, pad),) * 2, dimension_numbers=DIMENSIONS
    )


def _patches(x, size, stride, pad):
    """[B, H, W, I] -> [B, h, w, size * size * I]."""
    x = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    h, w = ((n - size) // stride * stride + 1 for n in x.shape[1:3])
    views = [
        x[:, i : i + h : stride, j : j + w : stride]
        for i in range(size)
        for j in range(size)
    ]
    return jnp.concatenate(views, -1)


def _fold(columns, sides, stride, pad):
    """The transpose of `_patches`: [B, h, w, size, size, I] -> [B, H, W, I]."""
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
    """The matrices B, G, A with correlation(d, g) = A^T ((G g) * (B^T d)).

    A product of polynomials is found from its values at `a = m + size - 1` points; the
    correlation is the transpose of that. B is made integral where possible by moving
    each point's Lagrange factor into G.

    >>> b, g, a = cook_toom(2, 3)
    >>> d, k = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 0.0, 2.0])
    >>> (a.T @ ((g @ k) * (b.T @ d))).tolist()
    [7.0, 10.0]
    """
    a = m + size - 1
    if a - 1 > len(POINTS):
        raise ValueError(f"winograd{m} needs a kernel of size 2 to {9 - m}, not {size}")
    points = np.array(POINTS[: a - 1])

    def evaluate(n):  # coefficients -> values at the points and at infinity
        return np.vstack((np.vander(points, n, increasing=True), np.eye(1, n, n - 1)))

    gaps = points[:, None] - points[None] + np.eye(a - 1)
    factor = np.append(gaps.prod(1), 1.0)
    # Rounding restores the exact zeros and ones, which cost nothing in `_combine`.
    b = np.round(np.linalg.inv(evaluate(a)) * factor[None], 9)
    return b, evaluate(size) / factor[:, None], evaluate(m)


def _combine(matrix, views):
    """A matrix times a list of arrays, unrolled so that XLA fuses it."""

    def dot(row):
        pairs = [(c, v) for c, v in zip(row, views, strict=True) if c]
        terms = [v if c == 1 else v * np.float32(c) for c, v in pairs]
        return functools.reduce(jnp.add, terms)

    return [dot(row) for row in matrix]


def _both_axes(matrix, grid):
    """matrix X matrix^T for X a list of rows of arrays."""
    columns = [_combine(matrix, row) for row in grid]
    rows = [_combine(matrix, column) for column in zip(*columns, strict=True)]
    return [list(row) for row in zip(*rows, strict=True)]


def _points(matrix, grid):
    """Transforms a grid of [B, th, tw, C] tiles -> [a * a, B * th * tw, C]."""
    grid = _both_axes(matrix, grid)
    return jnp.stack([v.reshape(-1, v.shape[-1]) for row in grid for v in row])


def _tiles(m, x, size, pad):
    """Overlapping tiles of the padded image, transformed; counts of tiles; surplus."""
    out = [n + 2 * pad - size + 1 for n in x.shape[1:3]]
    count = [-(-n // m) for n in out]
    surplus = [m * t - n for t, n in zip(count, out, strict=True)]
    x = jnp.pad(x, ((0, 0), (pad, pad + surplus[0]), (pad, pad + surplus[1]), (0, 0)))
    h, w = (m * (t - 1) + 1 for t in count)
    a = m + size - 1
    grid = [[x[:, i : i + h : m, j : j + w : m] for j in range(a)] for i in range(a)]
    return _points(cook_toom(m, size)[0].T, grid), count, surplus


def _winograd(m, x, w, pad):
    size, _, inputs, outputs = w.shape
    a, (_, transform, inverse) = m + size - 1, cook_toom(m, size)
    tiles, count, surplus = _tiles(m, x, size, pad)
    transform = transform.astype(np.float32)
    filters = jnp.einsum("ai,ijco,bj->abco", transform, w, transform)
    values = tiles @ filters.reshape(a * a, inputs, outputs)
    # A matmul, as XLA:CPU would fuse sums into what comes next, with all its indexing.
    back = np.kron(inverse.T, inverse.T).astype(np.float32)
    y = jnp.tensordot(back, values, 1, precision=lax.Precision.HIGHEST)
    y = y.reshape(m, m, x.shape[0], *count, outputs).transpose(2, 3, 0, 4, 1, 5)
    h, w = (m * t for t in count)
    y = y.reshape(x.shape[0], h, w, outputs)
    return y[:, : h - surplus[0], : w - surplus[1]]


def _winograd_weight_grad(m, x, g, size, pad):
    a, (_, transform, inverse) = m + size - 1, cook_toom(m, size)
    tiles, _, surplus = _tiles(m, x, size, pad)
    g = jnp.pad(g, ((0, 0), (0, surplus[0]), (0, surplus[1]), (0, 0)))
    grid = [[g[:, i::m, j::m] for j in range(m)] for i in range(m)]
    values = jnp.einsum("ptc,pto->pco", tiles, _points(inverse, grid))
    values = values.reshape(a, a, x.shape[3], g.shape[3])
    transform = transform.astype(np.float32)
    return jnp.einsum("ai,abco,bj->ijco", transform, values, transform)
