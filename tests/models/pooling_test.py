"""Pools: maxima and gradients by NumPy, and where XLA:CPU stops to fuse them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.models.forms import fast
from tests.models.convolution_test import reference
from tests.networks import normal, quick_jit


def by_loops(x, g, size, stride):
    """Returns the maxima, and the gradient by x that equal maxima share equally."""
    dx, y = np.zeros_like(x), np.zeros_like(g)
    for place in np.ndindex(g.shape):
        b, i, j, c = place
        rows = slice(i * stride, i * stride + size)
        columns = slice(j * stride, j * stride + size)
        window = x[b, rows, columns, c]
        y[place] = window.max()
        hits = window == window.max()
        dx[b, rows, columns, c] += g[place] * hits / hits.sum()
    return y, dx


ORDERS = {
    "outside": lambda both: fast(jax.vmap(both)),
    "inside": lambda both: jax.vmap(fast(both)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "size, stride, dtype",
    [(2, 2, "float32"), (3, 1, "float32"), (3, 1, "bfloat16"), (3, 3, "float32")],
)
def test_equal_maxima_share_equally_in_every_pool(size, stride, dtype, order):
    sides = [(side - size) // stride + 1 for side in (6, 7)]
    x = np.random.default_rng(size).integers(0, 3, (2, 3, 6, 7, 2)).astype(np.float32)
    x[x == 2] = np.inf
    g = np.round(normal(stride, 2, 3, *sides, 2), 1)

    def both(x, g):
        y, vjp = jax.vjp(lambda x: nn.max_pool(x, (size, size), (stride, stride)), x)
        return y, vjp(g)[0]

    run = quick_jit(ORDERS[order](both))
    got = run(jnp.asarray(x, dtype), jnp.asarray(g, dtype))
    pairs = [by_loops(*pair, size, stride) for pair in zip(x, g, strict=True)]
    tolerance = 1e-6 if dtype == "float32" else 0.05
    for a, b in zip(got, zip(*pairs, strict=True), strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(np.float32(a), np.stack(b), tolerance, tolerance)


def maxima(function, *shapes) -> int:
    """Counts the maxima in the program of a function that XLA has optimised."""
    like = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(function).lower(*like).compile().as_text()
    return text.count(" maximum(")


@pytest.mark.parametrize("size, stride", [(3, 1), (2, 2)])
def test_xla_cpu_computes_a_pool_once_between_convolutions(size, stride):
    """The second convolution reads each entry in nine patches."""

    def pool(x):
        return nn.max_pool(x, (size, size), (stride, stride))

    def network(x, *kernels):
        for kernel in kernels:
            x = reference(x, kernel, stride=1, pad=0)
            x = pool(x) if x.shape[1] == 10 else x
        return jnp.sum(x**2)

    @fast
    def alone(x, g):
        y, vjp = jax.vjp(pool, x)
        return y, vjp(g)

    step = fast(jax.value_and_grad(network, (0, 1, 2)), "patches")
    inside = maxima(step, (2, 12, 12, 1), (3, 3, 1, 4), (3, 3, 4, 4))
    side = (10 - size) // stride + 1
    assert inside == maxima(alone, (2, 10, 10, 4), (2, side, side, 4))
