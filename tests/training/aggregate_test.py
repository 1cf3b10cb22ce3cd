"""Sums become models: weights, coverage, and entries that no client sent."""

import jax
import jax.numpy as jnp
import pytest

from sparsefl_jax.training import means

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def test_weight_zero_removes_nan_and_old_keeps_its_dtype():
    trees = {"w": jnp.array([[jnp.nan, jnp.inf], [1.0, 3.0]], jnp.bfloat16)}
    old = {"w": jnp.array([7.0, 8.0], jnp.bfloat16)}
    for weights, want in (([0.0, 0.5], [1.0, 3.0]), ([0.0, 0.0], [7.0, 8.0])):
        summands = jax.vmap(means.weighted_sum)(trees, jnp.array(weights))
        total = jax.tree.map(lambda v: jnp.sum(v, axis=0), summands)
        mean = means.weighted_mean(total, old)
        assert mean["w"].tolist() == want and mean["w"].dtype == jnp.bfloat16


def test_what_lies_outside_a_mask_does_not_count():
    tree, mask = {"w": jnp.array([jnp.nan, 2.0])}, {"w": jnp.array([False, True])}
    summand = means.covered_sum(tree, mask, jnp.float32(2))
    assert summand["sum"]["w"].tolist() == [0.0, 4.0]
    old = {"w": jnp.array([5.0, 6.0])}
    assert means.covered_mean(summand, old)["w"].tolist() == [5.0, 2.0]
