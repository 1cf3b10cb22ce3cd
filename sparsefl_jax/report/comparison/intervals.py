"""Estimates means over seeds with 95 % intervals of Student's t."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95


def over_seeds(values: "pd.DataFrame", by: Sequence[str]) -> "pd.DataFrame":
    """Returns `mean`, `std`, `ci95` and `count` of each column.

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
