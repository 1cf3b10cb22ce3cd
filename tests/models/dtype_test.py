"""Computing in bfloat16: what is rounded, what stays float32, and unused forms."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.models import Model, convolution, layers
from sparsefl_jax.models.convolution import choose
from sparsefl_jax.models.forms import equations, fast
from sparsefl_jax.training import local
from tests.models.convolution_test import formed, operands
from tests.networks import quick_jit

pytestmark = pytest.mark.slow

HALF = jnp.bfloat16
IMAGE = (12, 10, 3)


class Net(nn.Module):
    """All layers that the networks share, with biases."""

    kind: str

    @nn.compact
    def __call__(self, x, train, weight=None):
        x = nn.Conv(8, (3, 3), name="conv1", padding=1)(x)
        x = layers.norm(x, self.kind, name="bn1", train=train, weight=weight)
        x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        x = nn.Conv(6, (3, 3), strides=2, name="conv2", padding=0, use_bias=False)(x)
        x = nn.max_pool(x, (2, 2)).reshape(x.shape[0], -1)
        return nn.Dense(5, name="fc1")(x)


def build_net(kind):
    """Returns the network in float32 and bfloat16, and a loss of parameters."""
    model = Model.from_flax(Net(kind), jax.ShapeDtypeStruct((1, *IMAGE), jnp.float32))
    params, stats = model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(16, *IMAGE)) + 1, jnp.float32)
    y = jnp.asarray(rng.integers(0, 5, 16), jnp.int32)
    weight = jnp.asarray(np.arange(16) < 13, jnp.float32)

    def gradients(model):
        loss_fn = local.objective(model)
        loss = lambda params: loss_fn(None, params, stats, x, y, weight)  # noqa: E731
        return jax.grad(loss, has_aux=True), params

    return model, model.with_dtype("bfloat16"), gradients


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_gradients_are_float32_and_those_of_the_network_in_float32(kind):
    full, half, gradients = build_net(kind)
    # Unoptimised, XLA rounds a pool's input differently where it compares it again.
    (want, (stats, sums)), (got, (new, mine)) = (
        jax.jit(fast(f))(params) for f, params in map(gradients, (full, half))
    )
    for leaf in jax.tree.leaves((got, new, mine)):
        assert leaf.dtype == jnp.float32
    assert mine["loss"] != sums["loss"]
    assert mine["loss"] == pytest.approx(float(sums["loss"]), rel=0.01)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 0.01, 0.01), new, stats)

    def close(a, b):
        assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(b) + 2e-3

    jax.tree.map(close, got, want)


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_products_are_of_bfloat16_and_long_sums_of_float32(kind):
    _, half, gradients = build_net(kind)
    function, params = gradients(half)
    found = {"products": set(), "sums": set()}
    for equation in equations(jax.make_jaxpr(fast(function))(params).jaxpr):
        dtypes = {v.aval.dtype.name for v in equation.invars if hasattr(v, "aval")}
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            found["products"] |= dtypes
        elif equation.primitive.name == "reduce_sum":
            found["sums"] |= dtypes - {"int32", "bool"}
    assert found == {"products": {"bfloat16"}, "sums": {"float32"}}


def test_auto_never_takes_winograd_and_by_name_it_computes_in_float32():
    for layer in convolution.table():
        for backend in ("cpu", "gpu"):
            names = choose(layer, backend, "bfloat16")[:3]
            assert not any(name.startswith("winograd") for name in names)
    x, kernel = (v.astype(HALF) for v in operands(5))
    full = (v.astype(jnp.float32) for v in (x, kernel))
    want = quick_jit(formed("plain", pad=2))(*full)
    for name in ("winograd4", "patches", "canonical", "plain"):
        found = quick_jit(formed(name, pad=2))(x, kernel)
        for a, b in zip(found, want, strict=True):
            assert a.dtype == HALF
            error = np.abs(np.asarray(a, np.float32) - b).max() / np.abs(b).max()
            # Only col2im sums products that have been rounded.
            assert error < (0.02 if name == "patches" else 0.004), name
