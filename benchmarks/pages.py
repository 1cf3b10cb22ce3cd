"""Draws the tables of papers, and what is known of each, in the documentation.

    python -m benchmarks.pages    # all of them, from the committed files

A table of results stands between `<!-- table NAME -->` and `<!-- end -->` on the page
of its paper in `docs/reproduction`, the list of its tables without a result in
`PAPER_not_run`, and the overview of all others on `index.md`. A benchmark's table on a
page of `docs` stands behind `<!-- record FILE: COLUMNS -->`. Records have dates and
commits.

A method that deploys several models has a row for each, with that model's accuracy and
density. Only the first of these rows has the paper's figure and the table's columns.
"""

import importlib
import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks import measure
from benchmarks.tables import Table
from sparsefl_jax.system import files

ROOT = Path(__file__).parent.parent
TABLES = sorted(p.stem for p in (ROOT / "benchmarks/tables").glob("[!_]*.py"))
PAPERS = tuple(dict.fromkeys(name.partition("_")[0] for name in TABLES))
_FIRST = ("configuration", "model", "paper, %", "here, %", "seeds", "density")
_LAST = ("Gbit", "FLOPs / dense", "minutes")
_OVERVIEW = ("table", "rows", "run", "seeds", "minutes a row", "missing")
_NOT_RUN = ("table", "what", "rows", "minutes a row", "because")


def declared(name: str) -> Table:
    """Returns the declaration of a table."""
    return importlib.import_module(f"benchmarks.tables.{name}").TABLE


def results(name: str, root=ROOT) -> dict[tuple[str, int], dict]:
    """Returns all entries of a table by row and seed."""
    path = root / "benchmarks" / "tables" / f"{name}.json"
    entries = json.loads(path.read_text()) if path.exists() else []
    return {(e["row"], e["seed"]): e for e in entries}


def redraw(document: Path, name: str, text: str) -> None:
    """Writes a table between its markers on a page, if the page has them."""
    before = document.read_text()
    marks = rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)"
    after = re.sub(marks, lambda m: m[1] + text + "\n" + m[2], before, flags=re.S)
    files.write_text(document, after)


def write_entries(path: Path, found: dict[str, list[dict]]) -> None:
    """Writes the entries of each part of a study as JSON, one on a line."""
    parts = (
        f'"{part}": [\n' + ",\n".join(map(json.dumps, entries)) + "\n]"
        for part, entries in found.items()
    )
    files.write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def page(name: str, root=ROOT) -> Path:
    """Returns the page of the paper with which a table's name begins."""
    return root / "docs" / "reproduction" / f"{name.partition('_')[0]}.md"


def markdown(table: Table, entries: list[dict]) -> str:
    """Formats the table as Markdown, with mean and sample deviation over seeds.

    Rows that have not been run are counted below the table.
    """
    head = [*_FIRST, *table.columns, *_LAST]
    rows = [head, ["---"] * 2 + ["--:"] * (len(head) - 2)]
    run = {e["row"] for e in entries} & set(table.rows)
    for name in (name for name in table.rows if name in run):
        row, of_row = table.rows[name], [e for e in entries if e["row"] == name]
        settings = [f"`{row.config.removeprefix('configs/')}`"]
        settings += [f"`{key}={value}`" for key, value in row.overrides.items()]
        own = [c for c in table.columns if c in of_row[0]]
        first = {"paper, %": row.paper or "-"} | {c: _mean(of_row, c, 3) for c in own}
        for model in of_row[0]["accuracy"]:
            cells = {"configuration": " ".join(settings), "model": model} | first
            cells |= _measured(of_row, model, table.best)
            rows.append([cells.get(column, "-") for column in head])
            first = {}
    lines = [f"| {' | '.join(row)} |" for row in rows if run]
    if missing := len(table.rows) - len(run):
        left = f"{missing} of {len(table.rows)}"
        lines += ["", f"Rows not run: {left}; `--list` names them."]
    return "\n".join(lines)


def _measured(entries: list[dict], model: str, best: bool) -> dict[str, str]:
    """Returns the measured cells of one model of a row."""
    counted = dict.fromkeys(e["counted"] for e in entries if "counted" in e)
    return {
        "here, %": accuracy(entries, model, best),
        "seeds": str(len(entries)),
        "density": _densities([e["accuracy"][model] for e in entries], best),
        "Gbit": _noted(_mean(entries, "gbit", 2), counted),
        "FLOPs / dense": _mean(entries, "flops_share", 3),
        "minutes": _mean(entries, "minutes", 0),
    }


def _mean(entries: list[dict], key: str, digits: int) -> str:
    return f"{statistics.fmean(e[key] for e in entries):.{digits}f}"


def accuracy(entries: list[dict], model: str, best: bool) -> str:
    """Formats the final accuracy of a model, or its best one followed by the final."""
    notes = [f"final {_spread(entries, model, 'final')}"] if best else []
    return _noted(_spread(entries, model, "best" if best else "final"), notes)


def _densities(models: list[dict], best: bool) -> str:
    """Formats the density beside the accuracy: of the same model, in the same round.

    An entry may lack the density in the best round; then only the last one's is shown.
    """
    final = f"{statistics.fmean(map(density, models)):.3f}"
    if not best:
        return final
    if any("best_density" not in model for model in models):
        return f"(final {final})"
    shown = f"{statistics.fmean(model['best_density'] for model in models):.3f}"
    return shown if shown == final else f"{shown} (final {final})"


def _noted(shown: str, notes) -> str:
    return shown + (f" ({', '.join(notes)})" if notes else "")


def _spread(entries: list[dict], name: str, which: str) -> str:
    """Formats the mean and sample deviation over seeds of a model's accuracy in %."""
    values = [100 * e["accuracy"][name][which] for e in entries]
    text = f"{statistics.fmean(values):.2f}"
    return text + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def density(model: dict) -> float:
    """Returns a model's density; of personal ones the mean over layers and clients."""
    return model.get("layer_density", model["density"])


def draw_overview(root=ROOT) -> None:
    """Redraws the overview of all tables, and what has not been run of each paper."""
    folder = root / "docs" / "reproduction"
    if not (folder / "index.md").exists():
        return
    redraw(folder / "index.md", "overview", overview(root))
    for paper in PAPERS:
        redraw(folder / f"{paper}.md", f"{paper}_not_run", not_run(paper, root))


def overview(root=ROOT) -> str:
    """Formats what the tables with results have and lack as Markdown."""
    lines, total, done = [_OVERVIEW, ("---", *["--:"] * 4, "---")], 0, 0
    for name in TABLES:
        rows, found = declared(name).rows, results(name, root)
        run = Counter(row for row, _ in found)  # with the number of seeds
        total, done = total + len(rows), done + len(run)
        if run:
            link = f"[{name}]({_section(name, root)})"
            missing = _needs(rows[row].needs for row in rows if row not in run)
            cells = len(rows), len(run), _range(run.values()), _minutes(name, root)
            lines.append((link, *map(str, cells), missing))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{done} of {total} declared rows have been run."


def not_run(paper: str, root=ROOT) -> str:
    """Formats a paper's tables without a result, and what each needs, as Markdown."""
    lines = [_NOT_RUN, ("---", "---", "--:", "--:", "---")]
    for name in TABLES:
        if name.partition("_")[0] == paper and not results(name, root):
            rows = declared(name).rows
            needs = _needs(row.needs for row in rows.values())
            cells = _title(name), str(len(rows)), _minutes(name, root), needs
            lines.append((f"`{name}`", *cells))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _title(name: str) -> str:
    """Returns what a table's docstring says first, without the paper's name."""
    module = importlib.import_module(f"benchmarks.tables.{name}")
    first = (module.__doc__ or "").splitlines()[0]
    return first.partition(", ")[2].removesuffix(".")


def _needs(missing: Iterable[str]) -> str:
    """Formats what rows need; two cores and time if nothing else."""
    found = Counter(needs or "time" for needs in missing)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{needs}: {count}" for needs, count in found.items()) or "-"


def _minutes(name: str, root: Path) -> str:
    return _range(round(e["minutes"]) for e in minutes(root) if e["table"] == name)


def valid(entry: dict) -> bool:
    """Returns whether an entry names commit and versions, and each model's density."""
    named = entry["commit"] and {"jax", "jaxlib", "numpy"} <= set(entry["versions"])
    return bool(named) and all("density" in m for m in entry["accuracy"].values())


def minutes(root=ROOT) -> list[dict]:
    """Returns the minutes of rows on two cores, as estimated from a few rounds."""
    path = root / "benchmarks" / "tables" / "minutes.json"
    return json.loads(path.read_text()) if path.exists() else []


def _section(name: str, root: Path) -> str:
    """Returns the link to the heading above a table."""
    document = page(name, root)
    above, found, _ = document.read_text().partition(f"<!-- table {name} -->\n")
    heading = re.findall(r"^#+ (.*)", above, re.M)[-1 if found else 0]
    anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    return f"{document.name}#{anchor}"


def _range(values) -> str:
    """Formats the smallest and the largest value."""
    ends = sorted(values)
    return " to ".join(dict.fromkeys(map(str, (ends[0], ends[-1])))) if ends else "-"


def draw_records(document: Path, root=ROOT) -> None:
    """Redraws the tables of a page that show the records of benchmarks.

    Each stands between `<!-- record FILE: COLUMN | COLUMN -->` and `<!-- end -->`. The
    file is a JSON in `benchmarks/results`, as a benchmark writes it or as
    `programs.json`, whose platform follows a `#`.
    """

    def drawn(match):
        mark, file, columns = match[1], *match[2].split(": ", 1)
        facts, rows = record(root / "benchmarks/results", file)
        head = columns.split(" | ")
        cells = [[measure.shown(row.get(c)) for c in head] for row in rows]
        return f"{mark}\n{measure.markdown(head, cells)}\n\n{facts}\n{match[3]}"

    marks = r"(<!-- record (.*?) -->)\n.*?(<!-- end -->)"
    text = re.sub(marks, drawn, document.read_text(), flags=re.S)
    files.write_text(document, text)


def record(folder: Path, file: str) -> tuple[str, list[dict]]:
    """Returns a line of facts behind a benchmark's record, and its rows."""
    name, _, platform = file.partition("#")
    content = json.loads((folder / f"{name}.json").read_text())
    if platform:
        rounds = content[platform]["rounds"]
        rows = [{"set-up": name} | of["ms"] for name, of in rounds.items()]
        keys = "device", "compiler", "jax", "date"
        each = {key: dict.fromkeys(of[key] for of in rounds.values()) for key in keys}
        device, compiler, version, date = (" and ".join(each[key]) for key in keys)
        facts = [device, compiler, f"jax {version}", date]
        return f"{', '.join(facts)}; record `{name}.json`.", rows
    machine, rows = content["machine"], content["results"]
    jax = f"jax {machine['jax']}"
    of = "processor" if "cpu" in machine["devices"] else "devices"
    peers = {v for row in rows for v in row.get("peer's version", "").split(", ") if v}
    facts = [machine[of], *sorted(peers - {jax}), jax, machine["date"]]
    return f"{', '.join(facts)}; record `{name}.json`.", rows


def main() -> None:
    """Redraws every table and the overview."""
    for document in (ROOT / "docs").glob("*.md"):
        draw_records(document)
    for name in TABLES:
        text = markdown(declared(name), list(results(name).values()))
        redraw(page(name), name, text)
    draw_overview()


if __name__ == "__main__":
    main()
