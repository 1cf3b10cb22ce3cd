"""Schedules of the clients' learning rate over the rounds, by name, from optax.

Each takes the learning rate and the number of rounds first, and returns an optax
schedule, `(round) -> rate`.
"""

from collections.abc import Callable

import optax

from sparsefl_jax.core.algorithm import method
from sparsefl_jax.core.check import check, integer
from sparsefl_jax.core.types import Count, NonNegative, Positive


@method
def constant(learning_rate: Positive, rounds: Count) -> Callable:
    """Returns a constant rate.

    Args:
      learning_rate: the rate.
      rounds: of the run; unused.

    Example:
      >>> constant(0.5, 9)(3)
      0.5
    """
    return optax.constant_schedule(learning_rate)


@method
def cosine(
    learning_rate: Positive, rounds: Count, *, final: NonNegative = 0.0
) -> Callable:
    """Returns a rate that falls by half a cosine.

    Args:
      learning_rate: the rate of round 0.
      rounds: of the run.
      final: the rate after the last round.

    Example:
      >>> [round(float(cosine(1.0, 8)(t)), 3) for t in (0, 2, 4, 8)]
      [1.0, 0.854, 0.5, 0.0]
    """
    return optax.cosine_decay_schedule(learning_rate, rounds, final / learning_rate)


@method
def step(
    learning_rate: Positive, rounds: Count, *, at: tuple[int, ...], factor: float = 0.1
) -> Callable:
    """Returns a rate that is multiplied by a factor in some rounds.

    Args:
      learning_rate: the rate of round 0.
      rounds: of the run.
      at: rounds from which the rate is multiplied once more, counted from 0.
      factor: the factor.

    Raises:
      ValueError: `at` is not within the run.

    Example:
      >>> [round(float(step(1.0, 9, at=(3, 6))(t)), 3) for t in (2, 3, 5, 6)]
      [1.0, 0.1, 0.1, 0.01]
    """
    for drop in at:
        check("at", drop, integer(1, rounds - 1))
    return optax.piecewise_constant_schedule(learning_rate, dict.fromkeys(at, factor))


SCHEDULES = {"constant": constant, "cosine": cosine, "step": step}
