"""Finds what runs cost: every cumulative column of their records is an axis of cost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sparsefl_jax.core.formats import MISSING, format_si
from sparsefl_jax.report.comparison.evaluations import accuracy, final_evals
from sparsefl_jax.report.lines import by_round, column, finite
from sparsefl_jax.report.load import Run

if TYPE_CHECKING:
    import pandas as pd

_SUFFIX, _POSITIONS = "_cumulative", "gbit_positions"
# Costs that older records lack, or that no column holds, are sums of other columns.
_SUMS = {
    "gbit_up": (("bits_up",), 1e9),
    "gbit_down": (("bits_down",), 1e9),
    "gbit_values": (("bits_up_values", "bits_down_values"), 1e9),
    _POSITIONS: (("bits_up_positions", "bits_down_positions"), 1e9),
    "pflop": (("flops",), 1e15),
}
# Words for the axes that need them: title, unit, and units in one of the column's.
_WORDS = {
    "gbit": ("traffic, both ways", "bit", 1e9),
    "gbit_up": ("traffic up", "bit", 1e9),
    "gbit_down": ("traffic down", "bit", 1e9),
    "gbit_values": ("traffic without positions", "bit", 1e9),
    "pflop": ("training FLOPs at the masks", "FLOP", 1e15),
    "hours": ("virtual time", "h", 1.0),
    "rounds": ("rounds", "", 1.0),
}


class Axis(NamedTuple):
    """A kind of cost that accumulates over all stages of a run."""

    name: str  # 'rounds', a sum, or a column of the records without `_cumulative`
    title: str
    unit: str
    scale: float  # units in one of the column's: 1e9 bit in a Gbit

    def text(self, cost: float | None) -> str:
        """Formats a cost with its unit.

        Example:
          >>> axis("gbit").text(0.04), axis("rounds").text(1200), axis("joule").text(2)
          ('40.0 Mbit', '1200', '2 joule')
        """
        if cost is None or not finite(cost):
            return MISSING
        if not self.unit:
            return f"{cost:g}"
        return format_si(self.scale * cost, self.unit)

    def budget(self, cost: float) -> str:
        """Formats a round number with its unit.

        Example:
          >>> axis("gbit").budget(0.4), axis("rounds").budget(40)
          ('400 Mbit', '40 rounds')
        """
        if not self.unit:
            return f"{cost:g} {self.title}"
        number, unit = self.text(cost).split(" ", 1)
        return f"{float(number):g} {unit}"


class Curve(NamedTuple):
    """A run's accuracy over one of its costs."""

    cost: np.ndarray  # [n] float64, increasing
    accuracy: np.ndarray  # [n] float64, shares


def axis(name: str) -> Axis:
    """Returns the axis of a name; an unknown name is its own title and unit."""
    return Axis(name, *_WORDS.get(name, (name.replace("_", " "), name, 1.0)))


def progress(run: Run) -> "pd.DataFrame":
    """Returns what a run had cost, and had reached, after each recorded round.

    Args:
      run: the records.

    Returns:
      A row for each round, counted over all stages. Columns are the costs, by the names
      of axes, and of the evaluations of the last stage `accuracy`, of the headline,
      `client_p10` and `client_median`. What is not known is NaN.

    Example:
      >>> from pathlib import Path
      >>> train = [dict(stage=0, round=n, gbit_cumulative=n, bits_up=8) for n in (1, 2)]
      >>> run = Run(Path("a"), train, [], [0], {}, {}, None)
      >>> progress(run)[["gbit", "gbit_up", "rounds"]].to_numpy().tolist()
      [[1.0, 8e-09, 1.0], [2.0, 1.6e-08, 2.0]]
    """
    import pandas as pd

    train, evals = (by_round(run, records) for records in (run.train, run.evals))
    both = pd.concat([train, evals]).groupby(level=0).last()
    found = both.filter(like=_SUFFIX).rename(columns=lambda n: n.removesuffix(_SUFFIX))
    for name, (keys, scale) in _SUMS.items():
        if set(keys) <= set(train):
            spent = train[list(keys)].sum(axis=1, skipna=False).cumsum(skipna=False)
            carried = (spent / scale).fillna(np.inf).reindex(found.index).ffill()
            spent = carried.replace(np.inf, np.nan)  # an unknown round stays unknown
            found[name] = found[name].fillna(spent) if name in found else spent
    found["rounds"] = found.index
    final = final_evals(run)
    clients = [record.get("client_accuracy") or {} for record in final]
    reached = {
        "accuracy": list(map(accuracy, final)),
        **{f"client_{n}": [of.get(n) for of in clients] for n in ("p10", "median")},
    }
    rounds = [run.rounds_until(record["stage"], record["round"]) for record in final]
    reached = pd.DataFrame(reached, index=rounds, dtype=float)
    return found.join(reached.where(np.isfinite(reached)))


def axes(tables: "Sequence[pd.DataFrame]") -> list[Axis]:
    """Returns the axes that any of the runs has, the traffic first, the rounds last.

    Args:
      tables: of the runs to compare, as `progress` returned them.

    Returns:
      An axis for every column `*_cumulative`, for the traffic in either direction, for
      that without positions where any travel, and for the rounds.
    """
    names = {name for table in tables for name in table if len(column(table, name))}
    if not any(column(table, _POSITIONS).any() for table in tables):
        names.discard("gbit_values")
    names -= {_POSITIONS, "rounds", "accuracy", "client_p10", "client_median"}
    known = [name for name in _WORDS if name in names]
    return list(map(axis, [*known, *sorted(names - set(known)), "rounds"]))


def total(run: Run, name: str) -> float | None:
    """Returns what a run has cost so far; None if it is unknown."""
    found = column(progress(run), name)
    return float(found.max()) if len(found) else None


def curve(table: "pd.DataFrame", name: str) -> Curve:
    """Returns the headline accuracy of a run's last stage over a cost.

    The costs of earlier stages are included, their evaluations are not. Of evaluations
    at the same cost the last one counts.

    Args:
      table: of the run, as `progress` returned it.
      name: of the axis.
    """
    if name not in table:
        return Curve(np.zeros(0), np.zeros(0))
    points = table[[name, "accuracy"]].dropna().drop_duplicates(name, keep="last")
    return Curve(*points.to_numpy().T)
