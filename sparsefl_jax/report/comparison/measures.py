"""Measures groups of runs by accuracy, costs and accuracy at equal cost."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.core.validate import in_range, one_of
from sparsefl_jax.report.comparison import costs, evaluations, likeness
from sparsefl_jax.report.comparison.costs import Axis, Curve
from sparsefl_jax.report.comparison.differences import make_labels
from sparsefl_jax.report.comparison.equal_cost import (
    SLACK,
    accuracy_at,
    default_budgets,
    mean_accuracy,
)
from sparsefl_jax.report.comparison.groups import Group
from sparsefl_jax.report.comparison.intervals import Interval, interval
from sparsefl_jax.report.lines import finite
from sparsefl_jax.report.load import Run

MARK = "†"  # of a group that is unlike the first one
BySeed = dict[Hashable, float | None]


class Entry(NamedTuple):
    """A group of runs in a comparison."""

    group: Group
    label: str  # unique; ends in MARK if the group is unlike the first
    unlike: str  # in what, such as "partition, metric"; '' if in nothing
    curves: dict[str, dict[Hashable, Curve]]  # by axis and seed


class Comparison(NamedTuple):
    """Groups of runs with the axes and budgets that they share."""

    entries: list[Entry]
    axes: list[Axis]
    budgets: dict[str, list[float]]  # by axis, increasing; [] if there is none

    def common_budget(self, axis: Axis) -> float | None:
        """Returns the largest budget that all runs that cost anything have reached."""
        ends = _ends(self.entries, axis)
        limit = min(ends, default=0.0) * (1 + SLACK)
        reached = [b for b in self.budgets[axis.name] if b <= limit]
        return max(reached, default=None)


class AtBudget(NamedTuple):
    """The accuracy of a group at a budget."""

    accuracy: Interval  # over seeds; of no seed if a run did not reach the budget
    note: str  # why there is none, such as "ended at 310 Mbit"


def compare(
    groups: Sequence[Group],
    labels: Sequence[str] | None = None,
    budgets: Mapping[str, Sequence[float]] | None = None,
    unlike: bool = True,
) -> Comparison:
    """Collects what a comparison shows.

    Args:
      groups: as `read_groups` returned them.
      labels: one for each group, all different; None to label them by what differs.
      budgets: costs by axis, in units of the records' columns, such as
        `{"gbit": [0.1, 0.4]}`; other axes have default budgets.
      unlike: whether groups may be unlike the first, see `likeness.unlike`.

    Returns:
      The comparison.

    Raises:
      ValueError: an axis does not exist, a budget is not positive, or the labels are
        not as many as the groups, or not unique, or groups are unlike.
    """
    axes = costs.axes([run for group in groups for run in group.runs])
    for name, values in (budgets or {}).items():
        one_of("budget", name, [axis.name for axis in axes])
        for value in values:
            in_range(f"budget {name}", value, "(0, inf)")
    if labels is None:
        labels = make_labels(groups)
    elif len(labels) != len(groups) or len(set(labels)) < len(labels):
        raise ValueError(
            f"labels={list(labels)!r}, expected {len(groups)} different texts, one for "
            "each group of runs"
        )
    if not unlike:
        likeness.refuse_unlike(groups, labels)
    reasons = likeness.unlike(groups)
    named = [label + likeness.apart(g) for label, g in zip(labels, groups, strict=True)]
    entries = [
        Entry(
            group,
            f"{label} {MARK}" if reason else label,
            reason,
            {
                axis.name: {
                    evaluations.seed_of(run): costs.curve(run, axis.name)
                    for run in group.runs
                }
                for axis in axes
            },
        )
        for group, label, reason in zip(groups, named, reasons, strict=True)
    ]
    chosen = {
        axis.name: sorted(
            (budgets or {}).get(axis.name)
            or default_budgets(_ends(entries, axis), whole=axis.name == "rounds")
        )
        for axis in axes
    }
    return Comparison(entries, axes, chosen)


def at_budget(entry: Entry, axis: Axis, budget: float) -> AtBudget:
    """Returns the accuracy of a group's runs at a budget, if all of them reached it."""
    found = of_all(accuracies_at(entry, axis, budget))
    if found.mean is not None:
        return AtBudget(found, "")
    curves = [c for c in entry.curves[axis.name].values() if len(c.cost)]
    ends = [float(curve.cost[-1]) for curve in curves if curve.cost[-1] < budget]
    note = MISSING
    if ends:
        running = any(map(evaluations.unfinished, entry.group.runs))
        note = f"{'so far' if running else 'ended'} at {axis.text(min(ends))}"
    elif curves:
        starts = [float(curve.cost[0]) for curve in curves]
        note = f"begins at {axis.text(max(starts))}"
    return AtBudget(found, note)


def accuracies_at(entry: Entry, axis: Axis, budget: float) -> BySeed:
    """Returns each seed's accuracy at a budget; None where it did not reach it."""
    curves = entry.curves[axis.name]
    return {seed: accuracy_at(curves[seed], budget) for seed in curves}


def areas(entry: Entry, axis: Axis, budget: float) -> BySeed:
    """Returns each seed's mean accuracy over [0, budget], see `mean_accuracy`."""
    curves = entry.curves[axis.name]
    return {seed: mean_accuracy(curves[seed], budget) for seed in curves}


def of_all(values: BySeed) -> Interval:
    """Returns the interval over seeds, that of none if a seed has no value."""
    found = list(values.values())
    return interval(found if all(map(finite, found)) else [])


def by_seed(entry: Entry, measure: Callable[[Run], float | None]) -> BySeed:
    """Returns a quantity of each of a group's runs."""
    return {evaluations.seed_of(run): measure(run) for run in entry.group.runs}


def over_seeds(entry: Entry, measure: Callable[[Run], float | None]) -> Interval:
    """Returns the interval of a quantity over a group's runs."""
    return interval([measure(run) for run in entry.group.runs])


def total(entry: Entry, name: str) -> Interval:
    """Returns the interval of a group's whole cost on an axis."""
    return over_seeds(entry, lambda run: costs.total(run, name))


def models(entry: Entry) -> list[str]:
    """Returns the models that a group's runs deploy last, the headline first."""
    last = [evaluations.last_eval(run)["models"] for run in entry.group.runs]
    return list(dict.fromkeys(name for deployed in last for name in deployed))


def last_accuracy(run: Run, model: str | None = None) -> float | None:
    """Returns a model's accuracy in the last evaluation; by default the headline."""
    return evaluations.accuracy(evaluations.last_eval(run), model)


def best_accuracy(run: Run, model: str | None = None) -> float | None:
    """Returns the accuracy of the best round, see `best_eval`."""
    best = evaluations.best_eval(run, model)
    return evaluations.accuracy(best, model) if best else None


def density(run: Run, model: str | None = None) -> float | None:
    """Returns the density of a model that was deployed last; by default the first."""
    models = evaluations.last_eval(run)["models"]
    return models.get(model or next(iter(models), ""), {}).get("density")


def of_clients(run: Run, name: str) -> float | None:
    """Returns a quantile of the clients' accuracies in the last evaluation."""
    return evaluations.last_eval(run).get("client_accuracy", {}).get(name)


def _ends(entries: Sequence[Entry], axis: Axis) -> list[float]:
    """Returns what each run had cost at its last evaluation, if anything.

    Runs that have not ended count only if none has.
    """
    ended = [e for e in entries if not any(map(evaluations.unfinished, e.group.runs))]
    return [
        end
        for entry in ended or entries
        for curve in entry.curves[axis.name].values()
        if len(curve.cost) and (end := float(curve.cost[-1])) > 0
    ]
