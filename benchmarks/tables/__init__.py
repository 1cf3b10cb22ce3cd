"""Tables of papers as lists of runs, which `benchmarks/table.py` runs and fills in.

A module holds `TABLE`; a JSON file of the same name holds the measured results.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A configuration, and the paper's result for it."""

    config: str  # file in configs/ with its argument, as for `--config`
    paper: str = ""  # %, mean and deviation as printed
    overrides: dict = {}  # noqa: RUF012  {dotted field: value}
    needs: str = (
        ""  # what two cores lack for it: data, or a GPU with its estimated cost
    )


class Table(NamedTuple):
    """Rows by name, and the order of the runs."""

    rows: dict[str, Row]
    order: tuple[tuple[str, int], ...]  # (row, seed)
    best: bool = False  # whether the paper prints the best round instead of the last
    columns: tuple[str, ...] = ()  # the results of `extra` that are shown
    # Reads a run's folder; what it returns is added to the entry.
    extra: Callable[[Path], dict[str, float | str]] | None = None


def runs(names: str, *seeds: int) -> tuple[tuple[str, int], ...]:
    """Returns the runs of several rows, named in one string, seed after seed.

    Example:
      >>> runs("fedavg pdst", 0, 1)
      (('fedavg', 0), ('pdst', 0), ('fedavg', 1), ('pdst', 1))
    """
    return tuple((name, seed) for seed in seeds for name in names.split())
