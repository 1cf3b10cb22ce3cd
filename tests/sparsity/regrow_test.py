"""FLASH's prune and regrow: counts by hand, invariants, and carried state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks, regrow

pytestmark = pytest.mark.usefixtures("strict_dtypes")

SELECT = {"a": True, "b": True, "bias": False}


@jax.jit
def call(key, params, mask, rate, carry):
    return regrow.prune_regrow(key, params, mask, rate, select=SELECT, carry=carry)


@jax.jit
def calls(key, params, mask, rate, carry):
    """Returns the results of `call` for 100 keys."""
    each = (0, None, None, None, None)
    return jax.vmap(call, each)(jax.random.split(key, 100), params, mask, rate, carry)


def network(a, b):
    """Returns weights and a mask from lists in which None is a masked entry."""
    value = {"a": a, "b": b}
    params = {
        k: jnp.array([x or 0.0 for x in v], jnp.float32) for k, v in value.items()
    }
    mask = {k: jnp.array([x is not None for x in v]) for k, v in value.items()}
    params["bias"], mask["bias"] = jnp.ones(2), jnp.ones(2, bool)
    return params, mask


def start(params, mask):
    return regrow.start_carry(params, SELECT, masks.density(mask, SELECT))


def test_by_hand(key):
    # a: 4 of 20 alive, mean 2.5; b: 8 of 20 alive, mean 0.5; shares 5/6 and 1/6.
    a = [1.0, -2.0, 3.0, -4.0] + [None] * 16
    b = [None] * 12 + [0.1, -0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9]
    params, mask = network(a, b)
    # rate 0.5 prunes 2 and 4; a wants ceil(5) = 5, b wants ceil(1) = 1.
    new, after, _ = calls(key, params, mask, 0.5, start(params, mask))
    survived_a, survived_b = [2, 3], [16, 17, 18, 19]
    assert after["a"][:, survived_a].all() and after["b"][:, survived_b].all()
    for name, kept in (("a", survived_a), ("b", survived_b)):
        # Weights are those of before, also where one was pruned and grew again.
        expected = np.asarray(params[name]) * np.asarray(after[name])
        np.testing.assert_array_equal(new[name], expected)
        # Growth is uniform over the holes, those just pruned included.
        holes = np.setdiff1d(np.arange(20), kept)
        count = {"a": 5, "b": 1}[name]
        share = np.asarray(after[name])[:, holes].mean(0)
        assert np.abs(share - count / len(holes)).max() < 0.2
        assert share.sum() == pytest.approx(count, rel=0.3)
    assert (np.asarray(new["bias"]) == 1).all() and after["bias"].all()


def test_a_dense_layer_with_a_small_share_loses_what_the_rate_says(key):
    params, mask = network([0.1] * 18 + [None] * 2, [5.0] * 8 + [None] * 12)
    _, after, _ = calls(key, params, mask, 0.5, start(params, mask))
    assert after["a"].all(0).sum() == 9


@pytest.mark.parametrize(("alive", "survive"), [(17, 14), (16, 8)])
def test_below_a_fifth_of_sparsity_a_layer_is_spared(key, alive, survive):
    """At .15 it loses ceil(.15 * 17) = 3 of 17, at .2 already half of 16."""
    a = [float(i) for i in range(1, alive + 1)] + [None] * (20 - alive)
    params, mask = network(a, [0.1] * 8 + [None] * 12)
    _, after, _ = calls(key, params, mask, 0.5, start(params, mask))
    # Entries that stay in all of a hundred draws were not pruned.
    assert np.flatnonzero(after["a"].all(0)).tolist() == [
        *range(alive - survive, alive)
    ]


def test_where_nothing_is_counted_exact_zeros_go(key):
    # A fully dense layer with the larger share has rate 0: its mask becomes w != 0.
    a = [9.0, 0.0] + [9.0] * 18
    params, mask = network(a, [0.1] * 8 + [None] * 12)
    new, after, _ = calls(key, params, mask, 0.5, start(params, mask))
    assert (new["a"] != 0).sum(1).tolist() == [19] * 100
    assert not new["a"][:, 1].any() and not after["a"][:, 1].all()
    # At rate 0 nothing else changes, and nothing grows.
    new, after, _ = calls(key, params, mask, 0.0, start(params, mask))
    assert (after["a"] == (params["a"] != 0)[None]).all()
    assert (after["b"] == mask["b"][None]).all()


def test_growth_fills_at_most_99_percent_of_the_holes(key):
    # 7 + 8 entries are pruned and a wants all 15, but may fill 0.99 of its 13 holes;
    # the excess of 2.13 goes to b, which wanted ceil(0.0..) = 1.
    params, mask = network([100.0] * 14 + [None] * 6, [1e-6] * 16 + [None] * 4)
    _, after, _ = calls(key, params, mask, 0.5, start(params, mask))
    mean = {k: float(m.sum(1).astype(jnp.float32).mean()) for k, m in after.items()}
    assert mean["a"] == pytest.approx(7 + 12, abs=0.5)
    assert mean["b"] == pytest.approx(8 + 3, abs=0.7)


def test_carry_follows_the_recurrence(key):
    params, mask = network([1.0] * 8 + [None] * 12, [1.0] * 8 + [None] * 12)
    carry = start(params, mask)
    assert float(carry.target) == pytest.approx(16)
    growth, misses = 0.0, []
    for i in range(4):
        k = jax.random.fold_in(key, i)
        params, mask, carry = call(k, params, mask, 0.25, carry)
        misses.append(16 - int(masks.counts(mask, SELECT).sum()))
        growth = 0.25 * growth + 0.75 * misses[-1] + np.mean(misses)
        assert float(carry.growth) == pytest.approx(growth, abs=1e-4)
    assert any(misses)


@pytest.mark.slow
def test_carry_growth_is_added(key):
    params, mask = network([1.0] * 20 + [None] * 180, [1.0] * 20 + [None] * 180)
    carry = start(params, mask)._replace(growth=jnp.float32(60))
    # 10 pruned and 60 to make up: 35 grow in each layer, on top of 30 that survived.
    _, after, _ = calls(key, params, mask, 0.25, carry)
    count = (after["a"].sum(1) + after["b"].sum(1)).astype(jnp.float32)
    assert abs(float(count.mean()) - 100) < 5


def test_zeros_go_before_weights_and_ties_by_index(key):
    """Of six zeros that have just grown the first five, and of ten ones."""
    a = [0.0] * 6 + [1.0] * 4 + [None] * 10
    params, mask = network(a, [1.0] * 10 + [None] * 10)
    _, after, _ = calls(key, params, mask, 0.5, start(params, mask))
    for name in ("a", "b"):
        assert np.flatnonzero(after[name].all(0)).tolist() == [5, 6, 7, 8, 9]


def test_what_was_just_pruned_competes_for_growth_and_starts_at_zero():
    """Weight 1 is the smallest, and its gradient the largest of the three holes."""
    params = {"a": jnp.array([4.0, -1.0, 2.0, 0.0, 0.0]), "bias": jnp.ones(2)}
    mask = {"a": jnp.arange(5) < 3, "bias": jnp.ones(2, bool)}
    scores = {"a": jnp.array([9.0, 3.0, 8.0, 2.0, 1.0]), "bias": jnp.ones(2)}
    given = SparseModel(params, mask, {}), scores, jnp.array([2]), jnp.array([3])
    for anywhere, alive, weights in (
        (False, [0, 1, 2], [4, 0, 2, 0, 0]),
        (True, [0, 2], [0, 0, 2, 0, 0]),  # the largest of all is a survivor's
    ):
        how = dict(select={"a": True, "bias": False}, anywhere=anywhere)
        new, grown, _ = jax.jit(functools.partial(regrow.exchange, **how))(*given)
        assert np.flatnonzero(grown["a"]).tolist() == alive
        assert new["a"].tolist() == weights
        assert new["bias"].tolist() == [1.0, 1.0] and grown["bias"].all()


def test_fewer_alive_weights_than_kept_are_all_kept():
    params, mask = {"a": jnp.array([4.0, 0.0, 0.0])}, {"a": jnp.arange(3) < 1}
    scores, counts = {"a": jnp.array([0.0, 1.0, 2.0])}, (jnp.array([2]), jnp.array([2]))
    model = SparseModel(params, mask, {})
    new, grown, _ = regrow.exchange(model, scores, *counts, select={"a": True})
    assert grown["a"].tolist() == [True, False, True]
    assert new["a"].tolist() == [4.0, 0.0, 0.0]
