"""How much is pruned over the rounds: exact numbers on the host, one for each round.

A count such as int(s n) must not depend on how float32 rounds s n. So schedules are
float64 tables [T] that the compiled program looks up.
"""

import numpy as np

from sparsefl_jax.core.check import check, integer
from sparsefl_jax.sparsity import layer_densities

_MOST_ROUNDS = 10**6  # every program holds the table


def polynomial(
    density: float,
    rounds: int,
    *,
    frequency: int = 1,
    power: float = 3.0,
    begin: int = 1,
) -> np.ndarray:
    """Returns the share that is pruned after rounds 1 to T, on a polynomial schedule.

    `s_t = S_T - S_T (1 - (F floor(t / F) - b) / (T - b))^n` is 0 up to round b, and S_T
    in round T if F divides it (Stripelis et al., FedSparsify, 2022, Eq. 1, with S_0 = 0
    and b = 1; Zhu and Gupta, 2017).

    Args:
      density: 1 - S_T, the share of entries that is left in the end, in (0, 1].
      rounds: T, from b + 1 to a million.
      frequency: F, rounds between two steps of the schedule, from 1 to T.
      power: n, above 0.
      begin: b, at least 0; up to this round nothing is pruned. The first step is in the
        first later round that F divides.

    Returns:
      [T] float64, s_t; item t - 1 is for round t.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> print(polynomial(0.1, 200)[[0, 1, 9, 49, 199]].round(4))
      [0.     0.0135 0.1167 0.5146 0.9   ]
    """
    check("begin", begin, integer(0, _MOST_ROUNDS - 1))
    check("rounds", rounds, integer(begin + 1, _MOST_ROUNDS))
    check("frequency", frequency, integer(1, rounds))
    t = np.arange(1, rounds + 1)
    done = np.clip((t // frequency * frequency - begin) / (rounds - begin), 0, 1)
    last = 1 - density
    # Rounded, as 1 - 0.8 is below 0.2; int(s n) is then that of the printed sparsity.
    return (last - last * (1 - done) ** power).round(15)


def end(until: int | None, rounds: int | None, times=1, parts=1, least=1) -> int:
    """Returns the round in which a schedule ends.

    Args:
      until: the round; None for a share of all.
      rounds: T, of the stage.
      times, parts: the share is times / parts, rounded down.
      least: the first round in which it may end.

    Raises:
      ValueError: both numbers of rounds are None.

    Example:
      >>> end(None, 500, 3, 5), end(7, 500, 3, 5)
      (300, 7)
    """
    if until is not None:
        return until
    check("rounds", rounds, integer(1))
    return max(least, (rounds or 0) * times // parts)


def cosine(rate: float, rounds: int) -> np.ndarray:
    """Returns a rate that falls to 0 by half a cosine, `rate / 2 (1 + cos(pi t / T))`.

    Args:
      rate: in round 0, in [0, 1].
      rounds: T, the first round in which it is 0, up to a million.

    Returns:
      [T + 1] float64; item t is for round t. Later rounds have the last one, 0.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> cosine(0.4, 2).tolist()
      [0.4, 0.2, 0.0]
    """
    check("rounds", rounds, integer(1, _MOST_ROUNDS))
    angle = np.pi * np.arange(rounds + 1) / rounds
    return np.where(angle < np.pi, rate / 2 * (1 + np.cos(angle)), 0.0).round(15)


def count_kept(pruned: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """Returns the entries that a schedule leaves, n - int(s n).

    Args:
      pruned: [T] float64, s_t as `polynomial` returns it.
      size: n, the number of entries, or [L] those of layers.

    Returns:
      [T] int32, or [T, L] integers.

    Example:
      >>> count_kept(np.array([0.0, 0.0135]), 1000).tolist()
      [1000, 987]
    """
    return size - layer_densities.counts(np.multiply.outer(pruned, size), 1)
