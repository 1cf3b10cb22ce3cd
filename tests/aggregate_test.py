"""Sums become models: weights, coverage, and entries that no client sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl_jax.training import means

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def add_up(summands):
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), summands)


def test_old_stays_where_nobody_sent():
    summand = means.weighted_sum({"w": jnp.ones(2)}, jnp.float32(0))
    old = {"w": jnp.array([7.0, 8.0])}
    assert means.weighted_mean(summand, old)["w"].tolist() == [7.0, 8.0]


def test_weight_zero_removes_nan_and_old_keeps_its_dtype():
    trees = {"w": jnp.array([[jnp.nan, jnp.inf], [1.0, 3.0]], jnp.bfloat16)}
    summands = jax.vmap(means.weighted_sum)(trees, jnp.array([0.0, 0.5]))
    old = {"w": jnp.zeros(2, jnp.bfloat16)}
    mean = means.weighted_mean(add_up(summands), old)
    assert mean["w"].tolist() == [1.0, 3.0] and mean["w"].dtype == jnp.bfloat16


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**31))
def test_covered_mean_is_the_quotient_of_sums(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(3, 4, 2)).astype(np.float32)
    mask = rng.random((3, 4, 2)) < 0.4
    weight = rng.integers(1, 9, 3)
    held = {"w": jnp.asarray(mask)}
    trees = {"w": jnp.where(mask, values, jnp.nan)}  # what is outside does not count
    counts = jnp.asarray(weight.astype(np.float32))
    total = add_up(jax.vmap(means.covered_sum)(trees, held, counts))
    share = weight[:, None, None] * mask
    den = share.sum(0)
    expected = np.where(den > 0, (share * values).sum(0) / np.maximum(den, 1), 0)
    found = means.covered_mean(total)["w"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    old = {"w": jnp.full((4, 2), 5.0)}
    kept = np.asarray(means.covered_mean(total, old)["w"])
    assert (kept[den == 0] == 5).all()
    np.testing.assert_allclose(kept[den > 0], expected[den > 0], rtol=1e-5, atol=1e-6)
