"""Masks: exact counts whatever the ties, total masks, densities, mismatch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl_jax.sparsity import masks, top_k, trees

PARAMS = {
    "conv1": {"kernel": jnp.ones((3, 3, 1, 4)), "bias": jnp.ones(4)},
    "fc": {"kernel": jnp.ones((5, 2)), "bias": jnp.ones(2)},
}
SELECT = masks.prunable(PARAMS)


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"):
        yield


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


def test_top_k_under_vmap_over_scores_and_counts(key):
    scores = jnp.round(jax.random.normal(key, (4, 7, 9)), 1)
    k = jnp.array([0, 1, 40, 63], jnp.int32)
    found = jax.jit(jax.vmap(top_k.top_k))(scores, k)
    for i in range(4):
        np.testing.assert_array_equal(
            np.asarray(found[i]).reshape(-1),
            reference_top_k(np.asarray(scores[i]), int(k[i])),
        )


def test_top_k_of_half_precision():
    scores = jnp.array([1, 3, 2], jnp.bfloat16)
    assert top_k.top_k(scores, 1).tolist() == [False, True, False]


def test_paths_and_patterns():
    assert trees.leaf_paths(PARAMS) == [
        "conv1/bias",
        "conv1/kernel",
        "fc/bias",
        "fc/kernel",
    ]
    assert jax.tree.leaves(SELECT) == [False, True, False, True]
    assert jax.tree.leaves(masks.prunable(PARAMS, ("fc/*",))) == [
        False,
        False,
        True,
    ] + [True]
    with pytest.raises(ValueError, match=r"'conv9/\*'.*conv1/bias, conv1/kernel") as e:
        masks.prunable(PARAMS, ("*kernel", "conv9/*"))
    assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match="one string"):
        masks.prunable(PARAMS, "*kernel")


@pytest.mark.parametrize("patterns", [("!conv1/*", "*"), ("*", "!conv1/*")])
def test_patterns_that_exclude(patterns):
    chosen = jax.tree.leaves(masks.prunable(PARAMS, patterns))
    assert chosen == [False, False, True, True]
    for bad, told in (
        (("*", "!bn*"), r"'!bn\*' matches no leaf"),
        (("!fc/*",), "leave no leaf"),
        (("fc/*", "!*c*"), "leave no leaf"),
    ):
        with pytest.raises(ValueError, match=told):
            masks.prunable(PARAMS, bad)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(-1, 12), st.integers(0, 2**32 - 1))
def test_largest_overall_has_its_count_whatever_the_ties(count, seed):
    rng = np.random.default_rng(seed)
    scores = {
        name: rng.integers(-2, 3, shape).astype(np.float32)
        for name, shape in (("a", (2, 3)), ("b", (4,)), ("c", (1, 1)))
    }
    select = {"a": True, "b": False, "c": True}
    mask = jax.jit(lambda s, k: top_k.largest_overall(s, k, select))(scores, count)
    assert mask["b"].all() and mask["a"].shape == (2, 3)
    flat = np.concatenate([scores["a"].ravel(), scores["c"].ravel()])
    kept = np.concatenate([mask["a"].ravel(), mask["c"].ravel()])
    np.testing.assert_array_equal(kept, reference_top_k(flat, min(max(count, 0), 7)))


def test_layers_and_back():
    tree = jax.tree.unflatten(jax.tree.structure(PARAMS), [1, 2, 3, 4])
    assert trees.layers(tree, SELECT) == [2, 4]
    assert jax.tree.leaves(trees.replace_layers(tree, SELECT, [20, 40])) == [
        1,
        20,
        3,
        40,
    ]
    with pytest.raises(ValueError, match="holds 1 leaves, expected 2"):
        trees.replace_layers(tree, SELECT, [1])


def test_bernoulli_is_total_and_has_its_densities(key):
    params = {"a": jnp.zeros((100, 100)), "b": jnp.zeros(7), "c": jnp.zeros((50, 100))}
    select = {"a": True, "b": False, "c": True}
    mask = masks.bernoulli(key, params, jnp.array([0.2, 1.0]), select)
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    assert all(m.dtype == jnp.bool_ for m in jax.tree.leaves(mask))
    assert bool(mask["b"].all()) and bool(mask["c"].all())
    assert abs(float(mask["a"].mean()) - 0.2) < 5 * (0.2 * 0.8 / 1e4) ** 0.5
    one = masks.bernoulli(key, params, jnp.float32(0.2), select)
    np.testing.assert_array_equal(one["a"], mask["a"])
    assert not np.array_equal(one["a"][:50], one["c"])


def test_equal_leaves_have_draws_of_their_own(key):
    params, select = {"a": jnp.zeros(50), "b": jnp.zeros(50)}, {"a": True, "b": True}
    for drawn in (
        masks.bernoulli(key, params, jnp.float32(0.5), select),
        masks.uniform_scores(key, params, select),
    ):
        assert not np.array_equal(drawn["a"], drawn["b"])


def test_largest_of_random_scores_has_the_counts(key):
    params = {"a": jnp.zeros((10, 10)), "b": jnp.zeros(7)}
    select = {"a": True, "b": False}

    def draw(key, counts):
        return top_k.largest(masks.uniform_scores(key, params, select), counts, select)

    mask = jax.jit(jax.vmap(draw))(
        jax.random.split(key, 3), jnp.array([[0], [33], [100]], jnp.int32)
    )
    assert mask["a"].sum((1, 2)).tolist() == [0, 33, 100]
    assert mask["b"].all()


def test_densities():
    mask = {"a": jnp.arange(4) < 1, "b": jnp.zeros(3, bool), "c": jnp.arange(6) < 3}
    select = {"a": True, "b": False, "c": True}
    assert masks.counts(mask, select).tolist() == [1, 3]
    assert masks.layer_densities(mask, select).tolist() == [0.25, 0.5]
    assert float(masks.density(mask, select)) == pytest.approx(0.4)
    none = {"a": False, "b": False, "c": False}
    assert float(masks.density(mask, none)) == 0
    assert masks.layer_densities(mask, none).shape == (0,)


def test_jaccard_mismatch():
    a = {"x": jnp.array([1, 1, 0, 0], bool), "y": jnp.zeros(2, bool)}
    b = {"x": jnp.array([0, 1, 1, 1], bool), "y": jnp.zeros(2, bool)}
    select = {"x": True, "y": True}
    whole, each = jax.jit(lambda a, b: masks.jaccard_mismatch(a, b, select))(a, b)
    assert float(whole) == 0.75
    assert each.tolist() == [0.75, 0.0]
    whole, each = masks.jaccard_mismatch(a, a, select)
    assert float(whole) == 0 and each.tolist() == [0.0, 0.0]
    a["y"] = jnp.array([True, False])
    assert float(masks.jaccard_mismatch(a, b, select)[0]) == pytest.approx(0.8)


def test_apply_selects_and_full_keeps():
    params = {"w": jnp.array([1.0, jnp.nan, -jnp.inf], jnp.float16)}
    out = masks.apply(params, {"w": jnp.array([True, False, False])})
    assert out["w"].tolist() == [1.0, 0.0, 0.0] and out["w"].dtype == jnp.float16
    assert not np.signbit(np.asarray(out["w"])).any()
    assert all(m.all() for m in jax.tree.leaves(masks.full(PARAMS)))
