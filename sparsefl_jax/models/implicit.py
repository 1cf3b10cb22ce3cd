"""Convolution as one matrix product whose left side is never stored, for GPUs.

A convolution is the product of the patches of the images, [B h w, k k I], with the
kernel, [k k I, O]; its gradient by the kernel is that of the transposed patches with g.
`patches` in `lowerings.py` writes the patches to memory, k k times the images. Here
each block of the product gathers its own ("implicit GEMM"; Chetlur et al., 2014,
arXiv:1410.0759). Under vmap over clients, each with a kernel of its own, the clients
are one more axis of the grid.

Written in Pallas for Triton; elsewhere than on a GPU the kernels are interpreted, which
is right and slow: for tests. Products follow `jax_default_matmul_precision` and are
summed in float32. The gradient by the images, of stride 1, is `forward` again (see
`lowerings.input_grad`). Layouts: NHWC and HWIO.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

# Sides of a block of the product, and how much of the sum is taken at a time. Triton
# wants powers of two, and at least 16 for its matrix units.
ROWS, COLUMNS, DEPTH = 64, 64, 32
# The gradient by the kernel is a small matrix that sums over all pixels: parts of this
# many (a multiple of `DEPTH`) are summed by programs of their own, or most of the GPU
# would stand idle.
PIXELS = 4096


def _bilinear(product):
    """Gives a function of two arrays its derivative, which Pallas does not find."""

    @functools.wraps(product)
    def wrapped(a, b, *static):
        call = jax.custom_jvp(lambda a, b: product(a, b, *static))

        @call.defjvp
        def tangent(primals, tangents):
            (a, b), (da, db) = primals, tangents
            return call(a, b), call(da, b) + call(a, db)

        return call(a, b)

    return wrapped


class _Patches(NamedTuple):
    """The patches of images as a matrix [positions, terms] that is not stored."""

    image: tuple[int, int, int]  # H, W, I
    out: tuple[int, int]  # h, w
    size: int
    stride: int
    pad: int

    def load(self, x_ref, position, term, valid):
        """Its entries at indices that broadcast, 0 where not `valid` or in the pad."""
        height, width, inputs = self.image
        tap, channel = _divided(term, inputs)
        pixel, column = _divided(position, self.out[1])
        batch, row = _divided(pixel, self.out[0])
        down, across = _divided(tap, self.size)
        row = row * self.stride - self.pad + down
        column = column * self.stride - self.pad + across
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index = ((batch * height + row) * width + column) * inputs + channel
        return triton.load(x_ref.at[index], mask=inside & valid, other=0.0)


@_bilinear
def forward(x, w, stride, pad):
    """The convolution of x [B, H, W, I] with w [k, k, I, O] -> [B, h, w, O]."""
    size, outputs = w.shape[0], w.shape[3]
    patches = _of(x, size, stride, pad)
    positions, terms = x.shape[0] * math.prod(patches.out), size * size * x.shape[3]
    columns = _side(outputs)

    def kernel(x_ref, w_ref, y_ref):
        p = _down(pl.program_id(0) * ROWS, ROWS)
        o = _across(pl.program_id(1) * columns, columns)

        def add(step, total):
            t = _across(step * DEPTH, DEPTH)
            left = patches.load(x_ref, p, t, (p < positions) & (t < terms))
            t = _down(step * DEPTH, DEPTH)
            return total + triton.dot(left, _load(w_ref, t, o, terms, outputs))

        zero = jnp.zeros((ROWS, columns), jnp.float32)
        total = lax.fori_loop(0, pl.cdiv(terms, DEPTH), add, zero)
        _store(y_ref, total, p, o, positions, outputs)

    grid = (pl.cdiv(positions, ROWS), pl.cdiv(outputs, columns))
    y = _call(kernel, grid, positions * outputs, x.dtype)(x.ravel(), w.ravel())
    return y.reshape(x.shape[0], *patches.out, outputs)


@_bilinear
def weight_grad(x, g, size, stride, pad):
    """The gradient by the kernel, from g [B, h, w, O] -> [k, k, I, O], float32."""
    patches, outputs = _of(x, size, stride, pad), g.shape[3]
    positions, terms = g.size // outputs, size * size * x.shape[3]
    parts, columns = pl.cdiv(positions, PIXELS), _side(outputs)

    def kernel(x_ref, g_ref, dw_ref):
        t = _down(pl.program_id(0) * ROWS, ROWS)
        o = _across(pl.program_id(1) * columns, columns)
        part = pl.program_id(2)

        def add(step, total):
            start = part * PIXELS + step * DEPTH
            p = _across(start, DEPTH)
            left = patches.load(x_ref, p, t, (t < terms) & (p < positions))
            p = _down(start, DEPTH)
            return total + triton.dot(left, _load(g_ref, p, o, positions, outputs))

        zero = jnp.zeros((ROWS, columns), jnp.float32)
        count = pl.cdiv(min(PIXELS, positions), DEPTH)
        total = lax.fori_loop(0, count, add, zero)
        _store(dw_ref, total, t, o, terms, outputs, part * terms * outputs)

    grid = (pl.cdiv(terms, ROWS), pl.cdiv(outputs, columns), parts)
    sums = _call(kernel, grid, parts * terms * outputs, jnp.float32)
    dw = sums(x.ravel(), g.ravel()).reshape(parts, -1).sum(0)
    return dw.reshape(size, size, x.shape[3], outputs)


def _divided(index, side):
    """Quotient and rest; `//` would also select by sign, which Triton reads badly."""
    side = jnp.full_like(index, side)
    return lax.div(index, side), lax.rem(index, side)


def _of(x, size, stride, pad):
    out = tuple((n + 2 * pad - size) // stride + 1 for n in x.shape[1:3])
    return _Patches(x.shape[1:], out, size, stride, pad)


def _side(outputs):
    """The columns of a block: no more than needed to cover the outputs."""
    return min(COLUMNS, max(16, pl.next_power_of_2(outputs)))


def _down(start, count):
    """Indices [count, 1] of rows."""
    return start + jnp.arange(count)[:, None]


def _across(start, count):
    """Indices [1, count] of columns."""
    return start + jnp.arange(count)[None, :]


def _load(ref, row, column, rows, columns):
    """A block of a matrix [rows, columns], 0 beyond its edges."""
    inside = (row < rows) & (column < columns)
    return triton.load(ref.at[row * columns + column], mask=inside, other=0.0)


def _store(ref, block, row, column, rows, columns, start=0):
    inside = (row < rows) & (column < columns)
    # Beyond the array where nothing is stored: the interpreter ignores the mask there.
    index = jnp.where(inside, start + row * columns + column, ref.shape[0])
    triton.store(ref.at[index], block.astype(ref.dtype), mask=inside)


def _call(kernel, grid, entries, dtype):
    return pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=jax.ShapeDtypeStruct((entries,), dtype),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=3),
        interpret=jax.default_backend() != "gpu",
    )
