"""Dense layers in loops, and batch normalisation: values and padding."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sparsefl_jax.models import layers
from sparsefl_jax.models.forms import fast
from tests.networks import normal, quick_jit


def test_the_loop_of_steps_updates_a_dense_kernel_in_place():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.max_pool(x[:, None, None], (1, 1))[:, 0, 0]  # forms need a reason
            x = nn.relu(nn.Dense(37, name="fc1")(x))
            return nn.Dense(53, name="fc2")(x)

    network, x = Network(), normal(0, 4, 29)
    variables = network.init(jax.random.key(0), x)

    def step(_, v):
        grads = fast(jax.grad(lambda v: (network.apply(v, x) ** 2).sum()))(v)
        return jax.tree.map(lambda p, g: p - 0.1 * g, v, grads)

    program = jax.jit(lambda v: lax.fori_loop(0, 9, step, v), donate_argnums=0)
    text = program.lower(variables).compile().as_text()
    copies = [line for line in text.splitlines() if " copy(" in line]
    assert not [line for line in copies if "f32[37,53]" in line]


@partial(quick_jit, static_argnames="train")
def batch_norm(x, weight=None, train=True):
    module = layers.BatchNorm()
    variables = module.init(jax.random.key(0), x, train=False)
    out, changed = module.apply(
        variables, x, train=train, weight=weight, mutable=["batch_stats"]
    )
    return out, changed["batch_stats"]


def test_group_norm_equals_flax():
    x, weights = 3.0 + 2.0 * normal(0, 6, 5, 4, 12), normal(1, 6, 5, 4, 12)
    ours, flaxs = layers.GroupNorm(3), nn.GroupNorm(3)
    variables = flaxs.init(jax.random.key(0), x)
    variables = jax.tree.map(lambda v: v + 0.1 * normal(2, 12), variables)

    @partial(quick_jit, static_argnums=0)
    def value_and_gradients(module, variables, x):
        loss = lambda *args: jnp.sum(weights * module.apply(*args))  # noqa: E731
        return module.apply(variables, x), jax.grad(loss, (0, 1))(variables, x)

    assert jax.tree.structure(ours.init(jax.random.key(0), x)) == jax.tree.structure(
        variables
    )
    want = jax.tree.leaves(value_and_gradients(flaxs, variables, x))
    got = jax.tree.leaves(value_and_gradients(ours, variables, x))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_batch_norm_is_that_of_flax_on_the_valid_samples():
    x = 5.0 + normal(0, 6, 4, 4, 3)
    valid = np.array([True, True, False, True, False, False])
    module = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5)

    @quick_jit
    def flax(x):
        variables = module.init(jax.random.key(0), x)
        return module.apply(variables, x, mutable=["batch_stats"])

    want, changed = flax(x[valid])
    padded = np.where(valid[:, None, None, None], x, np.nan)
    whole = batch_norm(x[valid])
    padding = batch_norm(padded, valid.astype(np.float32))
    for got, stats in (whole, (padding[0][valid], padding[1])):
        np.testing.assert_allclose(got, want, atol=1e-5)
        close = partial(np.testing.assert_allclose, rtol=1e-5)
        jax.tree.map(close, stats, changed["batch_stats"])


@pytest.mark.parametrize("train", [False, True])
def test_an_evaluation_and_padding_alone_keep_the_running_statistics(train):
    x = 5.0 + normal(0, 4, 3)
    out, stats = batch_norm(x, jnp.zeros(4, jnp.float32), train)
    assert np.isfinite(out).all()
    if not train:
        np.testing.assert_allclose(out, x / np.sqrt(1 + 1e-5), rtol=1e-6)
    assert not stats["mean"].any() and (stats["var"] == 1).all()
