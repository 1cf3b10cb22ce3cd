"""Builds the tables of a comparison's page."""

from typing import Any, NamedTuple

import numpy as np

from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.charge import charge_rows
from sparsefl_jax.report.comparison import likeness
from sparsefl_jax.report.comparison.costs import Axis
from sparsefl_jax.report.comparison.differences import differing, shared
from sparsefl_jax.report.comparison.evaluations import seed_of
from sparsefl_jax.report.comparison.measures import Comparison
from sparsefl_jax.report.comparison.table import percent
from sparsefl_jax.report.lines import finite

_SHARED = {
    "data set": "dataset",
    "clients": "num_clients",
    "clients a round": "cohort_size",
    "devices": "system",
    "rounds": "num_rounds",
    "epochs": "epochs",
    "batch size": "batch_size",
}
_SECTIONS = {"partition": "partition", "network": "model", "optimizer": "optimizer"}


class Cell(NamedTuple):
    """A cell of a table that can be sorted."""

    text: str
    half: str = ""  # of an interval
    value: float | None = None  # to sort by; None comes last
    best: bool = False


class Column(NamedTuple):
    """A column of a table that can be sorted, with a cell for each line."""

    title: str
    unit: str
    cells: list[Cell]


def results(comparison: Comparison) -> list[Column]:
    """Returns the columns of accuracies, densities and total costs."""
    found = comparison.lines
    counts = [len(entry.group.runs) for entry in comparison.entries]
    densities = found["density"].assign(ci95=np.nan)
    columns = [
        Column("seeds", "", [Cell(str(n), value=n) for n in counts]),
        Column("last", "%", _percents(found["accuracy"])),
        Column("best", "%", _percents(found["best"])),
        Column("density reached", "%", _percents(densities, best=False)),
    ]
    for axis in comparison.axes:
        totals = found[axis.name, "mean"]
        cells = [Cell(axis.text(x), value=x if finite(x) else None) for x in totals]
        columns.append(Column(axis.title, "", cells))
    for name in ("median", "p10"):
        if np.any(found[f"client_{name}", "count"]):
            cells = _percents(found[f"client_{name}"])
            columns.append(Column(f"clients {name}", "%", cells))
    return columns


def budgets(comparison: Comparison, axis: Axis) -> list[Column]:
    """Returns the columns of the accuracies at each budget of an axis, and up to it."""
    found, columns = comparison.lines, []
    for budget, name in comparison.at(axis).items():
        cells = _percents(found[name])
        for i, cell in enumerate(cells):
            cells[i] = cell._replace(text=comparison.notes.get((i, name), cell.text))
        columns.append(Column(f"at {axis.budget(budget)}", "%", cells))
    if name := comparison.area(axis):
        title = f"mean up to {axis.budget(comparison.common[axis.name])}"
        columns.append(Column(title, "%", _percents(found[name])))
    return columns


def differences(comparison: Comparison) -> list[Column]:
    """Returns the columns of differences from the first line, paired by seed."""
    found, axis = comparison.gaps.iloc[1:], comparison.axes[0]
    titles = {"accuracy": "last", "best": "best"}
    # The budget at which most lines have an accuracy, the first among them.
    lacking = {
        budget: sum((line, name) in comparison.notes for line in found.index)
        for budget, name in comparison.at(axis).items()
        if (0, name) not in comparison.notes
    }
    if lacking:
        budget = min(lacking, key=lambda budget: lacking[budget])
        titles[comparison.at(axis)[budget]] = f"at {axis.budget(budget)}"
    if name := comparison.area(axis):
        titles[name] = f"mean up to {axis.budget(comparison.common[axis.name])}"
    pairs = found["accuracy", "count"]
    return [Column("pairs", "", [Cell(f"{n:g}", value=float(n)) for n in pairs])] + [
        Column(title, "points", _percents(found[name], "+", best=False))
        for name, title in titles.items()
    ]


def fields(comparison: Comparison, values: dict[str, list[str]]) -> list[list[str]]:
    """Returns a head, and the values of configuration fields for each line."""
    labels = [entry.label for entry in comparison.entries]
    rows = [["method", *values], *map(list, zip(labels, *values.values(), strict=True))]
    return rows if values else []


def charges(comparison: Comparison) -> list[list[str]]:
    """Returns a head, and what the ledger charged each line's first seed."""
    rows = []
    for entry in comparison.entries:
        head, *charged = charge_rows(entry.group.runs[0])
        rows += [["method", *head]] * (not rows)
        rows += [[entry.label, *row] for row in charged]
    return rows


def _percents(found: Any, sign: str = "", best: bool = True) -> list[Cell]:
    """Returns cells of shares in percent with half their intervals.

    Args:
      found: a DataFrame with `mean` and `ci95` of each line.
      sign: "+" for differences, which get an asterisk if their interval excludes 0.
      best: whether the largest of several is marked.
    """
    cells, top = [], found["mean"].max() if found["mean"].count() > 1 else None
    for _, of in found.iterrows():
        text, _, half = percent(of).partition(" ")
        if text == MISSING:
            cells.append(Cell(text))
            continue
        if sign:
            text = f"{100 * of['mean']:+.1f}"
            half += "*" * bool(abs(of["mean"]) > of["ci95"])
        text = text.replace("-", "\N{MINUS SIGN}")
        cells.append(Cell(text, half, of["mean"], best and of["mean"] == top))
    return cells


def overview(comparison: Comparison) -> dict[str, str]:
    """Returns what the runs share, by name; what differs is left out."""
    groups = [entry.group for entry in comparison.entries]
    same, differ = shared(groups), differing(groups)
    runs = groups[0].runs
    data = dict.fromkeys(map(likeness.data_fingerprint, runs))
    splits = [f"{likeness.partition_fingerprint(r)} (seed {seed_of(r)})" for r in runs]
    pairs = {title: same.get(field, MISSING) for title, field in _SHARED.items()}
    for title, section in _SECTIONS.items():
        head = f"{section}."
        if not any(name.startswith(head) for name in differ):
            pairs[title] = ", ".join(
                value if name == f"{head}name" else f"{name[len(head) :]} {value}"
                for name, value in same.items()
                if name.startswith(head) and value not in (MISSING, "0", "False")
            )
    pairs |= {
        "data fingerprint": ", ".join(data),
        "partition fingerprint": ", ".join(splits),
        "metric": likeness.metric(groups[0]),
    }
    unlike = {word for entry in comparison.entries for word in entry.unlike.split(", ")}
    return {
        title: value
        for title, value in pairs.items()
        if value not in ("", MISSING) and title.partition(" fing")[0] not in unlike
    }
