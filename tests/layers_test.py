"""Batch normalisation: values, gradients and padding."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.models import layers
from tests.models_test import normal, quick_jit


def normalised(x, weight=None, train=True):
    module = layers.BatchNorm()
    variables = module.init(jax.random.key(0), x, train=False)
    out, changed = module.apply(
        variables, x, train=train, weight=weight, mutable=["batch_stats"]
    )
    return out, changed["batch_stats"]


batch_norm = quick_jit(normalised, static_argnames="train")


def test_batch_norm_equals_flax():
    x = 3.0 + 2.0 * normal(0, 6, 5, 4, 3)
    module = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5)

    def flax(x):
        variables = module.init(jax.random.key(0), x)
        return module.apply(variables, x, mutable=["batch_stats"])

    def slope(function, x):
        return jax.grad(lambda x: (normal(1, *x.shape) * function(x)[0]).sum())(x)

    want, changed = quick_jit(flax)(x)
    got, stats = batch_norm(x)
    pair = quick_jit(lambda x: (slope(normalised, x), slope(flax, x)))(x)
    np.testing.assert_allclose(*pair, atol=1e-4)
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
