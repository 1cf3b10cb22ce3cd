"""Finds what runs reached and what it cost, and compares them at equal cost.

Accuracies are those of the last stage. Every cumulative column of the records is an
axis of cost.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsefl_jax.core.formats import format_si
from sparsefl_jax.report.load import Record, Run, Table, by_round, column, is_finite

_SUFFIX, _POSITIONS = "_cumulative", "gbit_positions"
_REACHED = ["accuracy", "client_p10", "client_median"]
_SUMS = {  # costs that no column holds, in bits
    "gbit_up": ["bits_up"],
    "gbit_down": ["bits_down"],
    "gbit_values": ["bits_up_values", "bits_down_values"],
    _POSITIONS: ["bits_up_positions", "bits_down_positions"],
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
    "density": ("density of the deployed model", "%", 100.0),  # on a front, no cost
}
SLACK = 1e-9  # relative, because sums of costs round
_ROUND = (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0)


class Axis(NamedTuple):
    """A kind of cost that accumulates over all stages of a run."""

    name: str  # 'rounds', a sum, or a column of the records without `_cumulative`
    title: str
    unit: str
    scale: float  # units in one of the column's: 1e9 bit in a Gbit

    def text(self, cost: float) -> str:
        """Formats a cost with its unit.

        Example:
          >>> axis("gbit").text(0.04), axis("rounds").text(1200), axis("joule").text(2)
          ('40.0 Mbit', '1200', '2 joule')
        """
        if not self.unit and is_finite(cost):
            return f"{cost:g}"
        return format_si(self.scale * cost, self.unit)


def final_evals(run: Run) -> list[Record]:
    """Returns the evaluations of the last stage, in the order of the rounds.

    Models of earlier stages are not results. A run that is still in its first stage has
    none yet.

    Example:
      >>> from pathlib import Path
      >>> evals = [dict(stage=0, round=1, models={}), dict(stage=1, round=1, models={})]
      >>> run = Run(Path("a"), [], evals, [0, 1], {}, {}, None)
      >>> [record["stage"] for record in final_evals(run)]
      [1]
    """
    first = (run.config.get("first_stage") or {}).get("name")
    earlier = bool(first) + len(run.config.get("middle_stages") or {})
    last = max([earlier, *(record["stage"] for record in run.evals)])
    return [record for record in run.evals if record["stage"] == last]


def last_eval(run: Run) -> Record:
    """Returns the last evaluation of the last stage; one without models if none."""
    return (final_evals(run) or [{"models": {}}])[-1]


def measure_of(run: Run) -> str:
    """Returns what the evaluations of a run measure."""
    return run.evals[-1].get("measure", "accuracy") if run.evals else "accuracy"


def sign(record: Record) -> int:
    """Returns -1 if the lower value of what a record measures is better, else 1."""
    return -1 if record.get("better") == "lower" else 1


def accuracy(record: Record | None, model: str | None = None) -> float | None:
    """Returns the accuracy of a deployed model, or the headline; None if unknown."""
    if record is None:
        return None
    found = record if model is None else record["models"].get(model, {})
    return found["accuracy"] if is_finite(found.get("accuracy")) else None


def best_eval(run: Run, model: str | None = None) -> Record | None:
    """Returns the evaluation of the best round of the last stage, see `best_of`."""
    return best_of(final_evals(run), model)


def best_of(evals: Sequence[Record], model: str | None = None) -> Record | None:
    """Returns the evaluation of the best round.

    The validation split chooses it if there is one, otherwise the test set.
    """
    scores = [
        (record.get("val_accuracy", reached), record)
        for record in evals
        if (reached := accuracy(record, model)) is not None
    ]
    best = lambda pair: sign(pair[1]) * pair[0]  # noqa: E731
    return max(scores, key=best, default=(0.0, None))[1]


def chosen_by(run: Run) -> str:
    """Returns 'validation' if that split chooses the best round, else 'test'."""
    chosen = any("val_accuracy" in record for record in final_evals(run))
    return "validation" if chosen else "test"


def axis(name: str) -> Axis:
    """Returns the axis of a name; an unknown name is its own title and unit."""
    return Axis(name, *_WORDS.get(name, (name.replace("_", " "), name, 1.0)))


def progress(run: Run) -> Table:
    """Returns the cost and the accuracy of a run after each recorded round.

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
    for name, keys in _SUMS.items():
        train[name + _SUFFIX] = train.reindex(columns=keys).sum(axis=1).cumsum() / 1e9
    both = pd.concat([train, evals]).groupby(level=0).last()
    found = both.filter(like=_SUFFIX).rename(columns=lambda n: n.removesuffix(_SUFFIX))
    found["rounds"] = found.index
    reached = by_round(run, final_evals(run))
    reached.columns = [n.replace("client_accuracy.", "client_") for n in reached]
    return found.join(reached.reindex(columns=_REACHED))


def axes(tables: Sequence[Table]) -> list[Axis]:
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
    names -= {_POSITIONS, "rounds", *_REACHED}
    known = [name for name in _WORDS if name in names]
    return list(map(axis, [*known, *sorted(names - set(known)), "rounds"]))


def curve(table: Table, name: str) -> Any:
    """Returns the headline accuracy of a run's last stage by cost, a Series [n].

    The costs of earlier stages are included, their evaluations are not. Of evaluations
    at the same cost the last one counts.

    Args:
      table: of the run, as `progress` returned it.
      name: of the axis.
    """
    points = table.reindex(columns=[name, "accuracy"]).dropna()
    return points.drop_duplicates(name, keep="last").set_index(name)["accuracy"]


def accuracy_at(curve: Any, budget: float) -> float | None:
    """Interpolates a run's accuracy linearly between its evaluations.

    Args:
      curve: of the run, as the function `curve` returns it.
      budget: a cost, in units of the curve's.

    Returns:
      The accuracy; None before the first evaluation and beyond the last one, because
      nothing is extrapolated.

    Example:
      >>> import pandas as pd
      >>> curve = pd.Series([0.5, 0.7], [1.0, 3.0])
      >>> accuracy_at(curve, 2.5), accuracy_at(curve, 4), accuracy_at(curve, 0.5)
      (0.65, None, None)
    """
    slack = SLACK * abs(budget)  # of no cost, the least and the most are NaN
    if not curve.index.min() - slack <= budget <= curve.index.max() + slack:
        return None
    return float(np.interp(budget, curve.index, curve))


def mean_accuracy(curve: Any, budget: float) -> float | None:
    """Returns the area under the accuracy over [0, budget], divided by the budget.

    The accuracy is linear between evaluations and rises linearly from 0 at no cost to
    the first evaluation, so that a costly first stage counts against a method.

    Args:
      curve: of a run, as the function `curve` returns it.
      budget: the cost at which the area ends, the same for all runs.

    Returns:
      A share; None if the run ended before the budget.

    Example:
      >>> import pandas as pd
      >>> curve = pd.Series([0.4, 0.8], [1.0, 2.0])
      >>> mean_accuracy(curve, 2.0)  # (0.4 / 2 + 0.6) / 2
      0.4
    """
    if not curve.index.max() >= budget * (1 - SLACK):
        return None
    origin = [0.0] if curve.index[0] > 0 else []
    pair = curve.index, curve
    cost, accuracy = (np.concatenate([origin, values]) for values in pair)
    x = np.append(cost[cost < budget], budget)
    return float(np.trapezoid(np.interp(x, cost, accuracy), x) / budget)


def default_budgets(ends: Sequence[float], whole: bool = False) -> list[float]:
    """Returns half the smallest cost, the smallest, the median and the largest one.

    Args:
      ends: what each run that costs anything has cost at its last evaluation.
      whole: whether budgets are whole numbers, such as rounds.

    Returns:
      Up to four budgets, rounded down and increasing; none if no run costs anything.

    Example:
      >>> default_budgets([0.43, 0.43, 0.9, 2.0])
      [0.2, 0.4, 0.6, 2.0]
      >>> default_budgets([7, 7], whole=True)
      [3, 6]
    """
    if not ends:
        return []
    low, middle, high = min(ends), float(np.median(ends)), max(ends)
    budgets = [_round_down(low) / 2, *map(_round_down, (low, middle, high))]
    budgets = [float(f"{budget:.3g}") for budget in budgets]
    if whole:
        budgets = [int(budget) for budget in budgets if budget >= 1]
    return sorted(set(budgets))


def _round_down(cost: float) -> float:
    """Rounds a cost down to one of the digits of `_ROUND`."""
    cost *= 1 + SLACK
    scale = 10.0 ** math.floor(math.log10(cost))
    return max(d for d in _ROUND if d <= cost / scale or d == 1.0) * scale


def on_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Returns which points no other one dominates.

    A point is dominated by another that costs no more and is at least as accurate, and
    better in one of the two. Equal points are both on the front.

    Args:
      points: cost and accuracy.

    Returns:
      One truth value a point.

    Example:
      >>> on_front([(1.0, 0.5), (2.0, 0.7), (2.0, 0.6), (3.0, 0.7)])
      [True, True, False, False]
    """
    return [
        not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)
        for x, y in points
    ]
