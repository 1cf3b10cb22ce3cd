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


def encode(
    splits: Sequence[Any], fill: str | None = None
) -> tuple[list[np.ndarray], np.ndarray]:
    """Encodes the rows of all splits alike.

    A column of texts most of which are numbers is one of numbers, in which the others
    are missing. Categories are those of the first split.

    Args:
      splits: frames of pandas, that of the training samples first.
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

    blocks, numeric, missing = [], [], []
    for column in splits[0]:
        found = [split[column] for split in splits]
        is_number = are_numbers(found[0])
        if is_number:
            found = [pd.to_numeric(values, errors="coerce") for values in found]
        if count := sum(int(values.isna().sum()) for values in found):
            missing.append(f"{column} ({count})")
            if is_number:
                found = [values.fillna(found[0].median()) for values in found]
        if not is_number:
            known = sorted(found[0].dropna().unique())
            found = [_one_hot(values, known) for values in found]
        blocks.append([np.asarray(v, np.float32).reshape(len(v), -1) for v in found])
        numeric += [is_number] * blocks[-1][0].shape[1]
    if missing and fill is None:
        what = f"values are missing: {', '.join(missing)}"
        raise UserError(f"{what}; remove these rows, or set hf.fill=median")
    return [np.hstack(parts) for parts in zip(*blocks, strict=True)], np.array(numeric)


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


def _one_hot(values: Any, known: list[str]) -> np.ndarray:
    """Returns [n, D] booleans: which of the known values, or of 64 hashes."""
    places = {value: place for place, value in enumerate(known)}
    if len(known) > _MOST:
        every = values.dropna().unique()
        places = {value: zlib.crc32(value.encode()) % _MOST for value in every}
    codes = values.map(places).fillna(-1).to_numpy()
    return codes[:, None] == np.arange(min(len(known), _MOST))
