"""Which clients take part in a round: pure functions of a key and the round."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.algorithm import Stage
from sparsefl_jax.types import Array, Key


def uniform_sampler(num_clients: int, cohort_size: int) -> Callable:
    """`(key, round) -> ids [K]`, uniform without replacement."""

    def sampler(key, round):
        key = jax.random.fold_in(key, round)
        ids = jax.random.choice(key, num_clients, (cohort_size,), replace=False)
        return ids.astype(jnp.int32)

    return sampler


def stratified_sampler(budgets, cohort_size: int) -> Callable:
    """`(key, round) -> ids [K]`: the same share of every tier of equal budgets.

    Raises:
      ValueError: if the cohort does not split into whole shares of the tiers.
    """
    budgets = np.asarray(budgets, np.float32)
    tiers = [np.flatnonzero(budgets == b) for b in np.unique(budgets)]
    shares = [len(tier) * cohort_size / len(budgets) for tier in tiers]
    if any(share != int(share) or share < 1 for share in shares):
        raise ValueError(
            f"cohort_size={cohort_size} does not split into whole shares of the tiers "
            f"of {[len(tier) for tier in tiers]} clients"
        )

    def sampler(key, round):
        keys = jax.random.split(jax.random.fold_in(key, round), len(tiers))
        drawn = [
            jax.random.choice(k, tier, (int(share),), replace=False)
            for k, tier, share in zip(keys, tiers, shares, strict=True)
        ]
        return jnp.concatenate(drawn).astype(jnp.int32)

    return sampler


def cohorts(key: Key, stage: Stage, num_clients: int, rounds: Array) -> Array:
    """The ids [R, K] int32 drawn in these rounds [R] of a stage with root key `key`."""
    draw = stage.sampler or uniform_sampler(num_clients, stage.cohort_size)
    sampling_key = jax.random.fold_in(key, 0)
    return jax.vmap(lambda round: draw(sampling_key, round))(rounds)
