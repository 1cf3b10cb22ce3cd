"""Estimates means over seeds with 95 % intervals of Student's t."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sparsefl_jax.report.lines import finite

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean over seeds, with half the width of its 95 % interval."""

    mean: float | None  # None if no seed has a value
    half: float | None  # None for fewer than two seeds
    count: int
    std: float | None = None  # sample deviation; None for fewer than two seeds


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


def over_seeds(values: "pd.DataFrame", by: Sequence[str]) -> "pd.DataFrame":
    """Returns `mean`, `std`, `ci95` and `count` of each column, as `interval` does.

    Args:
      values: a row for each seed; NaN where a seed has no value.
      by: the levels of its index that seeds share.

    Returns:
      A row for each group of seeds. Columns have the levels quantity and statistic;
      `ci95` is half the width of the interval.

    Example:
      >>> import pandas as pd
      >>> index = pd.MultiIndex.from_product([["a"], [0, 1]], names=["line", "seed"])
      >>> found = over_seeds(pd.DataFrame({"x": [1.0, 3.0]}, index), ["line"])
      >>> found["x"].round(3).to_dict("records")
      [{'mean': 2.0, 'std': 1.414, 'ci95': 12.706, 'count': 2}]
    """
    import pandas as pd
    from scipy.special import stdtrit

    groups = values.groupby(level=by, sort=False)
    count, std = groups.count(), groups.std()
    half = stdtrit(count - 1, (1 + LEVEL) / 2) * std / np.sqrt(count)
    found = {"mean": groups.mean(), "std": std, "ci95": half, "count": count}
    return pd.concat(found, axis=1).swaplevel(axis=1)
