"""Allocates densities to layers, nests masks by budget, and checks n of m."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl_jax.sparsity import layer_densities, nested, top_k, trees

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def shapes(**kwargs):
    tree = {k: jax.ShapeDtypeStruct(v, jnp.float32) for k, v in kwargs.items()}
    return tree, dict.fromkeys(tree, True)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=6
    ),
    st.floats(0.01, 1.0),
)
def test_erk_meets_the_density_within_one(shape_list, density):
    tree, select = shapes(**{f"l{i}": tuple(s) for i, s in enumerate(shape_list)})
    found = layer_densities.erk(tree, select, density)
    size = trees.layer_sizes(tree, select)
    assert (found > 0).all() and (found <= 1).all()
    assert (found * size).sum() / size.sum() == pytest.approx(density, rel=1e-4)


@pytest.mark.parametrize(
    ("share", "size", "count"),
    [
        (0.64, 11_164_352, 7_145_185),  # of 7 145 185.28
        (0.999999, 2**31 - 1, 2_147_481_499),  # of 2 147 481 499.52
        (1.0, 2**31 - 1, 2**31 - 1),
        (0.29, 100, 29),  # the product is below 29
        (7 / 23, 23, 7),  # no decimal, and the product in float32 is below 7
    ],
)
def test_a_traced_share_is_counted_as_on_the_host(share, size, count):
    counted = jax.jit(layer_densities.count_of, static_argnums=1)
    found = counted(jnp.float32(share), size)
    assert (int(found), found.dtype) == (count, jnp.int32)
    assert layer_densities.counts(share, size) == count


def test_ranks_go_by_score_and_then_by_index():
    mask = {"a": jnp.array([True, True, False, True]), "b": jnp.ones(2, bool)}
    scores = {"a": jnp.array([5.0, 7.0, 9.0, 7.0]), "b": jnp.array([1.0, 2.0])}
    select = {"a": True, "b": False}
    # D = 3 / 4: the masks have 1, 2 and 3 entries.
    budgets = np.array([0.25, 0.5, 0.75])
    ranks = nested.nested_ranks(scores, mask, select, budgets)
    turned = nested.nested_ranks(scores, mask, select, budgets[::-1])
    assert turned["a"].tolist() == ranks["a"].tolist()
    assert ranks["a"].tolist() == [2, 0, 3, 1] and ranks["b"].tolist() == [0, 0]
    kept = nested.submask(ranks, jnp.array([2], jnp.int32), select)
    assert kept["a"].tolist() == [False, True, False, True] and kept["b"].all()


def test_nested_counts_of_a_large_whole_layer_are_those_of_decimals():
    """A layer of ResNet-18; a float32 product gives 707,789 at 0.3."""
    mask = {"w": np.ones((3 * 3 * 512, 512), bool)}
    found = nested.nested_counts(mask, {"w": True}, jnp.float32(0.3))
    assert found.tolist() == [707_788]


@pytest.mark.parametrize(("n", "m"), [(2, 4), (2, 5), (7, 20)])
def test_n_of_m_counts_and_takes_the_largest(key, n, m):
    kernel = jax.random.normal(key, (3, 3, 2, 4))  # 18 inputs, 4 outputs
    select = {"k": True, "b": False}
    find = jax.jit(lambda p: top_k.n_of_m(p, n, m, select))
    mask = find({"k": kernel, "b": jnp.ones(4)})
    assert mask["b"].all() and mask["k"].shape == kernel.shape
    column = np.asarray(kernel).reshape(18, 4)
    kept = np.asarray(mask["k"]).reshape(18, 4)
    for first in range(0, 18, m):
        rest = len(column[first : first + m])
        expected = n if rest == m else -(-n * rest // m)
        for o in range(4):
            group, alive = column[first : first + m, o], kept[first : first + m, o]
            assert alive.sum() == expected
            np.testing.assert_array_equal(
                np.sort(group[alive]), np.sort(group)[rest - expected :]
            )


MNISTNET = {
    "conv1": (5, 5, 1, 10),
    "conv2": (5, 5, 10, 20),
    "fc1": (5120, 50),
    "fc2": (50, 10),
}


def test_erk_of_feddst_scales_sparsities():
    """At S = .8: c (229/250, 4960/5000, 250830/256000, 440/500), c = .816505."""
    tree, select = shapes(**MNISTNET)
    found = layer_densities.erk_sparsity(tree, select, 0.2)
    np.testing.assert_allclose(
        1 - found, [0.747919, 0.809973, 0.800015, 0.718524], atol=1e-6
    )
    sizes = trees.layer_sizes(tree, select)
    kept = layer_densities.counts(found, sizes)
    assert kept.tolist() == [63, 950, 51196, 140]
    other = layer_densities.erk(tree, select, 0.2)
    np.testing.assert_allclose(other, [0.833, 0.079, 0.200, 1], atol=1.5e-3)


def test_erk_of_feddst_leaves_every_layer_an_entry_and_meets_the_density():
    """At S = .99 conv2 would have a sparsity of 1.0023."""
    tree, select = shapes(**MNISTNET)
    found = layer_densities.erk_sparsity(tree, select, 0.01)
    sizes = trees.layer_sizes(tree, select)
    assert layer_densities.counts(found, sizes)[1] == 1
    assert (found @ [250, 5000, 256000, 500]) == pytest.approx(2617.5)
