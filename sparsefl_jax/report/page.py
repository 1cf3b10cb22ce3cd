"""Writes the page of a run, and that of a comparison with its tables and figures.

A page, `report.html`, needs no network; that of a run needs no script either.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.formats import format_percent, format_seconds, format_si, tally
from sparsefl_jax.data import partition_statistics
from sparsefl_jax.report import comparison_tables as texts
from sparsefl_jax.report import costs, density, tables
from sparsefl_jax.report.comparison import MARK, VALIDATION, Comparison
from sparsefl_jax.report.comparison_figures import draw, looks
from sparsefl_jax.report.comparison_tables import percent
from sparsefl_jax.report.differences import compare_fields
from sparsefl_jax.report.groups import Group, metric
from sparsefl_jax.report.load import Run, is_finite, read_run
from sparsefl_jax.system.files import write_text


class Column(NamedTuple):
    """A column of a table that can be sorted, with a text and a value for each line."""

    title: str  # with the unit
    texts: Sequence[str]
    values: Sequence[float]  # to sort by; NaN comes last
    best: Sequence[int] = ()  # the lines to mark


def write_page(run_dir: str | Path) -> Path:
    """Writes `report.html` into a run's folder: plots, tables, configuration.

    The page shows the plots that `plot_run` has drawn. For a run that has not ended, it
    shows the results so far. Rounds are counted over all stages.

    Args:
      run_dir: the folder of a run, see `read_run`.

    Returns:
      The page written.

    Raises:
      ValueError: the folder cannot be read, see `read_run`.

    Example:
      >>> write_page("no/such/run")
      Traceback (most recent call last):
      sparsefl_jax.UserError: run_dir='no/such/run' expected a folder with
      metrics.jsonl.
    """
    run = read_run(run_dir)
    split = run.partition
    names = {} if split is None else run.summary.get("names", {})
    axes = {k: axis for axis, k in enumerate(("classes", "clients")) if k in names}
    flops = {f"FLOPs, {kind}": column for kind, column in tables.FLOPS.items()}
    page = _render(
        "run.html",
        run=run,
        name=run.path.resolve().name,
        heading=tables.heading(run.summary),
        plots=_pictures((run.path / "plots").glob("*.svg")),
        # Densities are in a table of their own.
        accuracy=[row[:-1] for row in tables.accuracy_rows(run.summary)],
        stages=tables.stage_rows(run.summary, "stage", tables.BITS | flops),
        measure=costs.measure_of(run),
        classes=_class_rows(run),
        split=None if split is None else partition_statistics(split),
        named={k: tally(names[k], split.sum(axis), 60) for k, axis in axes.items()},
        fields=flatten(run.config).items(),
        made_with=[tables.made_with(run.summary)],
    )
    write_text(run.path / "report.html", page)
    return run.path / "report.html"


def _class_rows(run: Run) -> list[Sequence[str]]:
    """Returns a head, and the accuracy of each class after the last round."""
    found = costs.last_eval(run).get("accuracy_by_class", [])
    names = run.summary.get("names", {}).get("classes", range(len(found)))
    pairs = zip(names, found, strict=False)
    rows = [(str(name), format_percent(share)) for name, share in pairs]
    return [("class", "accuracy"), *rows] if rows else []


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
    groups = comparison.groups
    drawn = draw(comparison, out / "figures")
    files = {
        "comparison.csv": texts.comparison_csv(comparison),
        "comparison.tex": texts.latex_table(comparison),
        "methods.bib": "\n\n".join(texts.papers(groups)) + "\n",
    }
    files["report.html"] = _render(
        "comparison.html",
        comparison=comparison,
        title=title,
        status=status,
        states=Counter(state.partition(":")[0] for _, state in status),
        papers=files["methods.bib"],
        drawn=_pictures(drawn),
        **(_content(comparison) if groups else {}),
    )
    for name, text in files.items():
        write_text(out / name, text)
    return [*(out / name for name in files), *drawn]


def _content(comparison: Comparison) -> dict:
    """Returns what a page shows of a comparison that has lines."""
    groups = comparison.groups
    runs = [run for group in groups for run in group.runs]
    fields = compare_fields(groups)
    follow = {n: of for n, of in fields.differing.items() if n not in fields.settings}
    return {
        "lines": list(zip(groups, looks(groups), strict=True)),
        "chosen_by": sorted(set(map(costs.chosen_by, runs))),
        "seeds": sorted({len(group.runs) for group in groups}),
        "results": _results(comparison),
        "axes": [
            (x, _shares(comparison, comparison.titles(x))) for x in comparison.axes
        ],
        "differences": _differences(comparison),
        "metrics": sorted(set(map(metric, groups))),
        "settings": _rows(groups, fields.settings),
        "arguments": _rows(groups, follow),
        "shared": fields.shared,
        "assumed": [f"{e.label}: {x}" for e in groups for x in texts.assumed_by(e)],
        "made_with": list(dict.fromkeys(tables.made_with(run.summary) for run in runs)),
    }


def _results(comparison: Comparison) -> list[Column]:
    """Returns the columns of accuracies, densities and total costs."""
    found = comparison.lines
    counts = [len(group.runs) for group in comparison.groups]
    titles = {"accuracy": "last", "best": "best", "density": "density reached"}
    if comparison.chosen is not None:
        titles = {VALIDATION: "validation"} | titles
    columns = [Column("seeds", list(map(str, counts)), counts)]
    columns += _shares(comparison, titles)
    for axis in comparison.axes:
        totals = list(found[axis.name, "mean"])
        columns.append(Column(axis.title, list(map(axis.text, totals)), totals))
    clients = {f"client_{n}": f"clients {n}" for n in ("median", "p10")}
    clients |= {f"{n}_accuracy": f"{n} clients" for n in ("seen", "unseen")}
    known = {k: v for k, v in clients.items() if k in found and found[k, "count"].any()}
    return columns + _shares(comparison, known)


def _shares(comparison: Comparison, titles: Mapping[str, str]) -> list[Column]:
    """Returns columns of shares in percent or other values, by quantity and title.

    The line that validation chooses is marked, without validation the best value; none
    of densities, which have no interval either.
    """
    columns = []
    for name, title in titles.items():
        found, best = comparison.lines[name], ()
        if name == "density":
            found = found.assign(ci95=np.nan)
        elif comparison.chosen is not None:
            best = (comparison.chosen,)
        elif found["mean"].count() > 1:
            values = comparison.sign * found["mean"]
            best = np.flatnonzero(values == values.max())
        measure = "accuracy" if name == "density" else comparison.measure
        texts = [percent(of, measure=measure) for _, of in found.iterrows()]
        title += " %" * (measure == "accuracy")
        columns.append(Column(title, texts, list(found["mean"]), best))
    return columns


def _differences(comparison: Comparison) -> list[Column]:
    """Returns the columns of differences from the first line, paired by seed."""
    found = comparison.gaps.iloc[1:]
    pairs = list(found["accuracy", "count"])
    columns = [Column("pairs", [f"{n:g}" for n in pairs], pairs)]
    at = comparison.titles(comparison.axes[0])
    for name, title in ({"accuracy": "last", "best": "best"} | at).items():
        texts = [_points(of, comparison.measure) for _, of in found[name].iterrows()]
        columns.append(Column(f"{title} points", texts, list(found[name, "mean"])))
    return columns


def _points(gap: Mapping[str, float], measure: str) -> str:
    """Formats a difference; an asterisk says that its interval excludes 0."""
    return percent(gap, "+", measure) + "*" * bool(abs(gap["mean"]) > gap["ci95"])


def _rows(groups: Sequence[Group], values: dict[str, list[str]]) -> list[Sequence]:
    """Returns a head, and the values of configuration fields for each line."""
    labels = [group.label for group in groups]
    rows = [("method", *values), *zip(labels, *values.values(), strict=True)]
    return rows if values else []


def _render(template: str, **content) -> str:
    """Returns a page as HTML; texts are escaped.

    Args:
      template: the name of a file in `templates`.
      content: what the template shows, beside what it asks of the modules it is given.
    """
    from jinja2 import Environment, PackageLoader

    pages = Environment(
        loader=PackageLoader("sparsefl_jax.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"percent": format_percent, "si": format_si, "seconds": format_seconds}
    pages.filters.update(filters, value=tables.format_value)
    pages.tests["finite"] = is_finite
    pages.globals.update(costs=costs, density=density, tables=tables, mark=MARK)
    return pages.get_template(template).render(content)


def _pictures(paths: Iterable[Path]) -> dict[str, str]:
    """Returns links to the content of SVG files, by the names of the files."""
    head = "data:image/svg+xml;base64,"
    return {p.stem: head + base64.b64encode(p.read_bytes()).decode() for p in paths}
