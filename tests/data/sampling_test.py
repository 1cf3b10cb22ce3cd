"""Cohorts of a keyed permutation are distinct and uniform in any population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.data import cohorts

MANY = cohorts.SHUFFLED + 1  # the fewest clients that are permuted
SIZES = [1, 2, 5, 17, 1024, 1025, 9999]


def drawn(key, num_clients, count, rounds):
    """Returns the first ids of many permutations, [rounds, count]."""
    keys = jax.vmap(lambda r: jax.random.fold_in(key, r))(jnp.arange(rounds))
    each = jax.vmap(lambda k: cohorts.permute(k, num_clients, count))
    return np.asarray(jax.jit(each)(keys))


def assert_alike(counts):
    """Checks that Pearson's chi-square is within six standard deviations."""
    expected = counts.sum() / counts.size
    statistic = np.sum((counts - expected) ** 2) / expected
    freedom = counts.size - 1
    assert abs(statistic - freedom) < 6 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("num_clients", SIZES)
def test_a_permutation_has_everyone_once(key, num_clients):
    ids = cohorts.permute(key, num_clients, num_clients)
    assert ids.dtype == jnp.int32
    np.testing.assert_array_equal(np.sort(ids), np.arange(num_clients))


@pytest.mark.parametrize("num_clients", [10**6, 10**9, 2**31 - 1])
def test_ids_of_huge_populations_are_different_and_all_over(key, num_clients):
    ids = np.asarray(cohorts.permute(key, num_clients, 2000))
    assert len(np.unique(ids)) == 2000 and ids.min() >= 0 and ids.max() < num_clients
    assert_alike(np.bincount(ids // (num_clients // 50 + 1), minlength=50))


@pytest.mark.parametrize("num_clients, count", [(11, 3), (MANY, 40)])
def test_everyone_is_drawn_alike_at_every_place(key, num_clients, count):
    ids = drawn(key, num_clients, count, 4000)
    assert_alike(np.bincount(ids.ravel(), minlength=num_clients))
    for place in (0, count - 1):
        assert_alike(np.bincount(ids[:, place], minlength=num_clients))


@pytest.mark.parametrize(
    "num_clients", [50, pytest.param(MANY, marks=pytest.mark.slow)]
)
def test_cohorts_are_pure_and_may_be_compiled(key, num_clients):
    draw = lambda key, r: cohorts.cohorts(key, Stage(None, 4, 6), num_clients, r)  # noqa: E731
    plain = np.concatenate([draw(key, jnp.full(1, round)) for round in range(4)])
    compiled = jax.jit(draw)(key, jnp.arange(4))
    assert compiled.dtype == jnp.int32
    np.testing.assert_array_equal(plain, compiled)
    assert len({tuple(row) for row in plain.tolist()}) == 4
    assert np.any(plain != draw(jax.random.key(9), jnp.arange(4)))


def test_present_clients_come_first_and_nobody_is_in_the_place_of_others(key):
    there = jnp.arange(9) % 3 == 0
    ids = cohorts.cohorts(key, Stage(None, 4, 5), 9, jnp.arange(4), lambda *_: there)
    assert np.sort(ids).tolist() == [[0, 3, 6, 9, 9]] * 4
    assert {tuple(row) for row in np.sort(ids[:, :3]).tolist()} == {(0, 3, 6)}


def test_a_large_population_takes_no_memory_of_its_size(key):
    stage, rounds = Stage(None, 1, 10), np.zeros(1, np.int32)
    draw = jax.jit(lambda key, rounds: cohorts.cohorts(key, stage, 10**9, rounds))
    memory = draw.lower(key, rounds).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 100_000


@pytest.mark.slow
def test_tiers_that_are_large_get_their_shares_and_all_alike(key):
    budgets = np.where(np.arange(3 * MANY) % 3 == 1, 0.5, 1.0)  # a third has half
    draw = jax.jit(jax.vmap(cohorts.stratified_sampler(budgets, 30), (None, 0)))
    ids = np.asarray(draw(key, jnp.arange(2000)))
    assert ids.dtype == np.int32
    assert all(len(set(row)) == 30 for row in ids.tolist())
    np.testing.assert_array_equal(np.sum(budgets[ids] == 0.5, 1), 10)
    for tier in (0.5, 1.0):
        members = np.bincount(ids.ravel(), minlength=len(budgets))[budgets == tier]
        assert_alike(members)
