"""SpaFL's generalization bound, Theorem 1.

Kim et al., NeurIPS 2024, https://arxiv.org/abs/2406.00431. The paper proves no rate of
convergence. Where its statement and its proof differ, the functions follow the proof:
eq. 30 has the squared term beside the root that eq. 16 prints it under, and the data
have to be at least as many as Lemma 2's number, which prints "at most".

The bound is of an idealized SpaFL: the proof adds Gaussian noise to the thresholds'
gradients, which the method does not.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core.check import UserError, check, check_arguments, integer
from sparsefl_jax.core.types import Count, Fraction, NonNegative, Positive


class Generalization(NamedTuple):
    """What Theorem 1 says: |empirical risk - risk| < gap with this probability."""

    gap: float  # 9 epsilon; above 1 it is vacuous, as the loss lies in [0, 1]
    probability: float  # at least; 0 or less is vacuous
    least_samples: float  # the theorem holds for at least as many samples
    epsilon: float  # of all rounds
    delta: float  # of all rounds, eq. 15
    round_epsilon: float  # eq. 30


def diameter(gradients: ArrayLike) -> float:
    """Returns M_g, the largest distance of two samples' gradients of the thresholds.

    The paper's is a maximum over all models and samples (appendix A.2); this is the one
    of the gradients that were measured, and so a lower bound of it.

    Args:
      gradients: [samples, thresholds], one row for each sample.

    Raises:
      ValueError: they have another number of axes, or one is not finite.

    Example:
      >>> diameter([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
      5.0
    """
    rows = np.asarray(gradients, np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise UserError(
            f"gradients of shape {rows.shape}, expected finite [samples, thresholds]"
        )
    return max(float(np.linalg.norm(rows - row, axis=1).max()) for row in rows)


@check_arguments
def round_epsilon(
    density: Fraction,
    diameter: NonNegative,
    sigma: Positive,
    delta: Annotated[float, "(0, 1)"],
    batch_size: int,
    num_samples: Count,
) -> float:
    """Returns the epsilon of one round, eq. 30.

    Args:
      density: mean density of the clients' models, in [0, 1].
      diameter: M_g, see the function `diameter`.
      sigma: deviation of the noise that the proof adds to every threshold's gradient.
      delta: of one round, in (0, 1).
      batch_size: samples of a minibatch.
      num_samples: D, training samples of all clients together.

    Raises:
      ValueError: an argument is out of range.

    Example:
      >>> round_epsilon(1.0, 0.0, 1.0, 0.1, 10, 100)
      0.0
    """
    check("batch_size", batch_size, integer(1, num_samples))
    ratio = density * diameter / sigma
    exponent = (math.sqrt(2 * math.log(1 / delta)) * ratio + ratio**2) / 2
    share = math.log(batch_size / num_samples)
    if exponent > 700:  # its exponential is no double
        return exponent + share
    return math.log1p(math.exp(share) * math.expm1(exponent))


def generalization(
    density: float,
    diameter: float,
    sigma: float,
    delta: float,
    batch_size: int,
    num_samples: int,
    rounds: int,
) -> Generalization:
    """Returns Theorem 1 for a run of SpaFL.

    Args:
      density, diameter, sigma, delta, batch_size, num_samples: as in `round_epsilon`.
      rounds: T.

    Raises:
      ValueError: an argument is out of range, or eq. 15 has no value: it needs an
        epsilon of all rounds below T times that of one.

    Example:
      >>> bound = generalization(0.35, 0.25, 1.0, 1e-8, 64, 60_000, 500)
      >>> round(bound.gap, 2), bound.least_samples < 60_000
      (0.4, True)
    """
    arguments = density, diameter, sigma, delta, batch_size, num_samples
    once = round_epsilon(*arguments)
    check("rounds", rounds, integer(1))
    check("density * diameter", density * diameter, "(0, inf)")
    drift = rounds * once * math.tanh(once / 2)  # (e^x - 1) / (e^x + 1)
    total = math.sqrt(2 * rounds * math.log(1 / delta)) * once + drift
    if not total < rounds * once:
        raise UserError(
            f"rounds={rounds}, expected more for eq. 15: epsilon of all rounds is "
            f"{total:.3g}, not below rounds times that of one, {rounds * once:.3g}"
        )
    spent = _composed_delta(once, total, delta, rounds)
    wanted = 2 / total**2 * (math.log(16 / spent) + total)
    doubt = math.exp(-total) * spent / total * math.log(2 / total)
    sure = min(1.0, 1 - doubt)
    return Generalization(9 * total, sure, wanted, total, spent, once)


def _composed_delta(once: float, total: float, delta: float, rounds: int) -> float:
    """Returns the delta of all rounds, eq. 15, by logarithms."""
    most, weight = rounds * once, 1 / (1 + math.exp(-once))  # e^x / (1 + e^x)
    chernoff = (
        -(total + most) / 2
        + rounds * (math.log(2 * most / (most - total)) - once + math.log(weight))
        - (total + most) / (2 * once) * math.log((most + total) / (most - total))
    )
    rare, often = math.log1p(-delta * (1 - weight)), math.log1p(-delta * weight)
    steps = math.ceil(total / once)
    parts = math.expm1(rounds * rare) + math.expm1(
        steps * often + (rounds - steps) * rare
    )
    return math.exp(chernoff) - parts
