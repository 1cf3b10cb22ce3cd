"""Writes a comparison: one page that needs no network, tables and figures as files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sparsefl_jax.report.comparison import costs, figures, sections
from sparsefl_jax.report.comparison.citations import Paper, papers
from sparsefl_jax.report.comparison.figures import Figure
from sparsefl_jax.report.comparison.groups import Group, read_groups
from sparsefl_jax.report.comparison.latex import latex_table
from sparsefl_jax.report.comparison.measures import MARK, Comparison, compare
from sparsefl_jax.report.comparison.study_folder import runs_of
from sparsefl_jax.report.comparison.table import comparison_csv
from sparsefl_jax.report.load import run_folders
from sparsefl_jax.report.markup import (
    document,
    download,
    facts,
    folded,
    footer,
    note,
    section,
    text,
)
from sparsefl_jax.report.svg import draw, framed, without_tips
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
    groups = read_groups(run_dirs)
    if labels is not None:
        labels = _by_group(labels, run_dirs, groups)
    comparison = compare(groups, labels, budgets, unlike)
    return write_comparison_page(comparison, Path(out), title=title, status=status)


def _by_group(labels: Sequence[str], run_dirs: Sequence, groups: Sequence[Group]):
    """Returns the label of each group's first folder."""
    if len(labels) != len(run_dirs):
        raise ValueError(
            f"labels={list(labels)!r}, expected {len(run_dirs)}, one for each folder"
        )
    named = {}
    for label, run_dir in zip(labels, run_dirs, strict=True):
        for folder in runs_of(run_dir) or run_folders(run_dir):
            named.setdefault(folder.resolve(), label)
    return [named[group.runs[0].path.resolve()] for group in groups]


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
    groups = [entry.group for entry in comparison.entries]
    drawn = _figures(comparison)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    cited = papers(groups)
    files = {
        "comparison.csv": comparison_csv(groups, comparison),
        "comparison.tex": latex_table(comparison),
        "methods.bib": "\n\n".join(paper.entry for paper in cited) + "\n",
    }
    texts = {f.name: draw(f, comparison) for several in drawn.values() for f in several}
    inlined = {
        axis: "".join(framed(*figure[:3], texts[figure.name]) for figure in several)
        for axis, several in drawn.items()
    }
    page = _page(comparison, inlined, files, cited, title, status)
    drawings = {f"figures/{n}.svg": without_tips(t) for n, t in texts.items()}
    files = {"report.html": page, **files, **drawings}
    for name, content in files.items():
        write_text(out / name, content)
    return [out / name for name in files]


def _figures(comparison: Comparison) -> dict[str, list[Figure]]:
    """Returns the figures by axis, and those of densities and clients under ''."""
    if not any(run.evals for e in comparison.entries for run in e.group.runs):
        return {}
    drawn = {
        axis.name: [
            figures.curve_figure(comparison, axis),
            figures.front_figure(comparison, axis),
        ]
        for axis in comparison.axes
    }
    density = figures.density_figure(comparison)
    others = ([density] if density else []) + figures.clients_figures(comparison)
    return drawn | {"": others}


def _page(
    comparison: Comparison,
    drawn: Mapping[str, str],
    files: Mapping[str, str],
    cited: Sequence[Paper],
    title: str,
    status: Sequence[tuple[str, str]],
) -> str:
    there = bool(comparison.entries)
    known = dict(sections.overview(comparison)) if there else {}
    title = title or _title(comparison, known)
    body = [
        f"<header><h1>{text(title)}</h1>\n",
        note(_lede(known), "lede"),
        sections.status_table(status),
        _unlike(comparison),
        _pilots(comparison),
        _downloads(files) if there else "",
        "</header>\n",
    ]
    if there:
        rest = drawn.get("", "")
        body += [
            sections.results(comparison),
            section("At equal cost", _tabs(comparison, drawn)),
            section(
                "Density and clients",
                f'<div class="figures">{rest}</div>' if rest else "",
            ),
            sections.contrasts(comparison),
            section("What the runs share", facts(list(known.items()))),
            sections.configurations(comparison),
            sections.charges(comparison),
            section("Papers of the methods", _cited(cited, files["methods.bib"])),
            footer(
                made_with(r.summary) for e in comparison.entries for r in e.group.runs
            ),
        ]
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    return document(title, "".join(body), script)


def _title(comparison: Comparison, known: Mapping[str, str]) -> str:
    if not comparison.entries:
        return "No results yet"
    data = Path(known.get("data set", "")).stem
    on = f" on {data}" if data and data != "differs" else ""
    first, *others = comparison.entries
    what = f"{1 + len(others)} configurations" if others else first.label
    return f"{what}{on}"


def _lede(known: Mapping[str, str]) -> str:
    forms = {
        **dict.fromkeys(("partition", "network", "optimizer"), "{}"),
        "clients": "{} clients",
        "rounds": "{} rounds",
        "metric": "accuracy: {}",
    }
    parts = [form.format(known[name]) for name, form in forms.items() if name in known]
    return " · ".join(part for part in parts if "differs" not in part)


def _unlike(comparison: Comparison) -> str:
    found = [e for e in comparison.entries if e.unlike]
    names = "; ".join(f"{e.label} has another {e.unlike}" for e in found)
    if not names:
        return ""
    return note(
        f"{MARK} These runs cannot be compared as they are: {names} than "
        f"{comparison.entries[0].label}.",
        "warn",
    )


def _pilots(comparison: Comparison) -> str:
    """Names the lines whose number of rounds a pilot has set."""
    found = {
        entry.label: costs.pilot_note(entry.group.runs[0])
        for entry in comparison.entries
    }
    notes = [note(f"{label}: {text}") for label, text in found.items() if text]
    number = f"{len(notes)} of {len(found)} lines"
    return folded(f"Pilots have set the rounds of {number}", "".join(notes))


def _downloads(files: Mapping[str, str]) -> str:
    links = [
        f"<li>{download(name, kind, files[name], title)}</li>"
        for name, (kind, title) in _DOWNLOADS.items()
    ]
    return f'<ul class="files">{"".join(links)}</ul>\n'


def _tabs(comparison: Comparison, drawn: Mapping[str, str]) -> str:
    """Returns one panel for each axis of cost, of which one is shown at a time."""
    if not drawn:
        return note("No run has been evaluated yet.")
    tabs = [
        f'<input type="radio" name="axis" id="axis-{i}"{" checked" * (i == 0)}>'
        f'<label for="axis-{i}">{text(axis.title)}</label>\n'
        f'<div class="panel" id="panel-{i}"><div class="figures">'
        f"{drawn[axis.name]}</div>\n"
        f"{sections.budgets(comparison, axis)}</div>\n"
        for i, axis in enumerate(comparison.axes)
    ]
    return f'<div class="tabs">{"".join(tabs)}</div>\n'


def _cited(cited: Sequence[Paper], content: str) -> str:
    items = [
        f"<li>{text(p.author)}: {text(p.title)}, {text(p.year)}.</li>" for p in cited
    ]
    entries = folded("BibTeX", f"<pre>{text(content)}</pre>")
    return f'<ul class="papers">{"".join(items)}</ul>\n{entries}' if items else ""
