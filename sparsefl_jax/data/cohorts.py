"""Which clients take part in a round: pure functions of a key and the round.

A cohort is the beginning of a permutation of the clients. Up to `SHUFFLED` clients are
shuffled. More of them are never written out: a keyed permutation is evaluated at the
first K places, so that a round costs O(K) however many clients there are.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import Array, Key

SHUFFLED = 1024  # clients; shuffling these takes less time than a round
_PASSES = 8  # of the Feistel network, twice what the proof asks for


def permuted(key: Key, num_clients: int, count: int) -> Array:
    """The first entries of a keyed permutation of `range(num_clients)`, in O(count).

    A Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations
    from pseudorandom functions", SIAM J. Comput. 1988) whose halves are digits of base
    ceil(sqrt(N)), added modulo the base; so its domain is hardly larger than N. What
    leaves `range(N)` is permuted again until it is back (Black and Rogaway, "Ciphers
    with arbitrary finite domains", CT-RSA 2002).

    Args:
      key: of the permutation.
      num_clients: N, from 1 to 2**31 - 1.
      count: entries wanted, at most N.

    Returns:
      Different ids [count] int32.

    Example:
      >>> sorted(permuted(jax.random.key(0), 10, 10).tolist())
      [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
      >>> permuted(jax.random.key(0), 1_000_000_000, 3).shape
      (3,)
    """
    base = jnp.uint32(math.isqrt(num_clients - 1) + 1)
    keys = jax.random.split(key, _PASSES)

    def half(left_right, key):
        left, right = left_right
        fold = jax.vmap(lambda digit: jax.random.bits(jax.random.fold_in(key, digit)))
        return (right, (left + fold(right) % base) % base), None

    def permute(ids):
        (left, right), _ = lax.scan(half, (ids // base, ids % base), keys)
        return left * base + right

    def walk(ids_outside):
        ids, outside = ids_outside
        ids = jnp.where(outside, permute(ids), ids)
        return ids, ids >= num_clients

    start = jnp.arange(count, dtype=jnp.uint32), jnp.ones(count, bool)
    ids, _ = lax.while_loop(lambda v: jnp.any(v[1]), walk, start)
    return ids.astype(jnp.int32)


def _draw(key: Key, num_clients: int, count: int) -> Array:
    """Ids [count] int32 out of `range(num_clients)`, uniform without replacement."""
    if num_clients > SHUFFLED:
        return permuted(key, num_clients, count)
    ids = jax.random.choice(key, num_clients, (count,), replace=False)
    return ids.astype(jnp.int32)


def uniform_sampler(num_clients: int, cohort_size: int) -> Callable:
    """`(key, round) -> ids [K] int32`, uniform without replacement, in O(K).

    Example:
      >>> draw = uniform_sampler(1_000_000, 10)
      >>> len(set(draw(jax.random.key(0), 3).tolist()))
      10
    """

    def sampler(key, round):
        return _draw(jax.random.fold_in(key, round), num_clients, cohort_size)

    return sampler


def stratified_sampler(budgets: np.ndarray, cohort_size: int) -> Callable:
    """`(key, round) -> ids [K] int32`: the same share of every tier of equal budgets.

    Raises:
      ValueError: if the cohort does not split into whole shares of the tiers.
    """
    budgets = np.asarray(budgets, np.float32)
    tiers = [np.flatnonzero(budgets == b).astype(np.int32) for b in np.unique(budgets)]
    shares = [len(tier) * cohort_size / len(budgets) for tier in tiers]
    if any(share != int(share) or share < 1 for share in shares):
        raise ValueError(
            f"cohort_size={cohort_size} does not split into whole shares of the tiers "
            f"of {[len(tier) for tier in tiers]} clients"
        )

    def sampler(key, round):
        keys = jax.random.split(jax.random.fold_in(key, round), len(tiers))
        drawn = [
            jnp.asarray(tier)[_draw(k, len(tier), int(share))]
            for k, tier, share in zip(keys, tiers, shares, strict=True)
        ]
        return jnp.concatenate(drawn)

    return sampler


def cohorts(key: Key, stage: Stage, num_clients: int, rounds: Array) -> Array:
    """The ids [R, K] int32 drawn in these rounds [R] of a stage with root key `key`."""
    draw = stage.sampler or uniform_sampler(num_clients, stage.cohort_size)
    sampling_key = keys.of_cohorts(key)
    return jax.vmap(lambda round: draw(sampling_key, round))(rounds)


def drawing(key: Key, stage: Stage, num_clients: int) -> Callable:
    """A compiled `cohorts` of a stage: `rounds [R] -> ids [R, K]`, NumPy.

    What it gives for rounds beyond the stage is the last round's.
    """

    @jax.jit
    def draw(rounds):
        rounds = jnp.minimum(rounds, stage.num_rounds - 1)
        return cohorts(key, stage, num_clients, rounds)

    return lambda rounds: np.asarray(draw(rounds))
