"""The cohort of a round: pure functions from a key and the round to K client ids.

A cohort is the beginning of a random permutation of the clients. Up to `SHUFFLED`
clients are shuffled. A larger population is never written out: a keyed permutation is
evaluated at the first K places, so a round costs O(K) for any number of clients.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Stage, method
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, Key
from sparsefl_jax.system import hardware

SHUFFLED = 1024  # clients; shuffling them takes less time than a round
_ROUNDS = 256  # whose cohorts are drawn at a time, as each may draw for all clients
_PASSES = 8  # of the Feistel network, twice as many as the proof needs


def permute(key: Key, num_clients: int, count: int) -> Array:
    """Returns the first entries of a random permutation of the clients, in O(count).

    A Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations
    from pseudorandom functions", SIAM J. Comput. 1988) permutes the ids. Its halves are
    digits of base ceil(sqrt(N)), added modulo the base, so that its domain is hardly
    larger than N. An id that leaves `range(N)` is permuted again until it returns
    (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).

    Args:
      key: the key of the permutation.
      num_clients: N, from 1 to 2**31 - 1.
      count: the number of entries to return, at most N.

    Returns:
      Distinct ids [count] int32.

    Example:
      >>> sorted(permute(jax.random.key(0), 10, 10).tolist())
      [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
      >>> permute(jax.random.key(0), 1_000_000_000, 3).shape
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


def _draw(key: Key, num_clients: int, count: int, present: Array | None) -> Array:
    """Draws ids [count] int32 of `range(num_clients)` uniformly without replacement.

    The present ones, [num_clients] bool, come first; others only fill the rest.
    """
    if present is not None:
        draws = jax.random.uniform(key, (num_clients,)) + (~present).astype(jnp.float32)
        return lax.top_k(-draws, count)[1].astype(jnp.int32)
    if num_clients > SHUFFLED:
        return permute(key, num_clients, count)
    ids = jax.random.choice(key, num_clients, (count,), replace=False)
    return ids.astype(jnp.int32)


@method
def stratified_sampler(
    budgets: ArrayLike, cohort_size: int, present: Callable | None = None
) -> Callable:
    """Returns a sampler that draws the same share of every tier of equal budgets.

    Args:
      budgets: [N], the budget of each client; clients with equal budgets form a tier.
      cohort_size: K.
      present: `(key, round) -> [N] bool`, the available clients; None: all. Others
        fill a cohort of fewer than K, and `cohorts` removes them.

    Returns:
      `sampler(key, round) -> ids [K] int32`, the tiers in ascending order of budget.

    Raises:
      ValueError: the cohort does not split into whole shares of the tiers.

    Example:
      >>> draw = stratified_sampler([0.5, 1, 0.5, 1, 0.5, 1], 2)
      >>> ids = draw(jax.random.key(0), 0)
      >>> (ids % 2).tolist()
      [0, 1]
    """
    budgets = np.asarray(budgets, np.float32)
    tiers = [np.flatnonzero(budgets == b).astype(np.int32) for b in np.unique(budgets)]
    sizes = [len(tier) for tier in tiers]
    least = len(budgets) // math.gcd(*sizes)
    if cohort_size < 1 or cohort_size % least:
        why = f"so that tiers of {sizes} clients have whole shares"
        raise UserError(f"{cohort_size=}, expected a multiple of {least}, {why}")

    def sampler(key, round):
        by_tier = jax.random.split(jax.random.fold_in(key, round), len(tiers))
        there = present and present(keys.of_presence(key), round)
        drawn = []
        for k, tier in zip(by_tier, tiers, strict=True):
            share = len(tier) * cohort_size // len(budgets)
            known = None if there is None else there[tier]
            drawn.append(jnp.asarray(tier)[_draw(k, len(tier), share, known)])
        return jnp.concatenate(drawn)

    return sampler


def cohorts(
    key: Key,
    stage: Stage,
    num_clients: int,
    rounds: Array,
    present: Callable | None = None,
) -> Array:
    """Draws the cohorts of several rounds of a stage, by its sampler or uniformly.

    Args:
      key: the root key of the stage.
      stage: the stage.
      num_clients: N.
      rounds: [R] int32, rounds of the stage.
      present: `(key, round) -> [N] bool`, the available clients, at a cost of O(N);
        None: all.

    Returns:
      Ids [R, K] int32; N in the place of a client that is not available.
    """
    sampling_key = keys.of_cohorts(key)

    def of_round(round):
        there = present and present(keys.of_presence(sampling_key), round)
        if stage.sampler is None:
            draw_key = jax.random.fold_in(sampling_key, round)
            ids = _draw(draw_key, num_clients, stage.cohort_size, there)
        else:
            ids = stage.sampler(sampling_key, round)
        if there is None:
            return ids
        return jnp.where(there[ids], ids, num_clients).astype(jnp.int32)

    return lax.map(of_round, rounds, batch_size=min(_ROUNDS, len(rounds)))


def make_draw(
    key: Key, stage: Stage, num_clients: int, present: Callable | None = None
) -> Callable:
    """Returns a compiled `cohorts` of a stage, from NumPy to NumPy.

    The function maps `rounds [R]` to `ids [R, K]`, or to None if all of them lie beyond
    the stage. For single rounds beyond it the cohort is that of the last round. It
    raises a ValueError if the stage's own sampler draws a client twice in a round.
    """
    small = present is None and num_clients <= SHUFFLED
    options = hardware.UNOPTIMIZED if small else None  # then compiling takes longest

    @functools.partial(jax.jit, compiler_options=options)
    def draw(key, rounds):
        rounds = jnp.minimum(rounds, stage.num_rounds - 1)
        return cohorts(key, stage, num_clients, rounds, present)

    def draw_once(rounds):
        if rounds[0] >= stage.num_rounds:
            return None
        ids = np.asarray(draw(key, rounds))
        ordered = np.sort(ids, axis=1)
        again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < num_clients)
        for row, place in np.argwhere(again)[:1]:
            told = f"client {ordered[row, place]} twice in round {rounds[row] + 1}"
            told += ", expected each client at most once"
            raise UserError(f"the sampler draws {told}")
        return ids

    return draw_once
