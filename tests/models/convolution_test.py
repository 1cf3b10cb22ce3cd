"""Every lowering of every pass against `jax.lax`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sparsefl_jax.models.convolution import Lowering
from sparsefl_jax.models.forms import fast
from tests.networks import quick_jit

pytestmark = pytest.mark.slow

BATCH, SIDE, INPUTS, OUTPUTS = 2, 9, 3, 4
# By size and pad. They compile slowly, so each runs for a few shapes only.
TRIED = {
    (3, 0): ("winograd2", "winograd4"),
    (3, 1): ("winograd3",),
    (3, 2): ("winograd2",),
    (5, 0): ("winograd2",),
    (5, 1): ("winograd3",),
    (5, 2): ("winograd4",),
}
PARTED = Lowering("patches", "patches", "patches", 1)


def reference(x, kernel, stride, pad):
    dimensions = ("NHWC", "HWIO", "NHWC")
    pads, strides = ((pad, pad),) * 2, (stride, stride)
    return lax.conv_general_dilated(
        x, kernel, strides, pads, dimension_numbers=dimensions
    )


def operands(size):
    rng = np.random.default_rng(size)
    # Oblong, so that height and width cannot be confused.
    x = rng.normal(size=(BATCH, SIDE, SIDE + 2, INPUTS))
    kernel = rng.normal(size=(size, size, INPUTS, OUTPUTS))
    return jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32)


def passes(x, kernel, stride=1, pad=0):
    """Returns the output, and the gradients of an uneven cotangent."""
    f = functools.partial(reference, stride=stride, pad=pad)
    y, vjp = jax.vjp(f, x, kernel)
    g = jnp.sin(jnp.arange(y.size)).astype(jnp.bfloat16).reshape(y.shape)
    return y, *vjp(g.astype(y.dtype))  # the same in every dtype


def formed(lowering, **options):
    """Returns `passes` in a form."""
    return fast(functools.partial(passes, **options), lowering)


def assert_close(got, want, tolerance):
    got, want = jax.device_get((got, want))
    for name, a, b in zip(("forward", "dx", "dW"), got, want, strict=False):
        error = np.abs(a - b).max() / np.abs(b).max()
        assert error < tolerance, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_every_lowering_equals_lax(size, pad, stride):
    x, kernel = operands(size)
    tried = TRIED.get((size, pad), ()) if stride == 1 else ("winograd2",)
    names = ("plain", "canonical", "patches", *tried)

    @quick_jit
    def run(x, kernel):
        options = {"stride": stride, "pad": pad}
        forms = [formed(name, **options) for name in names]
        return [passes(x, kernel, **options), *(form(x, kernel) for form in forms)]

    want, *others = run(x, kernel)
    for got in others:
        assert_close(got, want, 2e-5)


@pytest.mark.parametrize("form", ["plain", "canonical", "patches", "winograd2", PARTED])
def test_second_derivatives(form):
    x, kernel = operands(3)

    @quick_jit
    def second(x, kernel):
        def loss(x, w):
            return (reference(x, w, stride=1, pad=1) ** 3).sum()

        def slope(x, w):
            return (jax.grad(loss, 1)(x, w) ** 2).sum()

        def products(x, kernel):
            forward = jax.jvp(jax.grad(loss, 1), (x, kernel), (x, kernel))[1]
            alone = jax.jvp(loss, (x, kernel), (x, kernel))[1]
            return forward, jax.grad(slope)(x, kernel), alone

        return fast(products, form)(x, kernel), products(x, kernel)

    assert_close(*second(x, kernel), 1e-4)


@pytest.mark.parametrize("position", range(3))
def test_passes_choose_independently(position):
    x, kernel = operands(5)
    names = ["patches", "winograd2", "patches"]
    names[position] = "canonical"  # the only form with a convolution

    def count(run, *args):
        return str(jax.make_jaxpr(run)(*args)).count("conv_general_dilated[")

    assert count(formed(Lowering(*names), pad=2), x, kernel) == 1
    forward = functools.partial(reference, stride=1, pad=2)
    assert count(fast(forward, Lowering(*names)), x, kernel) == (position == 0)
    assert count(functools.partial(passes, pad=2), x, kernel) == 3


def test_parts_of_a_bfloat16_batch_are_added_in_float32():
    x, kernel = jnp.ones((32, 11, 13, 1), jnp.bfloat16), jnp.zeros((3, 3, 1, 1))
    lowering = PARTED._replace(images=1)
    form = functools.partial(reference, stride=1, pad=0)
    dw = fast(jax.grad(lambda w: form(x, w).sum(dtype=jnp.float32)), lowering)
    # 99 of each image: sums in bfloat16, with its 8 bits, would drift.
    assert (dw(kernel.astype(jnp.bfloat16)) == 32 * 99).all()
