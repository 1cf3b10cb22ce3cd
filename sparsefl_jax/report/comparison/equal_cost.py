"""Compares accuracies at equal cost: at budgets, under the curve, on the front."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from sparsefl_jax.report.comparison.costs import Curve

_ROUND = (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0)
SLACK = 1e-9  # relative, because sums of costs round


def accuracy_at(curve: Curve, budget: float) -> float | None:
    """Interpolates a run's accuracy linearly between its evaluations.

    Args:
      curve: of the run.
      budget: a cost, in units of the curve's.

    Returns:
      The accuracy; None before the first evaluation and beyond the last one, because
      nothing is extrapolated.

    Example:
      >>> curve = Curve(np.array([1.0, 3.0]), np.array([0.5, 0.7]))
      >>> accuracy_at(curve, 2.5), accuracy_at(curve, 4), accuracy_at(curve, 0.5)
      (0.65, None, None)
    """
    if not len(curve.cost):
        return None
    slack = SLACK * abs(budget)
    if not curve.cost[0] - slack <= budget <= curve.cost[-1] + slack:
        return None
    return float(np.interp(budget, *curve))


def mean_accuracy(curve: Curve, budget: float) -> float | None:
    """Returns the area under the accuracy over [0, budget], divided by the budget.

    The accuracy is linear between evaluations and rises linearly from 0 at no cost to
    the first evaluation, so that a costly first stage counts against a method.

    Args:
      curve: of a run.
      budget: the cost at which the area ends, the same for all runs.

    Returns:
      A share; None if the run ended before the budget.

    Example:
      >>> curve = Curve(np.array([1.0, 2.0]), np.array([0.4, 0.8]))
      >>> mean_accuracy(curve, 2.0)  # (0.4 / 2 + 0.6) / 2
      0.4
    """
    if budget <= 0 or not len(curve.cost) or curve.cost[-1] < budget * (1 - SLACK):
        return None
    origin = [0.0] if curve.cost[0] > 0 else []
    cost, accuracy = (np.concatenate([origin, values]) for values in curve)
    x = np.append(cost[cost < budget], budget)
    return float(np.trapezoid(np.interp(x, cost, accuracy), x) / budget)


def default_budgets(ends: Sequence[float], whole: bool = False) -> list[float]:
    """Returns half the smallest cost, the smallest, the median and the largest one.

    Args:
      ends: what each run has cost at its last evaluation; zeros do not count.
      whole: whether budgets are whole numbers, such as rounds.

    Returns:
      Up to four budgets, rounded down and increasing; none if no run costs anything.

    Example:
      >>> default_budgets([0.43, 0.43, 0.9, 2.0, 0.0])
      [0.2, 0.4, 0.6, 2.0]
      >>> default_budgets([7, 7], whole=True)
      [3, 6]
    """
    positive = [end for end in ends if end > 0]
    if not positive:
        return []
    low, middle, high = min(positive), statistics.median(positive), max(positive)
    budgets = [_rounded(low) / 2, *map(_rounded, (low, middle, high))]
    budgets = [float(f"{budget:.3g}") for budget in budgets]
    if whole:
        budgets = [int(budget) for budget in budgets if budget >= 1]
    return sorted(set(budgets))


def _rounded(cost: float) -> float:
    """Rounds a cost down to one of the digits of `_ROUND`."""
    cost *= 1 + SLACK
    scale = 10.0 ** math.floor(math.log10(cost))
    return max(d for d in _ROUND if d <= cost / scale or d == 1.0) * scale


def on_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Tells which points no other one dominates.

    A point is dominated by another that costs no more and is at least as accurate, and
    better in one of the two. Equal points are both on the front.

    Args:
      points: cost and accuracy.

    Returns:
      One truth value a point.

    Example:
      >>> on_front([(1.0, 0.5), (2.0, 0.7), (2.0, 0.6), (3.0, 0.7)])
      [True, True, False, False]
    """
    return [
        not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)
        for x, y in points
    ]
