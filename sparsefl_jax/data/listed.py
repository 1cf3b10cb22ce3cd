"""A partition that a file lists: the rows of each client, by its name."""

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core.check import UserError, blame, check

_COLUMNS = ["client", "sample"]


def listed(
    labels: ArrayLike,
    num_clients: int | None = None,
    *,
    seed: int = 0,
    path: str | None = None,
) -> dict[str, np.ndarray]:
    r"""Gives clients the rows that a file lists.

    Args:
      labels: [n], unused.
      num_clients: N, or None, by the file.
      seed: unused.
      path: a .json file with the rows of each client, `{"ward 3": [0, 4], ...}`, or a
        .csv file with the columns `client` and `sample`, a row of the training samples
        in each line.

    Returns:
      The rows by client, in the order of the file.

    Raises:
      ValueError: the file is not so.

    Example:
      >>> import tempfile
      >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
      ...     _ = file.write("client,sample\na,0\nb,1\na,2")
      ...     file.flush()
      ...     {k: v.tolist() for k, v in listed([0, 1, 0], path=file.name).items()}
      {'a': [0, 2], 'b': [1]}
    """
    check("partition.path: suffix", Path(path or "").suffix, (".json", ".csv"))
    with blame(f"partition.path={path!r}"):
        if path.endswith(".json"):
            content = Path(path).read_bytes()
            found = msgspec.json.decode(content, type=dict[str, list[int]])
            return {client: np.array(rows, int) for client, rows in found.items()}
        import pandas as pd

        table = pd.read_csv(path, dtype={"client": str})
        if list(table) != _COLUMNS or table.isna().any(axis=None):
            raise UserError(f"columns {list(table)}, expected {_COLUMNS} without gaps")
        rows = table.groupby("client", sort=False)["sample"]
        return {str(client): own.to_numpy() for client, own in rows}
