"""Programs whose convolutions and pools are replaced, against the same as they are."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sparsefl_jax.models.forms import fast
from tests.networks import mostly_slow, normal, quick_jit

X = normal(0, 3, 13, 11, 4)
EDGES = ((2, 1), (0, 2))


def gradients(module, x=X, lowering="auto"):
    """Returns value and gradients of a module as they are, and in fast forms."""
    variables = module.init(jax.random.key(0), x)

    def run(variables, x):
        def loss(variables, x):
            y = module.apply(variables, x)
            return jnp.sum(y * jnp.cos(jnp.arange(y.size).reshape(y.shape)))

        return jax.value_and_grad(loss, (0, 1))(variables, x)

    text = str(jax.make_jaxpr(fast(run, lowering))(variables, x))
    pair = quick_jit(lambda *v: (run(*v), fast(run, lowering)(*v)))(variables, x)
    return *jax.device_get(pair), text


def assert_equal(want, got):
    """To 1e-6 of the largest entry, or of the sum of as many terms."""
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * np.abs(a).max())


LAYERS = {
    "same": nn.Conv(6, (3, 3)),
    "bordered": nn.Conv(6, (3, 3), strides=2, padding=EDGES),
    "oblong": nn.Conv(6, (3, 5)),
    "grouped": nn.Conv(8, (3, 3), strides=2, feature_group_count=2),
    "dilated": nn.Conv(8, (3, 3), kernel_dilation=2),
    "transposed": nn.ConvTranspose(6, (3, 3), strides=(2, 2)),
}


@mostly_slow(LAYERS, quick=("same", "bordered", "grouped"))
def test_no_pass_of_a_layer_is_left_as_it_was(name):
    want, got, text = gradients(LAYERS[name], lowering="patches")
    assert_equal(want, got)
    assert "conv_general_dilated[" not in text


POOLS = {
    "disjoint": ((2, 2), (2, 2), "VALID"),
    "sliding": ((3, 3), (1, 1), "VALID"),
    "oblong": ((3, 2), (3, 2), "VALID"),
    "overlapping": ((3, 3), (2, 2), "VALID"),
    "bordered": ((2, 2), (2, 2), "SAME"),
}


class Pool(nn.Module):
    windows: tuple

    def __call__(self, x):
        return nn.max_pool(x, *self.windows)


@pytest.mark.parametrize("name", POOLS)
def test_pools_equal_those_of_flax(name):
    want, got, text = gradients(Pool(POOLS[name]))
    assert_equal(want, got)
    formed = name not in ("overlapping", "bordered")
    assert formed == ("reduce_window_max[" not in text)
    assert formed == ("select_and_scatter" not in text)


KERNEL = normal(1, 3, 3, 4, 4)
plain = partial(
    lax.conv_general_dilated,
    window_strides=(1, 1),
    padding="SAME",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
)


@jax.custom_vjp
def halved(x, kernel):
    return plain(x, kernel)


halved.defvjp(
    lambda x, kernel: (plain(x, kernel), (x, kernel)),
    lambda kept, g: tuple(0.5 * v for v in jax.vjp(plain, *kept)[1](g)),
)


@jax.custom_jvp
def tripled(x, kernel):
    return plain(x, kernel)


@tripled.defjvp
def _tripled(primals, tangents):
    y, step = jax.jvp(plain, primals, tangents)
    return y, 3.0 * step


def scanned(x, kernel):
    return lax.scan(
        lambda x, k: (jnp.tanh(plain(x, k)), None), x, jnp.stack([kernel] * 2)
    )[0]


def looped(x, kernel):
    return lax.fori_loop(0, 2, lambda _, x: jnp.tanh(plain(x, kernel)), x)


def chosen(x, kernel):
    return lax.cond(kernel.sum() > 0, lambda x: plain(x, kernel), lambda x: 2 * x, x)


INSIDE = {
    "jit": jax.jit(plain),
    "scan": scanned,
    "custom_vjp": halved,
    "custom_jvp": tripled,
    "cond": chosen,
    "checkpoint": jax.checkpoint(lambda x, kernel: jnp.tanh(plain(x, kernel))),
    "vmap": lambda x, kernel: jax.vmap(plain, (0, None))(x[:, None], kernel)[:, 0],
}


@pytest.mark.parametrize("name", INSIDE)
def test_programs_inside_programs(name):
    """Rules of one's own stay: half of the gradient, thrice, what is computed again."""

    def run(x, kernel):
        return jax.value_and_grad(
            lambda *v: jnp.sum(jnp.sin(INSIDE[name](*v))), (0, 1)
        )(x, kernel)

    form = fast(run, "patches")
    want, got = quick_jit(lambda *v: (run(*v), form(*v)))(X, KERNEL)
    assert_equal(jax.device_get(want), jax.device_get(got))
    text = str(jax.make_jaxpr(form)(X, KERNEL))
    assert ("conv_general_dilated[" in text) == (name == "checkpoint")


def model(kernel, x):
    return jnp.sum(jnp.sin(plain(x, kernel)))


@pytest.mark.parametrize("samples", [1, 2])
def test_gradients_mapped_over_models_and_their_samples(samples):
    """Each pair has its own kernel and images; expected is a loop over the pairs."""
    kernels, x = normal(2, 3, 3, 3, 4, 4), normal(3, 3, samples, 7, 6, 4)
    both = jax.grad(model, (0, 1))

    def run(kernels, x):
        loop = [both(kernels[i], x[i]) for i in range(3)]
        return [jnp.stack(v) for v in zip(*loop, strict=True)], fast(jax.vmap(both))(
            kernels, x
        )

    want, got = quick_jit(run)(kernels, x)  # the kernels' gradient stays
    assert_equal(jax.device_get(want), jax.device_get(got))


def pooled(x):
    """Returns x [B, D] after a pool, without which a program stays as it is."""
    return nn.max_pool(x[:, None, None], (1, 1))[:, 0, 0]


def dense(params, x):
    first, second = params
    return jnp.sum(jnp.tanh(pooled(x) @ first) @ second)


def test_an_infinite_weight_leaves_other_gradients_finite():
    x, first = normal(0, 2, 3), normal(1, 3, 4)
    second = normal(2, 4, 5)
    second[0, 0] = np.inf
    got = quick_jit(fast(jax.grad(dense)))((first, second), x)[1]
    want = np.tanh(x @ first).sum(0)[:, None] * np.ones((1, 5))
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_results_without_windows_have_no_gradient(stride):
    def loss(x, kernel, last):
        y = plain(x, kernel, padding="VALID")
        pools = nn.max_pool(x, (3, 3), (stride, stride))
        return y.sum() + pools.sum() + jnp.sum(jnp.tanh(y) @ last)

    given = jnp.zeros((2, 2, 2, 4)), jnp.asarray(KERNEL), jnp.ones((4, 2))
    gradients = quick_jit(fast(jax.grad(loss, (0, 1, 2))))(*given)
    assert [v.shape for v in gradients] == [v.shape for v in given]
    assert not any(v.any() for v in gradients)


def test_forward_mode_and_loops_without_gradients():
    def run(x, kernel):
        tangent = jax.jvp(lambda x: plain(x, kernel), (x,), (x,))[1]
        return tangent, looped(x, kernel)

    want, got = quick_jit(lambda *v: (run(*v), fast(run, "patches")(*v)))(X, KERNEL)
    assert_equal(jax.device_get(want), jax.device_get(got))


@pytest.mark.parametrize(
    "options", [{"precision": "default"}, {"preferred_element_type": jnp.float32}]
)
def test_what_is_not_known_stays(options):
    operands, given = (jnp.bfloat16(X), jnp.bfloat16(KERNEL)), partial(plain, **options)
    text = str(jax.make_jaxpr(fast(given))(*operands))
    assert text == str(jax.make_jaxpr(given)(*operands))


def test_a_program_without_convolutions_is_as_it_was():
    def run(x):
        return {"y": jax.grad(lambda x: jnp.sum(jnp.tanh(x @ x.T) @ x))(x)}, x

    x = normal(0, 3, 4)
    assert str(jax.make_jaxpr(fast(run))(x)) == str(jax.make_jaxpr(run)(x))
