"""Sums become models: weights, coverage, and entries that no client sent."""

import jax
import jax.numpy as jnp
import pytest

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


def test_what_lies_outside_a_mask_does_not_count():
    tree, mask = {"w": jnp.array([jnp.nan, 2.0])}, {"w": jnp.array([False, True])}
    summand = means.covered_sum(tree, mask, jnp.float32(2))
    assert summand["sum"]["w"].tolist() == [0.0, 4.0]
    old = {"w": jnp.array([5.0, 6.0])}
    assert means.covered_mean(summand, old)["w"].tolist() == [5.0, 2.0]
