"""Writes a comparison: one page that needs no network, tables and figures as files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.charge import charge_rows
from sparsefl_jax.report.comparison import citations, figures, likeness, table
from sparsefl_jax.report.comparison.differences import differing, settings, shared
from sparsefl_jax.report.comparison.evaluations import chosen_by
from sparsefl_jax.report.comparison.measures import MARK, Comparison
from sparsefl_jax.report.load import finite
from sparsefl_jax.report.render import data_uri, pictures, render
from sparsefl_jax.report.table import made_with
from sparsefl_jax.system.files import write_text

_DOWNLOADS = {
    "comparison.csv": ("text/csv", "All numbers (CSV)"),
    "comparison.tex": ("text/x-tex", "Table (LaTeX)"),
    "methods.bib": ("text/x-bibtex", "Papers (BibTeX)"),
}
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


def write_comparison(
    comparison: Comparison,
    out: str | Path,
    *,
    title: str = "",
    status: Sequence[tuple[str, str]] = (),
) -> list[Path]:
    """Writes a comparison as one page, with tables and figures.

    Args:
      comparison: as `compare` made it of the groups that `read_groups` returned.
      out: the folder of the files; created if absent.
      title: of the page; '' for one from the data set.
      status: `(point, state)` rows for the top of the page; a state is 'done',
        'running', 'missing' or 'failed: REASON'.

    Returns:
      The files written: `report.html`, `comparison.csv`, `comparison.tex`,
      `methods.bib`, and `figures/*.svg`.

    Raises:
      ValueError: `out` holds a run, whose page would be lost.
    """
    out = Path(out)
    if (out / "metrics.jsonl").exists():
        raise UserError(f"out={str(out)!r} holds a run, expected another folder")
    (out / "figures").mkdir(parents=True, exist_ok=True)
    groups = [entry.group for entry in comparison.entries]
    cited, drawn = citations.papers(groups), figures.draw(comparison, out / "figures")
    files = {
        "comparison.csv": table.comparison_csv(comparison),
        "comparison.tex": table.latex_table(comparison),
        "methods.bib": "\n\n".join(paper.entry for paper in cited) + "\n",
    }
    content = {
        "title": title,
        "status": status,
        "states": Counter(state.partition(":")[0] for _, state in status),
        "downloads": [
            (name, what, data_uri(kind, files[name].encode()))
            for name, (kind, what) in _DOWNLOADS.items()
        ],
        "papers": cited,
        "bibtex": files["methods.bib"],
        "drawn": pictures(drawn.values()),
        **(_content(comparison) if groups else {}),
    }
    write_text(out / "report.html", render("comparison.html", **content))
    for name, text in files.items():
        write_text(out / name, text)
    return [out / "report.html", *(out / name for name in files), *drawn.values()]


def _content(comparison: Comparison) -> dict:
    """Returns what a page shows of a comparison that has lines."""
    entries = comparison.entries
    groups = [entry.group for entry in entries]
    runs = [run for group in groups for run in group.runs]
    chosen, every = settings(groups), differing(groups)
    rest = {name: values for name, values in every.items() if name not in chosen}
    configs = [(entry.label, entry.group.runs[0].config) for entry in entries]
    pilots = [(k, c) for k, c in configs if (c.get("fit") or {}).get("by") == "pilot"]
    return {
        "lines": list(zip(entries, figures.looks(groups), strict=True)),
        "mark": MARK,
        "pilots": pilots,
        "chosen_by": sorted(set(map(chosen_by, runs))),
        "seeds": sorted({len(group.runs) for group in groups}),
        "results": _results(comparison),
        "evaluated": any(run.evals for run in runs),
        "axes": [
            (axis, _percents(comparison, comparison.titles(axis)))
            for axis in comparison.axes
        ],
        "common": comparison.common,
        "differences": _differences(comparison),
        "overview": _overview(comparison),
        "settings": _fields(comparison, chosen),
        "arguments": _fields(comparison, rest),
        "shared": list(shared(groups).items()),
        "assumed": [f"{e.label}: {x}" for e in entries for x in table.assumed_by(e)],
        "charged": _charges(comparison),
        "made_with": list(dict.fromkeys(made_with(run.summary) for run in runs)),
    }


def _results(comparison: Comparison) -> list[Column]:
    """Returns the columns of accuracies, densities and total costs."""
    found = comparison.lines
    counts = [len(entry.group.runs) for entry in comparison.entries]
    titles = {"accuracy": "last", "best": "best", "density": "density reached"}
    columns = [Column("seeds", "", [Cell(str(n), value=n) for n in counts])]
    columns += _percents(comparison, titles)
    for axis in comparison.axes:
        totals = found[axis.name, "mean"]
        cells = [Cell(axis.text(x), value=x if finite(x) else None) for x in totals]
        columns.append(Column(axis.title, "", cells))
    clients = {f"client_{n}": f"clients {n}" for n in ("median", "p10")}
    known = {k: v for k, v in clients.items() if np.any(found[k, "count"])}
    return columns + _percents(comparison, known)


def _differences(comparison: Comparison) -> list[Column]:
    """Returns the columns of differences from the first line, paired by seed."""
    found = comparison.gaps.iloc[1:]
    pairs = [Cell(f"{n:g}", value=float(n)) for n in found["accuracy", "count"]]
    at = comparison.titles(comparison.axes[0])
    titles = {"accuracy": "last", "best": "best"} | at
    return [Column("pairs", "", pairs), *_percents(comparison, titles, found)]


def _fields(comparison: Comparison, values: dict[str, list[str]]) -> list[list[str]]:
    """Returns a head, and the values of configuration fields for each line."""
    labels = [entry.label for entry in comparison.entries]
    rows = [["method", *values], *map(list, zip(labels, *values.values(), strict=True))]
    return rows if values else []


def _charges(comparison: Comparison) -> list[list[str]]:
    """Returns a head, and what the ledger charged each line's first seed."""
    rows = []
    for entry in comparison.entries:
        head, *charged = charge_rows(entry.group.runs[0])
        rows += [["method", *head]] * (not rows)
        rows += [[entry.label, *row] for row in charged]
    return rows


def _percents(
    comparison: Comparison, titles: Mapping[str, str], gaps: Any = None
) -> list[Column]:
    """Returns columns of shares in percent with half their intervals.

    The largest is marked, but of densities, which have no interval either.

    Args:
      comparison: as `compare` made it.
      titles: of the columns, by quantity.
      gaps: differences from the first line to show instead, in percentage points; an
        asterisk says that the interval excludes 0.
    """
    columns, found = [], comparison.lines if gaps is None else gaps
    for name, title in titles.items():
        cells, means = [], found[name, "mean"]
        ranked = gaps is None and name != "density" and means.count() > 1
        for line, of in found[name].iterrows():
            text, _, half = table.percent(of).partition(" ")
            if text == MISSING:
                text = comparison.notes.get((line, name), MISSING)
                cells.append(Cell(MISSING if gaps is not None else text))
                continue
            if gaps is not None:
                text = f"{100 * of['mean']:+.1f}".replace("-", "\N{MINUS SIGN}")
                half += "*" * bool(abs(of["mean"]) > of["ci95"])
            half = "" if name == "density" else half
            best = ranked and of["mean"] == means.max()
            cells.append(Cell(text, half, of["mean"], best))
        columns.append(Column(title, "%" if gaps is None else "points", cells))
    return columns


def _overview(comparison: Comparison) -> dict[str, str]:
    """Returns what the runs share, by name; what differs is left out."""
    groups = [entry.group for entry in comparison.entries]
    same, differ = shared(groups), differing(groups)
    pairs = {title: same.get(field, MISSING) for title, field in _SHARED.items()}
    for title, section in _SECTIONS.items():
        head = f"{section}."
        if not any(name.startswith(head) for name in differ):
            pairs[title] = ", ".join(
                value if name == f"{head}name" else f"{name[len(head) :]} {value}"
                for name, value in same.items()
                if name.startswith(head) and value not in (MISSING, "0", "False")
            )
    unlike = {word for entry in comparison.entries for word in entry.unlike.split(", ")}
    pairs["metric"] = likeness.metric(groups[0])
    return {
        title: value
        for title, value in pairs.items()
        if value not in ("", MISSING) and title not in unlike
    }
