"""Tables of papers as lists of runs: what `benchmarks/table.py` runs and fills in.

A module holds `TABLE`; beside it stands a JSON file with what was measured.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A configuration, and what a paper has for it."""

    config: str  # file in configs/ with its argument, as `--config` takes it
    paper: str = ""  # %, mean and deviation as printed
    overrides: dict = {}  # noqa: RUF012  {dotted field: value}


class Table(NamedTuple):
    """Rows by name, and the runs in the order in which they are wanted."""

    rows: dict[str, Row]
    order: tuple[tuple[str, int], ...]  # (row, seed)
    best: bool = False  # whether the paper prints the best round, not the last
    columns: tuple[str, ...] = ()  # of what `extra` finds, those that are shown
    extra: Callable[[Path], dict[str, float]] | None = None  # of a run's folder


def runs(names: str, seed: int) -> tuple[tuple[str, int], ...]:
    """The same seed of several rows, named in one string.

    Example:
      >>> runs("fedavg pdst", 1)
      (('fedavg', 1), ('pdst', 1))
    """
    return tuple((name, seed) for name in names.split())
