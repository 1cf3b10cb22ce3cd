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
    needs: str = ""  # what two cores lack for it: "a GPU" with its cost, or data


class Table(NamedTuple):
    """Rows by name, and how many seeds of each to run."""

    rows: dict[str, Row]
    seeds: int = 3
    best: bool = False  # whether the paper prints the best round instead of the last
    columns: tuple[str, ...] = ()  # the results of `extra` that are shown
    # Reads a run's folder; what it returns is added to the entry.
    extra: Callable[[Path], dict[str, float | str]] | None = None
