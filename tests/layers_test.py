"""Pooling, dense layers and batch normalisation: values, gradients and padding."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sparsefl_jax.models import layers
from tests.models_test import normal, quick_jit


@pytest.mark.parametrize("size, stride", [(2, 2), (3, 3), (3, 1)])
@pytest.mark.parametrize("side", [8, 9])
def test_max_pool_equals_reduce_window(size, stride, side):
    x = normal(side, 2, side, side + 1, 3)

    def window(x):
        dims, strides = (1, size, size, 1), (1, stride, stride, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, dims, strides, "VALID")

    @quick_jit
    def both(x):
        outs = []
        for f in (window, lambda x: layers.max_pool(x, size, stride)):
            y, vjp = jax.vjp(f, x)
            outs.append((y, vjp(normal(0, *y.shape))[0]))
        return outs

    (want, want_dx), (got, got_dx) = both(x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(got_dx, want_dx, atol=1e-6)


def test_equal_entries_of_a_window_share_its_gradient():
    x = jnp.float32([[1, 2], [2, 2]]).reshape(1, 2, 2, 1)
    dx = jax.grad(lambda x: layers.max_pool(x).sum())(x)
    np.testing.assert_allclose(dx.ravel(), [0, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


def test_second_derivatives_of_dense_and_pooling():
    two = {"window_shape": (2, 2), "strides": (2, 2)}

    class Network(nn.Module):
        plain: bool

        @nn.compact
        def __call__(self, x):
            pool = partial(nn.max_pool, **two) if self.plain else layers.max_pool
            x = pool(jnp.sin(x)).reshape(x.shape[0], -1)
            return (
                nn.Dense(5, name="fc1")(x)
                if self.plain
                else layers.dense(x, 5, name="fc1")
            )

    x = normal(0, 3, 4, 4, 2)
    variables = Network(False).init(jax.random.key(0), x)

    @quick_jit
    def second(x, variables):
        def products(plain):
            def loss(x, v):
                return (Network(plain).apply(v, x) ** 3).sum()

            grad = jax.grad(loss, (0, 1))
            forward = jax.jvp(grad, (x, variables), (x, variables))
            slope = jax.grad(lambda x: jnp.vdot(grad(x, variables)[0], x))(x)
            return forward, slope

        return products(False), products(True)

    got, want = second(x, variables)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, want)


def test_the_loop_of_steps_updates_a_dense_kernel_in_place():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(layers.dense(x, 37, name="fc1"))
            return layers.dense(x, 53, name="fc2")

    network, x = Network(), normal(0, 4, 29)
    variables = network.init(jax.random.key(0), x)

    def step(_, v):
        grads = jax.grad(lambda v: (network.apply(v, x) ** 2).sum())(v)
        return jax.tree.map(lambda p, g: p - 0.1 * g, v, grads)

    program = jax.jit(lambda v: lax.fori_loop(0, 9, step, v), donate_argnums=0)
    text = program.lower(variables).compile().as_text()
    copies = [line for line in text.splitlines() if " copy(" in line]
    assert not [line for line in copies if "f32[37,53]" in line]


def test_max_pool_larger_than_the_image():
    with pytest.raises(ValueError, match="size=3 is larger than the image"):
        layers.max_pool(jnp.ones((1, 2, 4, 1)), 3, 1)
    with pytest.raises(ValueError, match="stride=2, expected one of 1, 3"):
        layers.max_pool(jnp.ones((1, 4, 4, 1)), 3, 2)


@partial(quick_jit, static_argnames="train")
def batch_norm(x, weight=None, train=True):
    module = layers.BatchNorm()
    variables = module.init(jax.random.key(0), x, train=False)
    out, changed = module.apply(
        variables, x, train=train, weight=weight, mutable=["batch_stats"]
    )
    return out, changed["batch_stats"]


def test_batch_norm_equals_flax():
    x = 3.0 + 2.0 * normal(0, 6, 5, 4, 3)
    module = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5)

    @quick_jit
    def flax(x):
        variables = module.init(jax.random.key(0), x)
        return module.apply(variables, x, mutable=["batch_stats"])

    want, changed = flax(x)
    got, stats = batch_norm(x)
    np.testing.assert_allclose(got, want, atol=1e-5)
    for name in ("mean", "var"):
        np.testing.assert_allclose(stats[name], changed["batch_stats"][name], rtol=1e-5)


def test_batch_norm_leaves_out_padding():
    x = 5.0 + normal(0, 6, 4, 4, 3)
    weight = np.array([1, 1, 0, 1, 0, 0], np.float32)
    valid = weight > 0
    padded = x.copy()
    padded[weight == 0] = np.nan
    got, stats = batch_norm(padded, weight)
    want, want_stats = batch_norm(x[valid])
    np.testing.assert_allclose(got[valid], want, atol=1e-5)
    np.testing.assert_allclose(stats["mean"], want_stats["mean"], rtol=1e-5)
    np.testing.assert_allclose(stats["var"], want_stats["var"], rtol=1e-5)


def test_batch_norm_of_padding_alone_changes_nothing():
    x = 5.0 + normal(0, 4, 3)
    out, stats = batch_norm(x, jnp.zeros(4, jnp.float32))
    assert bool(jnp.isfinite(out).all())
    np.testing.assert_array_equal(stats["mean"], np.zeros(3))
    np.testing.assert_array_equal(stats["var"], np.ones(3))


def test_evaluation_uses_and_keeps_the_running_statistics():
    x = 5.0 + normal(0, 4, 3)
    out, stats = batch_norm(x, train=False)
    np.testing.assert_allclose(out, x / np.sqrt(1 + 1e-5), rtol=1e-6)
    np.testing.assert_array_equal(stats["mean"], np.zeros(3))
