"""The streams of random keys of a run.

A run's key is split into one for the initial model and one for all stages. Each stage
has a root key, from which one stream is derived for each purpose. The results of a run
depend on the integers below, so they must not change.

    run -> initial, stages;  stages -> root of stage s
    root -> COHORTS, START, CLIENTS, SERVER, EVALUATION, DEPLOY
    CLIENTS, SERVER, EVALUATION, DEPLOY -> round
    COHORTS -> the sampler's, which folds in the round; presence -> round
    a round's CLIENTS -> client -> downlink, batches, update
    a round's EVALUATION -> client

What is drawn before a run, by NumPy, has streams of the seed: the partition that of the
seed itself, everything else one of its own.

    seed -> partition
    (seed, purpose) -> TEST_SPLIT, VALIDATION, BUDGETS, DEVICES, UNSEEN, USED
"""

import jax
import numpy as np

from sparsefl_jax.core.types import Array, Key

COHORTS, START, CLIENTS, SERVER, EVALUATION, DEPLOY = range(6)
# With 0 it is the seed's own.
TEST_SPLIT, VALIDATION, BUDGETS, DEVICES, UNSEEN, USED = range(1, 7)


def on_host(seed: int, purpose: int) -> np.random.Generator:
    """Returns the generator of a purpose, such as `TEST_SPLIT`."""
    return np.random.default_rng([seed, purpose])


def of_run(key: Key) -> tuple[Key, Key]:
    """Returns the key of the initial model and the key of all stages."""
    return tuple(jax.random.split(key))


def of_stage(stages: Key, index: int) -> Key:
    """Returns the root of all randomness of a stage."""
    return jax.random.fold_in(stages, index)


def of_cohorts(root: Key) -> Key:
    """Returns the key that a stage's sampler is called with."""
    return jax.random.fold_in(root, COHORTS)


def of_presence(cohorts: Key) -> Key:
    """Returns the key that decides which clients are available in a round.

    Args:
      cohorts: the key that the sampler is called with.
    """
    return jax.random.fold_in(cohorts, 2**32 - 1)  # never the number of a round


def of_start(root: Key) -> tuple[Key, Key]:
    """Returns the key of `init`, and the key of all calls of `init_client`."""
    return tuple(jax.random.split(jax.random.fold_in(root, START)))


def of_round(root: Key, stream: int, round: int | Array) -> Key:
    """Returns the key of a round in `CLIENTS`, `SERVER`, `EVALUATION` or `DEPLOY`.

    Args:
      root: the root key of the stage.
      stream: one of the four.
      round: the round, from 0; for the last two the number of completed rounds.
    """
    return jax.random.fold_in(jax.random.fold_in(root, stream), round)


def of_client(key: Key, index: int | Array) -> Key:
    """Returns the key of one client within a round's stream."""
    return jax.random.fold_in(key, index)


def of_exchange(client: Key) -> tuple[Key, Key, Key]:
    """Returns a client's keys for a round: of the downlink, batches and `update`."""
    return tuple(jax.random.split(client, 3))
