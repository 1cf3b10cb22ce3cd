"""Finds what runs cost: every cumulative column of their records is an axis of cost."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sparsefl_jax.core.formats import MISSING, format_si
from sparsefl_jax.report.comparison.evaluations import accuracy, final_evals
from sparsefl_jax.report.lines import finite
from sparsefl_jax.report.load import Record, Run

_SUFFIX = "_cumulative"
# Costs that older records lack, or that no column holds, are sums of other columns.
_SUMS = {
    "gbit_up": (("bits_up",), 1e9),
    "gbit_down": (("bits_down",), 1e9),
    "gbit_values": (("bits_up_values", "bits_down_values"), 1e9),
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
        if cost is None:
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


def axes(runs: Sequence[Run]) -> list[Axis]:
    """Returns the axes that any of the runs has, the traffic first, the rounds last.

    Args:
      runs: the runs to compare.

    Returns:
      An axis for every column `*_cumulative`, for the traffic in either direction, for
      that without positions where any travel, and for the rounds.

    Example:
      >>> from pathlib import Path
      >>> record = dict(stage=0, round=1, gbit_cumulative=1.0, joule_cumulative=3.0)
      >>> run = Run(Path("a"), [record], [], [0], {}, {}, None)
      >>> [axis.name for axis in axes([run])]
      ['gbit', 'joule', 'rounds']
    """
    columns = {
        key.removesuffix(_SUFFIX)
        for run in runs
        for record in (*run.train, *run.evals)
        for key in record
        if key.endswith(_SUFFIX)
    }
    train = [record for run in runs for record in run.train]
    columns |= {
        name
        for name, (keys, _) in _SUMS.items()
        if any(finite(_added(record, keys)) for record in train)
    }
    positions = ("bits_up_positions", "bits_down_positions")
    if not any(_added(record, positions) for record in train):
        columns.discard("gbit_values")
    known = [name for name in _WORDS if name in columns]
    return list(map(axis, [*known, *sorted(columns - set(known)), "rounds"]))


def cost(run: Run, record: Record, name: str) -> float | None:
    """Returns the cost of a run up to a record, over all stages and clients.

    Args:
      run: the run of the record.
      record: one of its records, of training or evaluation.
      name: of an axis.

    Returns:
      The cost in units of the column; None if the records do not hold it.
    """
    if name == "rounds":
        return run.rounds_until(record["stage"], record["round"])
    value = record.get(f"{name}{_SUFFIX}")
    if finite(value):
        return value
    if name not in _SUMS:
        return None
    keys, scale = _SUMS[name]
    end = (record["stage"], record["round"])
    parts = [_added(r, keys) for r in run.train if (r["stage"], r["round"]) <= end]
    return sum(parts) / scale if parts and all(map(finite, parts)) else None


def _added(record: Record, keys: Sequence[str]) -> float | None:
    """Returns the sum of some fields of a record; None if it lacks one."""
    values = [record.get(key) for key in keys]
    return sum(values) if all(map(finite, values)) else None


def total(run: Run, name: str) -> float | None:
    """Returns what a run has cost so far; None if it is unknown."""
    costs = [cost(run, record, name) for record in (*run.train[-1:], *run.evals[-1:])]
    return max(filter(finite, costs), default=None)


def curve(run: Run, name: str) -> Curve:
    """Returns the headline accuracy of a run's last stage over a cost.

    The costs of earlier stages are included, their evaluations are not. Of evaluations
    at the same cost the last one counts.
    """
    points = {
        x: accuracy(record)
        for record in final_evals(run)
        if finite(x := cost(run, record, name)) and accuracy(record) is not None
    }
    x, y = np.array(sorted(points.items()), float).reshape(-1, 2).T
    return Curve(x, y)


def pilot_note(run: Run) -> str:
    """Says if a pilot has set the number of rounds, so that the cost is approximate.

    Example:
      >>> from pathlib import Path
      >>> fit = {"gbit": 0.4, "pflop": None, "pilot": 5, "by": "pilot"}
      >>> run = Run(Path("a"), [], [], [0], {}, {"num_rounds": 80, "fit": fit}, None)
      >>> pilot_note(run)
      'A pilot of 5 rounds estimated that fit.gbit=0.4 pays for 80 rounds.'
    """
    fit = run.config.get("fit") or {}
    if fit.get("by") != "pilot":
        return ""
    budgets = [f"fit.{n}={fit[n]:g}" for n in ("gbit", "pflop") if finite(fit.get(n))]
    note = (
        f"A pilot of {fit.get('pilot')} rounds estimated that {' and '.join(budgets)} "
        f"pays for {run.config.get('num_rounds')} rounds"
    )
    found = fit.get("measured")
    return f"{note}. It measured: {found}." if found else f"{note}."
