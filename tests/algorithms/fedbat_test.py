"""FedBAT: its operator and gradients, its identities, and what travels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import compressed, fedbat
from sparsefl_jax.algorithms.fedbat import _cut
from sparsefl_jax.sparsity import one_bit
from sparsefl_jax.testing import small_world
from tests.algorithms.fedmrn_test import ROW, SGD, VECTOR, one_client
from tests.reference.by_hand import bits

WIDE = (1e-9, 1e9)


def vector(**kwargs):
    return fedbat(VECTOR, SGD, **{"prunable": ("w",), "alpha_range": WIDE} | kwargs)


def test_gradients_by_hand():
    alpha, u = 0.5, np.array([-0.5, 0.5, -0.25, 0.25, 0.75, -1.0], np.float32)
    drawn = np.array([0.5, 0.5, 0.8, 0.1, 0.9, 0.9], np.float32)
    signs = np.array([-1, 1, 1, -1, 1, -1])  # p = 0, 1, 1/4, 3/4, 1, 0
    g = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], np.float32)

    def shown(u, alpha):
        return jnp.sum(one_bit.signed(u, alpha, jnp.array(drawn)) * g)

    value = one_bit.signed(jnp.array(u), jnp.float32(alpha), jnp.array(drawn))
    np.testing.assert_array_equal(value, signs * alpha)
    of_u, of_alpha = jax.grad(shown, (0, 1))(jnp.array(u), jnp.float32(alpha))
    assert of_u.tolist() == [1, 2, 3, 4, 0, 0]  # on |u / alpha| = 1 it passes
    # s - u / alpha = 0, 0, 3/2, -3/2 inside, sign(u) = 1, -1 outside
    assert float(of_alpha) == 3 * 1.5 - 4 * 1.5 + 5 - 6


def test_a_step_size_has_a_gradient_from_bound_to_bound():
    slopes = jax.vmap(jax.grad(lambda a: _cut(a, (0.5, 2.0))))
    assert slopes(jnp.array([0.4, 0.5, 1.0, 2.0, 2.1])).tolist() == [0, 1, 1, 1, 0]
    cut = _cut(jnp.array([0.4, 1.0, 2.1]), (0.5, 2.0))
    assert cut.tolist() == [0.5, 1, 2]


def test_the_step_size_is_the_mean_change_of_the_warm_up():
    """Gradients do not depend on w here: u is -0.1 t times the row after t steps."""
    each = (7, 0.5, 3), (4, 0.2, 1), (1, 0.0, 1), (3, 1.0, 3), (75, 0.84, 63)
    for steps, warmup, plain in each:
        method = vector(rho=0.0, warmup=warmup)
        up, metrics, move = one_client(method, steps=steps)
        want = 0.1 * plain * np.abs(ROW).mean()
        assert float(up["alpha"].values["w"]) == pytest.approx(want, rel=1e-6)
        assert float(metrics["step_size"]) == pytest.approx(want, rel=1e-6)
        np.testing.assert_allclose(np.abs(move["w"]), want, rtol=1e-6)


def test_bits_are_those_of_signs():
    whole = fedbat(small_world.tiny_model(), SGD)
    up, *_ = one_client(whole, model=small_world.tiny_model(), row=np.ones(8))
    assert bits(up) == 192 + 2 * 32 + 32 * (20 + 16)
    sent = [one_client(m)[0] for m in (vector(), compressed(VECTOR, SGD, up="sign"))]
    assert [*map(bits, sent)] == [4 + 32] * 2
