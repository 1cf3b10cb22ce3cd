"""Writes a comparison: one page that needs no network, tables and figures as files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparsefl_jax.report.comparison import figures, sections
from sparsefl_jax.report.comparison.citations import papers
from sparsefl_jax.report.comparison.differences import differing, settings, shared
from sparsefl_jax.report.comparison.evaluations import chosen_by
from sparsefl_jax.report.comparison.groups import read_groups
from sparsefl_jax.report.comparison.line_styles import looks
from sparsefl_jax.report.comparison.measures import MARK, Comparison, compare
from sparsefl_jax.report.comparison.table import (
    assumed_by,
    comparison_csv,
    latex_table,
)
from sparsefl_jax.report.render import data_uri, render
from sparsefl_jax.report.table import made_with
from sparsefl_jax.system.files import write_text

_DOWNLOADS = {
    "comparison.csv": ("text/csv", "All numbers (CSV)"),
    "comparison.tex": ("text/x-tex", "Table (LaTeX)"),
    "methods.bib": ("text/x-bibtex", "Papers (BibTeX)"),
}


def write_comparison(
    run_dirs: Sequence[str | Path],
    out: str | Path,
    *,
    labels: Sequence[str] | None = None,
    unlike: bool = False,
    budgets: Mapping[str, Sequence[float]] | None = None,
    title: str = "",
    status: Sequence[tuple[str, str]] = (),
) -> list[Path]:
    """Compares runs on one page, also of runs that have not ended.

    Args:
      run_dirs: folders of runs or of seeds, see `read_groups`.
      out: the folder of the files; created if absent.
      labels: one for each of `run_dirs`; None to label runs by what differs. Folders
        that differ only in the seed are one line with the label of the first.
      unlike: whether to compare runs on other data, another partition or another
        metric than the first, which are then marked everywhere.
      budgets: costs by axis at which to compare accuracies, such as
        `{"gbit": [0.1, 0.4]}`; None and other axes take theirs from the runs.
      title: of the page; '' for one from the data set.
      status: `(point, state)` rows for the top of the page; a state is 'done',
        'running', 'missing' or 'failed: REASON'.

    Returns:
      The files written: `report.html`, `comparison.csv`, `comparison.tex`,
      `methods.bib`, and `figures/*.svg`.

    Raises:
      ValueError: in one line: a folder cannot be read, runs are unlike, or an argument
        does not fit the runs.

    Example:
      >>> write_comparison(["no/such/run"], "out")
      Traceback (most recent call last):
      ValueError: run_dir='no/such/run' expected a folder with metrics.jsonl or seed_*/.
    """
    comparison = compare(read_groups(run_dirs, labels), budgets, unlike)
    return write_comparison_page(comparison, Path(out), title=title, status=status)


def write_comparison_page(
    comparison: Comparison,
    out: Path,
    *,
    title: str = "",
    status: Sequence[tuple[str, str]] = (),
) -> list[Path]:
    """Writes the files of a comparison, see `write_comparison`.

    Raises:
      ValueError: `out` holds a run, whose page would be lost.
    """
    if (out / "metrics.jsonl").exists():
        raise ValueError(f"out={str(out)!r} holds a run, expected another folder")
    (out / "figures").mkdir(parents=True, exist_ok=True)
    groups = [entry.group for entry in comparison.entries]
    cited, drawn = papers(groups), figures.draw(comparison, out / "figures")
    files = {
        "comparison.csv": comparison_csv(groups, comparison),
        "comparison.tex": latex_table(comparison),
        "methods.bib": "\n\n".join(paper.entry for paper in cited) + "\n",
    }
    drawings = {
        name: data_uri("image/svg+xml", path.read_bytes())
        for name, path in drawn.items()
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
        "drawn": drawings,
        **(_content(comparison, drawings) if groups else {}),
    }
    write_text(out / "report.html", render("comparison.html", **content))
    for name, text in files.items():
        write_text(out / name, text)
    return [out / "report.html", *(out / name for name in files), *drawn.values()]


def _content(comparison: Comparison, drawn: Mapping[str, str]) -> dict:
    """Returns what a page shows of a comparison that has lines."""
    entries = comparison.entries
    groups = [entry.group for entry in entries]
    runs = [run for group in groups for run in group.runs]
    chosen, every = settings(groups), differing(groups)
    rest = {name: values for name, values in every.items() if name not in chosen}
    configs = [(entry.label, entry.group.runs[0].config) for entry in entries]
    pilots = [(k, c) for k, c in configs if (c.get("fit") or {}).get("by") == "pilot"]
    return {
        "lines": list(zip(entries, looks(groups), strict=True)),
        "mark": MARK,
        "pilots": pilots,
        "chosen_by": sorted(set(map(chosen_by, runs))),
        "seeds": sorted({len(group.runs) for group in groups}),
        "results": sections.results(comparison),
        "evaluated": any(run.evals for run in runs),
        "axes": [
            {
                "title": axis.title,
                "curves": drawn.get(f"accuracy_by_{axis.name}"),
                "front": drawn.get(f"front_{axis.name}"),
                "at": sections.budgets(comparison, axis),
                "common": axis.budget(budget) if budget is not None else "",
            }
            for axis in comparison.axes
            for budget in [comparison.common[axis.name]]
        ],
        "differences": sections.differences(comparison),
        "overview": sections.overview(comparison),
        "settings": sections.fields(comparison, chosen),
        "arguments": sections.fields(comparison, rest),
        "shared": list(shared(groups).items()),
        "assumed": [f"{e.label}: {line}" for e in entries for line in assumed_by(e)],
        "charged": sections.charges(comparison),
        "made_with": list(
            dict.fromkeys(filter(None, (made_with(run.summary) for run in runs)))
        ),
    }
