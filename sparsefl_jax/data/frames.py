"""Turns columns of numbers and of categories into samples.

A category has a column of zeros and ones for each of its values, or, if it has many,
for each of 64 hashes of them (feature hashing, as of texts in `tokens`).
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefl_jax.core.check import UserError

_MOST = 64  # columns of a category


def encode(splits: Sequence, fill: str | None = None) -> tuple[Sequence, np.ndarray]:
    """Encodes the rows of all splits alike.

    A column of texts most of which are numbers is one of numbers, in which the others
    are missing. Categories are those of the first split.

    Args:
      splits: frames of pandas, that of the training samples first; arrays of numbers
        stay as they are.
      fill: "median" replaces missing numbers by the median of the first split; a
        missing category is none of them.

    Returns:
      The samples of each split, [n, D] float32, and which of the D columns are numbers.

    Raises:
      ValueError: values are missing and `fill` is None.

    Example:
      >>> import pandas as pd
      >>> rows = pd.DataFrame({"age": [31, 47], "sex": ["m", "f"]})
      >>> samples, numeric = encode([rows])
      >>> samples[0].tolist(), numeric.tolist()
      ([[31.0, 0.0, 1.0], [47.0, 1.0, 0.0]], [True, False, False])
    """
    import pandas as pd

    if isinstance(splits[0], np.ndarray):
        return splits, np.array(True)
    blocks, numeric, missing = [], [], []
    for column, values in pd.concat(splits).items():
        first = splits[0][column]
        if is_number := are_numbers(first):
            values = pd.to_numeric(values, errors="coerce")
        if count := values.isna().sum():
            missing.append(f"{column} ({count})")
        if is_number:
            median = values[: len(first)].median()
            block = values.fillna(median).to_numpy()[:, None]
        else:
            block = _one_hot(values, sorted(first.dropna().unique()))
        blocks.append(block.astype(np.float32))
        numeric += [is_number] * block.shape[1]
    if missing and fill is None:
        what = f"values are missing: {', '.join(missing)}"
        raise UserError(f"{what}; remove these rows, or set hf.fill=median")
    ends = np.cumsum([len(rows) for rows in splits])[:-1]
    return np.split(np.hstack(blocks), ends), np.array(numeric)


def are_numbers(values: Any) -> bool:
    """Returns whether most values of a series of pandas are numbers or texts of them.

    The first thousand that are not missing decide.

    Example:
      >>> import pandas as pd
      >>> are_numbers(pd.Series(["31", "?", "4.5"])), are_numbers(pd.Series(["m", "f"]))
      (True, False)
    """
    import pandas as pd

    known = values.dropna()[:1000]
    return bool(pd.to_numeric(known, errors="coerce").notna().mean() > 0.5)


def _one_hot(values: Any, known: Sequence) -> np.ndarray:
    """Returns [n, D] booleans: which of the known values, or of 64 hashes."""
    import pandas as pd

    if len(known) > _MOST:
        values = values.map(lambda v: zlib.crc32(v.encode()) % _MOST, "ignore")
        known = range(_MOST)
    return pd.Categorical(values, known).codes[:, None] == np.arange(len(known))
