"""Builds the tables of a comparison's page."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.charge import charge_rows
from sparsefl_jax.report.comparison import evaluations, likeness
from sparsefl_jax.report.comparison.costs import Axis
from sparsefl_jax.report.comparison.differences import differing, shared
from sparsefl_jax.report.comparison.line_styles import looks
from sparsefl_jax.report.comparison.measures import Comparison
from sparsefl_jax.report.comparison.table import percent
from sparsefl_jax.report.lines import finite


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
    words: bool = False


def lines(comparison: Comparison) -> list[dict[str, Any]]:
    """Returns how each line of tables and figures is called, and how it looks."""
    entries = comparison.entries
    return [
        {
            "label": entry.label,
            "name": entry.group.name,
            "running": any(map(evaluations.unfinished, entry.group.runs)),
            "color": look.color,
            "stroke": "solid" if look.linestyle == "-" else "dashed",
        }
        for entry, look in zip(
            entries, looks([entry.group for entry in entries]), strict=True
        )
    ]


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
        if found[f"client_{name}", "count"].any():
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


def words(values: dict[str, list[str]]) -> list[Column]:
    """Returns the columns of configuration fields, with a value for each line."""
    return [Column(name, "", list(map(Cell, of)), True) for name, of in values.items()]


def charges(comparison: Comparison) -> list[list[str]]:
    """Returns a head, and what the ledger charged each line's first seed."""
    rows = []
    for entry in comparison.entries:
        head, *charged = charge_rows(entry.group.runs[0])
        rows = rows or [["method", *head]]
        rows += [[entry.label, *row] for row in charged]
    return rows


def states(status: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    """Returns the points of a study with their states, and a count of each state."""
    kinds = [state.partition(":")[0].strip() for _, state in status]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    return status and {
        "points": status,
        "counts": f"{len(status)} points: {counts}",
        "done": set(kinds) == {"done"},
    }


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


def overview(comparison: Comparison) -> list[tuple[str, str]]:
    """Returns what the runs share, in the words of an experiment's description."""
    groups = [entry.group for entry in comparison.entries]
    same, differ = shared(groups), differing(groups)
    unlike = " ".join(entry.unlike for entry in comparison.entries)
    runs = groups[0].runs

    def plain(name: str) -> str:
        return "differs" if name in differ else same.get(name, MISSING)

    def named(section: str) -> str:
        if any(name.startswith(f"{section}.") for name in differ):
            return "differs"
        fields = {
            name.partition(".")[2]: value
            for name, value in same.items()
            if name.startswith(f"{section}.")
        }
        return _joined([fields.pop("name", MISSING)], fields)

    counts = [plain(name) for name in ("cohort_size", "epochs", "batch_size")]
    a_round = "{} clients, {} epochs, batches of {}".format(*counts)
    a_round = next((word for word in ("differs", MISSING) if word in counts), a_round)
    rate = ("final_learning_rate", "lr_horizon", "lr_delay", "lr_decay")
    prints = {evaluations.seed_of(r): likeness.partition_fingerprint(r) for r in runs}
    partitions = ", ".join(f"{p} (seed {s})" for s, p in prints.items())
    data = ", ".join(dict.fromkeys(map(likeness.data_fingerprint, runs)))
    pairs = {
        "data set": plain("dataset"),
        "data fingerprint": "differs" if "data" in unlike else data,
        "partition": named("partition"),
        "partition fingerprint": "differs" if "partition" in unlike else partitions,
        "clients": plain("num_clients"),
        "devices": plain("system"),
        "a round": a_round,
        "rounds": plain("num_rounds"),
        "network": named("model"),
        "optimizer": named("optimizer"),
        "schedule": _joined([], {n: plain(n) for n in rate}) or "constant rate",
        "metric": "differs" if "metric" in unlike else likeness.metric(groups[0]),
        "seeds": " ".join(map(str, prints)),
    }
    return [(name, value) for name, value in pairs.items() if value != MISSING]


def _joined(first: Iterable[str], fields: dict[str, str]) -> str:
    """Joins words and the fields that are set."""
    unset = (MISSING, "0", "False", "float32")
    rest = [f"{n.replace('_', ' ')} {v}" for n, v in fields.items() if v not in unset]
    return ", ".join([*first, *rest])
