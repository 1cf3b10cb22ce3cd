"""Masks: patterns, draws, densities, mismatch; no dtype is promoted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.sparsity import masks

pytestmark = pytest.mark.usefixtures("strict_dtypes")

PARAMS = {
    "conv1": {"kernel": jnp.ones((3, 3, 1, 4)), "bias": jnp.ones(4)},
    "fc": {"kernel": jnp.ones((5, 2)), "bias": jnp.ones(2)},
}


@pytest.mark.parametrize(
    "patterns, chosen",
    [
        (("*kernel",), [False, True, False, True]),
        (("fc/*",), [False, False, True, True]),
        (("!conv1/*", "*"), [False, False, True, True]),
        (("*", "!conv1/*"), [False, False, True, True]),
    ],
)
def test_patterns_choose_leaves(patterns, chosen):
    assert jax.tree.leaves(masks.prunable(PARAMS, patterns)) == chosen


@pytest.mark.parametrize(
    "patterns, said",
    [
        (("*kernel", "conv9/*"), r"'conv9/\*'.*conv1/bias', 'conv1"),
        (("*", "!bn*"), r"'!bn\*' matches no leaf"),
        (("fc/*", "!*c*"), "leave no leaf"),
        ("*kernel", "expected a tuple of globs"),
    ],
)
def test_patterns_that_choose_nothing_are_refused(patterns, said):
    with pytest.raises(ValueError, match=said):
        masks.prunable(PARAMS, patterns)


def test_bernoulli_is_total_and_has_its_densities(key):
    params = {"a": jnp.zeros((100, 100)), "b": jnp.zeros(7), "c": jnp.zeros((50, 100))}
    select = {"a": True, "b": False, "c": True}
    mask = masks.bernoulli(key, params, jnp.array([0.2, 1.0]), select)
    assert all(m.dtype == jnp.bool_ for m in jax.tree.leaves(mask))
    assert bool(mask["b"].all()) and bool(mask["c"].all())
    assert abs(float(mask["a"].mean()) - 0.2) < 5 * (0.2 * 0.8 / 1e4) ** 0.5
    one = masks.bernoulli(key, params, jnp.float32(0.2), select)
    np.testing.assert_array_equal(one["a"], mask["a"])
    # Equal leaves have draws of their own.
    assert not np.array_equal(one["a"][:50], one["c"])
    scores = masks.uniform_scores(key, params, select)
    assert not np.array_equal(scores["a"][:50], scores["c"])


def test_densities():
    mask = {"a": jnp.arange(4) < 1, "b": jnp.zeros(3, bool), "c": jnp.arange(6) < 3}
    select = {"a": True, "b": False, "c": True}
    assert masks.counts(mask, select).tolist() == [1, 3]
    assert masks.layer_densities(mask, select).tolist() == [0.25, 0.5]
    assert float(masks.density(mask, select)) == pytest.approx(0.4)
    none = {"a": False, "b": False, "c": False}
    assert float(masks.density(mask, none)) == 0
    empty = {"a": jnp.zeros((0,), bool), "b": jnp.array([True, False])}
    both = {"a": True, "b": True}
    assert masks.layer_densities(empty, both).tolist() == [0.0, 0.5]


def test_the_density_of_a_dense_mask_is_exactly_1():
    """A product with 1 / n in float32 is below 1 for n = 41, 47, 55, 61, ..."""
    for n in (41, 47, 55, 61):
        whole = jax.jit(lambda mask: masks.density(mask, {"w": True}))
        each = jax.jit(lambda mask: masks.layer_densities(mask, {"w": True}))
        dense, fewer = {"w": jnp.ones(n, bool)}, {"w": jnp.arange(n) > 0}
        assert float(whole(dense)) == 1 == each(dense)[0]
        assert float(whole(fewer)) < 1


def test_jaccard_mismatch():
    a = {"x": jnp.array([1, 1, 0, 0], bool), "y": jnp.zeros(2, bool)}
    b = {"x": jnp.array([0, 1, 1, 1], bool), "y": jnp.zeros(2, bool)}
    select = {"x": True, "y": True}
    whole, each = jax.jit(lambda a, b: masks.jaccard_mismatch(a, b, select))(a, b)
    assert float(whole) == 0.75
    assert each.tolist() == [0.75, 0.0]
    a["y"] = jnp.array([True, False])
    assert float(masks.jaccard_mismatch(a, b, select)[0]) == pytest.approx(0.8)
