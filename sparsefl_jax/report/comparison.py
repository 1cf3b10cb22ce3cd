"""Measures groups of runs: means over seeds with 95 % intervals of Student's t."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sparsefl_jax.core.check import check
from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report import costs
from sparsefl_jax.report.costs import Axis, accuracy, best_eval, last_eval, sign
from sparsefl_jax.report.differences import make_labels
from sparsefl_jax.report.groups import Group, apart, refuse_unlike, seed_of, unlikeness
from sparsefl_jax.report.load import Table

LEVEL = 0.95  # of intervals
MARK = "†"  # of a group that is unlike the first one
VALIDATION = "val_accuracy"  # the column, of runs with a validation split
_INDEX = ["line", "rank", "model", "seed"]
_COLUMNS = ("rounds", VALIDATION, "accuracy", "best", "density", "client_p10")
_COLUMNS += ("client_median", "gbit", "pflop", "pflop_dense")
_APART = "seen_accuracy", "unseen_accuracy"  # only of runs with unseen clients


class Comparison(NamedTuple):
    """Groups of runs with the axes and budgets that they share.

    `seeds` has a row for each line (from 0), deployed model (rank 0 is the headline)
    and seed, and columns of quantities: accuracies and densities as shares, costs in
    the units of the records, and for headline models `accuracy_at_AXIS_BUDGET` and
    `area_AXIS_BUDGET`, the mean accuracy up to the common budget. `val_accuracy` of
    the last evaluation is there if a run has a validation split. `models` has a row for
    each line and model, with `mean`, `std`, `ci95` and `count` of each quantity
    over seeds. At a budget that a seed did not reach there is no mean.
    """

    groups: list[Group]  # with unique labels, which end in MARK if unlike the first
    axes: list[Axis]
    budgets: dict[str, list[float]]  # by axis, increasing; [] if there is none
    common: dict[str, float | None]  # by axis, the largest that all ended runs reached
    seeds: Table = None
    models: Table = None

    def at(self, axis: Axis) -> dict[float, str]:
        """Returns the columns of the accuracies at the budgets of an axis."""
        return {b: f"accuracy_at_{axis.name}_{b:g}" for b in self.budgets[axis.name]}

    def area(self, axis: Axis) -> str:
        """Returns the column of the mean accuracies on an axis; '' if there is none."""
        budget = self.common[axis.name] if self.sign > 0 else None  # it starts at 0
        return "" if budget is None else f"area_{axis.name}_{budget:g}"

    def titles(self, axis: Axis) -> dict[str, str]:
        """Returns the columns at equal cost of an axis, with their titles."""
        found = {name: f"at {axis.text(b)}" for b, name in self.at(axis).items()}
        if name := self.area(axis):
            found[name] = f"mean up to {axis.text(self.common[axis.name])}"
        return found

    @property
    def measure(self) -> str:
        """The name of what the first run measures."""
        return costs.measure_of(self.groups[0].runs[0]) if self.groups else "accuracy"

    @property
    def sign(self) -> int:
        """-1 if lower values are better, else 1."""
        return sign(last_eval(self.groups[0].runs[0])) if self.groups else 1

    @property
    def lines(self) -> Table:
        """The rows of `models` of the headline models, by line."""
        return _headlines(self.models)

    @property
    def chosen(self) -> int | None:
        """The line that validation chooses; None if no run has a validation split."""
        known = self.lines.get((VALIDATION, "mean"))
        return None if known is None else int((self.sign * known).argmax())

    @property
    def gaps(self) -> Table:
        """The differences of headline models from the first line, paired by seed."""
        values = _headlines(self.seeds)
        known = self.lines.xs("mean", axis=1, level=1).notna()
        values = values.where(known.reindex(values.index, level="line"))
        first = values.loc[0].reindex(values.index.get_level_values("seed"))
        return over_seeds(values - first.to_numpy(), ["line"])


def over_seeds(values: Table, by: Sequence[str]) -> Table:
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


def _headlines(table: Table) -> Table:
    headline = table.index.get_level_values("rank") == 0
    return table[headline].droplevel(["rank", "model"])


def compare(
    groups: Sequence[Group],
    budgets: Mapping[str, Sequence[float]] | None = None,
    unlike: bool = True,
) -> Comparison:
    """Compares groups of runs, also of runs that have not ended.

    Args:
      groups: as `read_groups` returned them.
      budgets: costs by axis at which to compare accuracies, in units of the records'
        columns, such as `{"gbit": [0.1, 0.4]}`; other axes have default budgets.
      unlike: whether to compare runs on other data, another partition, another table of
        devices or another metric than the first, which are then marked everywhere.

    Returns:
      The comparison.

    Raises:
      ValueError: an axis does not exist, a budget is not positive, or groups are
        unlike.
    """
    budgets, labels, reasons = budgets or {}, make_labels(groups), unlikeness(groups)
    groups = [
        group._replace(
            label=label + apart(group) + f" {MARK}" * bool(why),
            unlike=why,
            progress=list(map(costs.progress, group.runs)),
        )
        for group, label, why in zip(groups, labels, reasons, strict=True)
    ]
    axes = costs.axes([table for group in groups for table in group.progress])
    for name, values in budgets.items():
        check("budget", name, [axis.name for axis in axes])
        for value in values:
            check(f"budget {name}", value, "(0, inf)")
    if not unlike:
        refuse_unlike(groups)
    chosen, common = {}, {}
    for axis in axes:
        ends = _ends(groups, axis)
        usual = costs.default_budgets(ends, whole=axis.name == "rounds")
        chosen[axis.name] = sorted(budgets.get(axis.name) or usual)
        limit = min(ends, default=0.0) * (1 + costs.SLACK)
        reached = [budget for budget in chosen[axis.name] if budget <= limit]
        common[axis.name] = max(reached, default=None)
    return _measure(Comparison(groups, axes, chosen, common))


def sort_groups(groups: Sequence[Group]) -> list[Group]:
    """Sorts groups by the validation accuracy after the last round, the best first.

    Groups of runs without one come last and stay in their order.

    Args:
      groups: as `read_groups` returned them.
    """

    def score(group: Group) -> np.floating:
        lasts = [last_eval(run) for run in group.runs]
        known = [(sign(last), last.get(VALIDATION)) for last in lasts]
        return np.mean([-math.inf if v is None else s * v for s, v in known])

    return sorted(groups, key=score, reverse=True)


def _measure(comparison: Comparison) -> Comparison:
    """Fills in the quantities of each line, model and seed, and their means."""
    import pandas as pd

    rows, at_cost = [], []
    names = [axis.name for axis in comparison.axes]
    for line, group in enumerate(comparison.groups):
        at = {}
        for axis in comparison.axes:
            curves = _curves(group, axis)
            for budget, name in comparison.at(axis).items():
                at[name] = [costs.accuracy_at(curve, budget) for curve in curves]
            if name := comparison.area(axis):
                budget = comparison.common[axis.name]
                at[name] = [costs.mean_accuracy(curve, budget) for curve in curves]
        at_cost = list(at)
        lasts = [last_eval(run) for run in group.runs]
        models = dict.fromkeys(name for last in lasts for name in last["models"])
        for rank, model in enumerate(models or [MISSING]):
            for i, (run, last) in enumerate(zip(group.runs, lasts, strict=True)):
                row = dict(zip(_INDEX, (line, rank, model, seed_of(run)), strict=True))
                of_model = last["models"].get(model, {})
                row |= {
                    "accuracy": accuracy(last, model),
                    "best": accuracy(best_eval(run, model), model),
                    "density": of_model.get("density"),
                    "pflop_dense": sum(r["flops_dense"] for r in run.train) / 1e15,
                    **group.progress[i].reindex(columns=names).max(),
                    **{n: of_model.get(n) for n in _APART},
                }
                if rank == 0:
                    clients = last.get("client_accuracy", {})
                    row |= {f"client_{n}": clients.get(n) for n in ("p10", "median")}
                    row |= {name: values[i] for name, values in at.items()}
                    row[VALIDATION] = last.get(VALIDATION)
                rows.append(row)
    columns = dict.fromkeys([*_INDEX, *_COLUMNS, *names, *at_cost, *_APART])
    seeds = pd.DataFrame(rows, columns=[*columns]).set_index(_INDEX).astype(float)
    seeds = seeds.where(np.isfinite(seeds)).fillna({"rounds": 0.0})
    unknown = [n for n in (VALIDATION, *_APART) if np.isnan(seeds[n].to_numpy()).all()]
    seeds = seeds.drop(columns=unknown)
    found = over_seeds(seeds, _INDEX[:3])
    sizes = seeds.groupby(level=_INDEX[:3], sort=False).size()
    for name in at_cost:  # of all seeds or of none
        lacking = found[name, "count"] < sizes
        found.loc[lacking, [(name, s) for s in ("mean", "std", "ci95")]] = np.nan
    return comparison._replace(seeds=seeds, models=found)


def _curves(group: Group, axis: Axis) -> list:
    """Returns the accuracy of each run over a cost."""
    return [costs.curve(table, axis.name) for table in group.progress]


def _ends(groups: Sequence[Group], axis: Axis) -> list[float]:
    """Returns the cost of each run at its last evaluation, if it has cost anything.

    Runs that have not ended count only if none has.
    """
    ended = [e for e in groups if all(run.summary for run in e.runs)]
    curves = [curve for e in ended or groups for curve in _curves(e, axis)]
    return [curve.index.max() for curve in curves if curve.index.max() > 0]
