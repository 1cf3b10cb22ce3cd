"""Top-k masks: exact counts whatever the ties, as a stable sort gives them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl_jax.sparsity import top_k

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def reference_top_k(scores, k):
    scores = scores.reshape(-1)
    order = np.argsort(-scores, kind="stable")
    keep = np.zeros(scores.size, bool)
    keep[order[:k]] = True
    return keep


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 3.5, np.inf, -np.inf])
        | st.floats(-10, 10, width=32, allow_subnormal=False),
        min_size=12,
        max_size=12,
    ),
    st.integers(-1, 14),
)
def test_top_k_equals_a_stable_sort(scores, k):
    scores = np.array(scores, np.float32)
    # XLA on CPU flushes subnormals to zero when it compares.
    scores[np.abs(scores) < 1e-38] = 0
    found = jax.jit(top_k.top_k)(scores.reshape(3, 4), k)
    assert found.shape == (3, 4)
    np.testing.assert_array_equal(
        np.asarray(found).reshape(-1), reference_top_k(scores, min(max(k, 0), 12))
    )


def test_top_k_takes_nan_last_and_handles_scalars_and_empties():
    scores = jnp.array([jnp.nan, -jnp.inf, -jnp.nan, 1.0])
    first = jax.jit(top_k.top_k)
    assert first(scores, 2).tolist() == [False, True, False, True]
    assert first(scores, 3).tolist() == [True, True, False, True]
    assert bool(first(jnp.float32(0), 1)) is True
    assert first(jnp.zeros((0, 3)), 1).shape == (0, 3)


@pytest.mark.parametrize(
    "k, kept", [(0, [0, 1, 0, 0]), (2, [1, 1, 0, 1]), (9, [1, 1, 1, 1])]
)
def test_at_least_keeps_the_ties_of_the_last_and_never_nothing(k, kept):
    scores = {"a": jnp.array([2.0, 3.0]), "b": jnp.array([1.0, 2.0]), "c": jnp.ones(1)}
    select = {"a": True, "b": True, "c": False}
    mask = top_k.at_least(scores, k, select)
    assert [*mask["a"].tolist(), *mask["b"].tolist()] == kept and mask["c"].all()


@pytest.mark.parametrize("share, kept", [(0.15, 15), (0.151, 16)])
def test_a_share_is_meant_as_it_is_written(share, kept):
    """0.15 is 0.15000001 in float32."""
    x = jnp.arange(1.0, 101.0)
    for weight in (None, jnp.ones(100)):
        assert top_k.largest_share(x, share, weight).sum() == kept


def test_ties_of_a_share_are_kept_and_padded_rows_neither_count_nor_stay():
    x = jnp.array([[2.0, -2.0, 0.0], [jnp.nan, 9.0, 9.0], [1.0, 0.0, -2.0]])
    weight = jnp.array([1.0, 0.0, 1.0])
    found = jax.jit(top_k.largest_share)(x, 0.3, weight)  # 2 of 6, and a tie
    assert found.tolist() == [[True, True, False], [False] * 3, [False, False, True]]
    whole = top_k.largest_share(x, 1.0, weight)
    assert whole.tolist() == [[True] * 3, [False] * 3, [True] * 3]
    assert not top_k.largest_share(x, 1.0, jnp.zeros(3)).any()


def test_the_largest_among_some_entries_are_no_others():
    """Of the entries 1 to 3, with negative scores too; the second layer has too few."""
    scores = {"a": jnp.array([9.0, -2.0, -1.0, -3.0]), "b": jnp.array([5.0, 7.0])}
    among = {"a": jnp.arange(4) > 0, "b": jnp.array([True, False])}
    counts, select = jnp.array([2, 2], jnp.int32), {"a": True, "b": True}
    found = top_k.keep_top(scores, counts, select, within=among)
    assert found["a"].tolist() == [False, True, True, False]
    assert found["b"].tolist() == [True, False]
    dense = top_k.keep_top(scores, counts[:1], select | {"b": False}, within=among)
    assert dense["b"].tolist() == [True, True]


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_a_quantile_is_that_of_numpy(q):
    """With ties, zeros of both signs and negative entries; NaN spreads."""
    for size in (1, 7, 100):
        x = np.random.default_rng(size).normal(size=size).astype(np.float32).round(1)
        x[::5] = -0.0
        found = float(jax.jit(top_k.quantile, static_argnums=1)(x, q))
        np.testing.assert_allclose(found, np.quantile(x, q), rtol=1e-6, atol=1e-7)
        x[-1] = np.nan
        assert np.isnan(top_k.quantile(x, q))


def test_a_quantile_of_many_lies_between_the_right_two():
    """Place 0.99 * 777 903 = 770 123.97 is 770 124 in float32, where ones begin."""
    x = (jnp.arange(777904) >= 770124).astype(jnp.float32)
    assert float(top_k.quantile(x, 0.99)) == pytest.approx(0.97, abs=1e-3)


def test_a_share_of_many_is_counted_exactly():
    """0.95 * 107 679 is 102 295.05, which float32 with its tolerance makes 102 295."""
    assert top_k.largest_share(jnp.arange(107679.0), 0.95).sum() == 102296
