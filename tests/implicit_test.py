"""The matrix product that gathers its own patches, interpreted, against `jax.lax`.

How fast it is, and that a GPU takes it, only a GPU can say (`benchmarks.lowering`);
that it can be translated for one is tested here.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.models import convolution, implicit, lowerings
from sparsefl_jax.models.convolution import Layer, Lowering

pytestmark = pytest.mark.slow

PALLAS = Lowering("pallas", "pallas", "pallas")
CLIENTS = 2


def operands(size, inputs, outputs, dtype=jnp.float32):
    """Small integers, whose sums are exact in float32."""
    rng = np.random.default_rng(size)
    x = rng.integers(-4, 5, (CLIENTS, 3, 9, 7, inputs))
    kernel = rng.integers(-4, 5, (CLIENTS, size, size, inputs, outputs))
    return jnp.asarray(x, dtype), jnp.asarray(kernel, dtype)


def passes(f, x, kernel):
    """The output, and the gradients by an uneven cotangent."""
    y, transpose = jax.vjp(f, x, kernel)
    g = (jnp.arange(y.size) % 7 - 3).reshape(y.shape)
    return y, *transpose(g.astype(y.dtype))


def assert_equal(got, want):
    for a, b in zip(*jax.device_get((got, want)), strict=True):
        np.testing.assert_array_equal(a, b)


def both(stride, pad, input_grad="pallas"):
    """The convolution in Pallas and that of `jax.lax`."""
    mine = convolution._convolution(stride, pad, ("pallas", input_grad, "pallas"))
    return mine, lambda x, w: lowerings.plain(x, w, stride, pad)


# Fewer and more inputs, outputs and pixels than a block of the product has.
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 20), (3, 5), (12, 70)])
@pytest.mark.parametrize(("size", "stride", "pad"), [(3, 1, 1), (5, 1, 0), (3, 2, 1)])
def test_equals_lax_for_each_client(size, stride, pad, inputs, outputs, monkeypatch):
    monkeypatch.setattr(implicit, "PIXELS", 64)
    mine, plain = both(stride, pad, "pallas" if stride == 1 else "patches")
    x, kernel = operands(size, inputs, outputs)

    @jax.jit
    def run(x, kernel):
        each = [functools.partial(passes, f) for f in (mine, plain)]
        return [jax.vmap(f)(x, kernel) for f in each]

    got, want = run(x, kernel)
    assert_equal(got, want)
    assert [v.dtype for v in got] == [v.dtype for v in want]


def test_sums_in_float32_for_bfloat16():
    mine, plain = both(1, 1)
    x, kernel = operands(3, 12, 20, jnp.bfloat16)
    got = passes(mine, x[0], kernel[0])
    assert {v.dtype for v in got} == {jnp.dtype(jnp.bfloat16)}
    full = [v.astype(jnp.float32) for v in (x[0], kernel[0])]
    assert_equal(got, [v.astype(jnp.bfloat16) for v in passes(plain, *full)])


def test_forward_over_reverse():
    x, kernel = (v[0] for v in operands(3, 2, 4))

    def product(f):
        gradient = jax.grad(lambda x, w: (f(x, w) ** 3).sum(), 1)
        return jax.jvp(gradient, (x, kernel), (x, kernel))

    mine, plain = (jax.jit(functools.partial(product, f)) for f in both(1, 1))
    np.testing.assert_allclose(mine(), plain(), rtol=1e-5)


@pytest.mark.parametrize(("stride", "passes_there"), [(1, 3), (2, 2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_can_be_translated_for_a_gpu(dtype, stride, passes_there, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(implicit, "PIXELS", 64)
    mine, _ = both(stride, 1, "pallas" if stride == 1 else "patches")
    shapes = [jax.ShapeDtypeStruct(v.shape, dtype) for v in operands(3, 12, 70)]
    run = jax.jit(jax.vmap(functools.partial(passes, mine)))
    with jax.default_matmul_precision("default"):  # TF32 where there is such a thing
        text = run.trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    lines = [line for line in text.splitlines() if "custom_call" in line]
    assert sum("triton" in line for line in lines) == passes_there


def test_gives_way_where_it_does_not_exist(monkeypatch):
    layer = Layer(3, 9, 7, 12, 20, 3, pad=1)
    strided, pointwise = layer._replace(stride=2), layer._replace(size=1, pad=0)
    patches = Lowering("patches", "patches", "patches")
    assert convolution.available(layer, PALLAS) == patches
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert convolution.available(layer, PALLAS) == PALLAS
    assert convolution.available(pointwise, PALLAS) == patches
    assert convolution.available(strided, PALLAS).names == (
        "pallas",
        "patches",
        "pallas",
    )
