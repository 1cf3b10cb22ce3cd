"""FedMRN and FedBAT: the noise, the bits, what is clipped, the step size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fedbat, fedmrn
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import one_bit
from sparsefl_jax.testing import small_world
from sparsefl_jax.training import local
from tests.reference import by_hand
from tests.reference.by_hand import batches, bits, context, linear_loss, model_of

MODEL, SGD = small_world.tiny_model(), local.make_optimizer(learning_rate=0.1)
ROW = np.array([1.0, -2.0, 0.5, 0.0], np.float32)
VECTOR = model_of(linear_loss, {"w": 1}, {"w": np.zeros(4)})  # its gradient is ROW


def one_client(method, *, steps=2, model=VECTOR, row=ROW):
    """Returns one client's uplink, metrics, and what it moves the server's model by."""
    params, stats = model.init(jax.random.key(0))
    server = method.init(jax.random.key(1), SparseModel(params, None, stats))
    ctx, data = context(size=3), batches(steps, row)

    @jax.jit
    def play(key):
        _, up, metrics = by_hand.one_client(method, server, ctx, data, key)
        new, _ = by_hand.merged(method, server, (ctx, up), key=key)
        return up, metrics, jax.tree.map(jnp.subtract, new.params, server.params)

    return play(jax.random.key(2))


def vector(**kwargs):
    return fedmrn(VECTOR, SGD, prunable=("w",), **kwargs)


def test_noise():
    """Signs; uniform and normal noise is drawn again by the reference."""
    tree = {"a": jnp.zeros(10_000), "b": None, "c": jnp.zeros((100, 100))}
    signs, other = (
        one_bit.noise(jnp.uint32(seed), tree, "bernoulli", 0.5) for seed in (7, 8)
    )
    assert signs["b"] is None and set(np.unique(signs["a"])) == {-0.5, 0.5}
    assert abs(float(signs["a"].mean())) < 4 * 0.5 / 100
    for another in (other["a"], signs["c"].reshape(-1)):
        assert 0.4 < np.mean(another != signs["a"]) < 0.6
    tiny = one_bit.noise(jnp.uint32(7), tree, "gaussian", 1e-12)["a"]
    np.testing.assert_array_equal(tiny, np.float32(1e-8))


# A seed; two step sizes.
@pytest.mark.parametrize(("factory", "more"), [(fedmrn, 32), (fedbat, 2 * 32)])
def test_bits_by_hand(factory, more):
    """8 * 16 + 16 * 4 entries of kernels, 20 biases, 16 statistics."""
    up, *_ = one_client(factory(MODEL, SGD), model=MODEL, row=np.ones(8))
    assert bits(up) == 192 + more + 32 * (20 + 16)


def test_an_update_beyond_the_noise_is_clipped():
    _, metrics, _ = one_client(vector(magnitude=1e-3, mask="signed"), steps=5)
    assert float(metrics["clipped"]) == 0.75  # a gradient of 0 leaves u at 0
    _, metrics, _ = one_client(vector(magnitude=1e3, mask="signed"), steps=5)
    assert float(metrics["clipped"]) == 0


WIDE = (1e-9, 1e9)


def bat(**kwargs):
    return fedbat(VECTOR, SGD, **{"prunable": ("w",), "alpha_range": WIDE} | kwargs)


def test_the_step_size_is_the_mean_change_of_the_warm_up():
    """Gradients do not depend on w here: u is -0.1 t times the row after t steps."""
    each = (7, 0.5, 3), (4, 0.2, 1), (1, 0.0, 1), (3, 1.0, 3), (75, 0.84, 63)
    for steps, warmup, plain in each:
        method = bat(rho=0.0, warmup=warmup)
        up, metrics, move = one_client(method, steps=steps)
        want = 0.1 * plain * np.abs(ROW).mean()
        assert float(up["alpha"].values["w"]) == pytest.approx(want, rel=1e-6)
        assert float(metrics["step_size"]) == pytest.approx(want, rel=1e-6)
        np.testing.assert_allclose(np.abs(move["w"]), want, rtol=1e-6)
