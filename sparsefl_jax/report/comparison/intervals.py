"""Estimates means over seeds with 95 % intervals of Student's t."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.lines import finite

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean over seeds, with half the width of its 95 % interval."""

    mean: float | None  # None if no seed has a value
    half: float | None  # None for fewer than two seeds
    count: int
    std: float | None = None  # sample deviation; None for fewer than two seeds

    def percent(self) -> str:
        """Formats a share in percent, with half its interval.

        Example:
          >>> Interval(0.5, 0.01, 3).percent(), Interval(None, None, 0).percent()
          ('50.0 ± 1.0', '-')
        """
        if self.mean is None:
            return MISSING
        half = "" if self.half is None else f" ± {100 * self.half:.1f}"
        return f"{100 * self.mean:.1f}{half}"


def interval(values: Sequence[float | None]) -> Interval:
    """Returns the mean of the finite values and its 95 % interval by Student's t.

    Args:
      values: one for each seed; None where a seed has none.

    Returns:
      The interval `mean ± half`, of n - 1 degrees of freedom.

    Example:
      >>> mean, half, count, _ = interval([1.0, 3.0])  # 12.706 * sqrt(2) / sqrt(2)
      >>> round(mean, 3), round(half, 3), count
      (2.0, 12.706, 2)
      >>> interval([5.0])
      Interval(mean=5.0, half=None, count=1, std=None)
    """
    values = [value for value in values if finite(value)]
    count = len(values)
    if count < 2:
        return Interval(values[0] if values else None, None, count)
    from scipy.special import stdtrit

    quantile = float(stdtrit(count - 1, (1 + LEVEL) / 2))
    std = statistics.stdev(values)
    return Interval(
        statistics.mean(values), quantile * std / math.sqrt(count), count, std
    )


def paired(
    one: Mapping[Hashable, float | None], other: Mapping[Hashable, float | None]
) -> Interval:
    """Returns the interval of the differences `one - other` over their common seeds.

    What a seed does to both cancels, so that this interval is narrower than the two
    means suggest.

    Example:
      >>> paired({0: 0.7, 1: 0.6}, {0: 0.5, 1: 0.4, 2: 0.9})
      Interval(mean=0.2, half=0.0, count=2, std=0.0)
    """
    return interval(
        [
            a - b
            for seed, a in one.items()
            if a is not None and (b := other.get(seed)) is not None
        ]
    )
