"""What layers save for the gradients of their kernels, against NumPy and plain JAX."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sparsefl_jax.models import base
from tests.networks import gradients, normal

PATHS = ("conv/kernel", "fc/kernel")


class _Network(nn.Module):
    """A convolution of the input, and a dense layer."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(3, (3, 3), padding=1, name="conv")(x)
        return nn.Dense(2, name="fc")(jnp.sin(x.reshape(x.shape[0], -1)))


@pytest.fixture(scope="module")
def network():
    model = base.model_of(_Network(), (4, 4, 2))
    return model, *model.init(jax.random.key(0))


def positive(x, kernel, weight):
    """Saves the positive inputs of layers."""
    return jnp.where(x > 0, x, 0.0)


def test_weights_follow_from_what_is_saved_and_inputs_do_not(network):
    """By hand: dw of a dense layer is x~^T g; of a convolution, by `lax` at x~."""
    model, params, stats = network
    x = normal(1, 2, 4, 4, 2)
    exact, of_x = gradients(model, params, stats, x)
    found, of_x_too = gradients(model.with_inputs(positive, PATHS), params, stats, x)
    np.testing.assert_array_equal(of_x_too, of_x)
    for name in ("conv", "fc"):
        np.testing.assert_array_equal(found[name]["bias"], exact[name]["bias"])

    def conv(x, kernel):
        dims = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", None, None, dims)

    w, fc = params["conv"]["kernel"], jax.device_get(params["fc"])
    before = np.asarray(conv(x, w)) + np.asarray(params["conv"]["bias"])
    before = before.reshape(2, -1)
    z = np.sin(before)
    g = 2 * (z @ fc["kernel"] + fc["bias"])
    want = np.maximum(z, 0).T @ g
    np.testing.assert_allclose(found["fc"]["kernel"], want, rtol=1e-4, atol=1e-5)
    g = (g @ fc["kernel"].T * np.cos(before)).reshape(2, 4, 4, 3)
    _, pull = jax.vjp(lambda w: conv(np.maximum(x, 0), w), w)
    (want,) = pull(jnp.asarray(g))
    np.testing.assert_allclose(found["conv"]["kernel"], want, rtol=1e-4, atol=1e-5)


def test_only_named_kernels_are_hooked_and_a_hook_of_all_changes_no_bit(network):
    model, params, stats = network
    x = normal(1, 2, 4, 4, 2)
    exact, _ = gradients(model, params, stats, x)
    same = model.with_inputs(lambda x, kernel, weight: x, PATHS)
    jax.tree.map(
        np.testing.assert_array_equal, gradients(same, params, stats, x)[0], exact
    )
    one, _ = gradients(model.with_inputs(positive, PATHS[1:]), params, stats, x)
    np.testing.assert_array_equal(one["conv"]["kernel"], exact["conv"]["kernel"])
    assert np.any(one["fc"]["kernel"] != exact["fc"]["kernel"])


def test_the_hook_sees_kernel_and_padding_and_is_left_out_of_an_evaluation(network):
    model, params, stats = network
    seen = []

    def hook(x, kernel, weight):
        seen.append((x.shape, kernel.shape, weight.shape))
        return x

    x, hooked = normal(1, 2, 4, 4, 2), model.with_inputs(hook, PATHS)
    hooked.apply(params, stats, x, train=False)
    assert not seen
    hooked.apply(params, stats, x, train=True, weight=jnp.ones(2))
    images, columns = ((2, 4, 4, 2), (3, 3, 2, 3), (2,)), ((2, 48), (48, 2), (2,))
    assert seen == [images, columns]
