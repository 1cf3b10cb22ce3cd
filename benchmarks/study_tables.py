"""Writes the tables of docs/benchmark.md from the folder of the benchmark's study.

    python -m benchmarks.study_tables runs/benchmark

Results go to `benchmarks/tables/benchmark.json`, from which the tables between
`<!-- table NAME -->` and `<!-- end -->` are drawn; commit both. A point is left out
until each of its seeds has ended or diverged, and so is one that failed otherwise;
entries of points that the folder does not hold are kept.

The accuracy within a budget is that of the round which validation chooses among those
that have cost no more. So a run that ended before counts with what it has spent, and
one that spent more, because its pilot measured too little, up to the budget.
"""

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import markdown
from benchmarks.table import redraw
from sparsefl_jax.report import figure
from sparsefl_jax.report.comparison import costs, evaluations, measures
from sparsefl_jax.report.load import Run, read_run
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.system import files
from studies import benchmark

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = "benchmarks/tables/benchmark.json", "docs/benchmark.md"
CHOICES, FIGURE = "studies/benchmark.json", "docs/_static/benchmark.svg"
DRAWN = 0.05  # the density in the figure
WHOLE = 2.01  # Gbit; the pilot's estimate may be half a percent off
BUDGETS = {  # by axis, in its own units
    "gbit": (0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, WHOLE),
    "gbit_values": (0.25, 0.5, 1.0),
    "pflop": (2e-5, 5e-5, 1e-4, 2e-4),
    "hours": (0.0025, 0.005, 0.01, 0.02),
}
# The columns of the ranking: title, axis and budget.
RANKED = (
    ("2 Gbit", "gbit", WHOLE),
    ("0.5 Gbit", "gbit", 0.5),
    ("0.5 Gbit without positions", "gbit_values", 0.5),
    ("50 GFLOP", "pflop", 5e-5),
    ("18 s", "hours", 0.005),
)


def entry(name: str, density: float | None, runs: Sequence[Run], diverged=0) -> dict:
    """Returns the results of a point.

    Args:
      name: of the point.
      density: that its configuration asks for.
      runs: of its seeds that have ended.
      diverged: how many others have diverged.

    Returns:
      `within`, by axis and budget, accuracy, validation score and density of the
      model, one triple a seed; the last accuracies; totals; seeds, commits, seconds.
    """
    runs, within = list(map(_paid, runs)), {}
    for axis, budgets in BUDGETS.items():
        for budget in budgets:
            found = [_within(run, axis, budget) for run in runs]
            within[f"{axis} {budget:g}"] = found
    totals = {
        axis: [costs.total(run, axis) for run in runs] for axis in (*BUDGETS, "rounds")
    }
    return {
        "point": name,
        "method": name.partition("-")[0],
        "density": density,
        "diverged": diverged,
        "seeds": [evaluations.seed_of(run) for run in runs],
        "within": within,
        "last": [measures.last_accuracy(run) for run in runs],
        "totals": totals,
        "seconds": [run.summary["seconds"] for run in runs],
        "commits": sorted({run.summary["commit"] for run in runs}),
    }


def _paid(run: Run) -> Run:
    """Returns a run up to the budget of bits."""
    train, evals = (
        [record for record in records if record["gbit_cumulative"] <= WHOLE]
        for records in (run.train, run.evals)
    )
    return run._replace(train=train, evals=evals)


def _within(run: Run, axis: str, budget: float) -> tuple | None:
    """Returns accuracy, score and density of what validation chooses in a budget."""
    evals = evaluations.final_evals(run)
    paid = [r for r in evals if (costs.cost(run, r, axis) or math.inf) <= budget]
    if (best := evaluations.best_of(paid)) is None:
        return None
    density = next(iter(best["models"].values()))["density"]
    return evaluations.accuracy(best), best["val_accuracy"], density


def chosen(found: dict, axis: str, budget: float, place: int = 0) -> list[float]:
    """Returns what a point's seeds reach within a budget; none if one reaches nothing.

    Args:
      found: the entry of the point.
      axis: of the budget.
      budget: one of its `BUDGETS`.
      place: 0 for accuracies, 1 for validation scores, 2 for densities.
    """
    triples = found["within"][f"{axis} {budget:g}"]
    return [triple[place] for triple in triples] if all(triples) else []


def densities(entries: Sequence[dict]) -> str:
    """Formats every point with what it reached and what it cost."""
    head = ["method", "density", "0.5 Gbit", "1 Gbit", "2 Gbit", "its density", "last"]
    head += ["rounds", "Gbit", "positions", "GFLOP", "minutes"]
    rows = []
    for found in entries:
        lost, density = found["diverged"], found["density"]
        named = [f"`{found['method']}`", f"{density:g}" if density else "-"]
        named[0] += f" ({lost} of {lost + len(found['seeds'])} diverged)" * bool(lost)
        if not found["seeds"]:
            rows.append([*named, *["-"] * (len(head) - len(named))])
            continue
        mean = {axis: statistics.fmean(v) for axis, v in found["totals"].items()}
        values = [chosen(found, "gbit", budget) for budget in (0.5, 1.0, WHOLE)]
        row = [
            *named,
            *map(_spread, values),
            f"{statistics.fmean(chosen(found, 'gbit', WHOLE, place=2)):.3f}",
            _spread(found["last"]),
            f"{mean['rounds']:.0f}",
            f"{mean['gbit']:.2f}",
            f"{100 * (1 - mean['gbit_values'] / mean['gbit']):.0f} %",
            f"{1e6 * mean['pflop']:.0f}",
            f"{60 * mean['hours']:.1f}",
        ]
        rows.append(row)
    return markdown(head, rows)


def ranking(entries: Sequence[dict]) -> str:
    """Formats each method at its best density, ranked within each budget.

    The density is the one with the best mean score on the validation split within that
    budget, of those at which no seed diverged.
    """
    methods = dict.fromkeys(found["method"] for found in entries)
    cells = {name: [f"`{name}`"] for name in methods}
    for _, axis, budget in RANKED:
        every = {name: _best(entries, name, axis, budget) for name in methods}
        best = {name: found for name, found in every.items() if found}
        reached = {name: statistics.fmean(values) for name, (values, _) in best.items()}
        order = sorted(reached, key=reached.get, reverse=True)
        for name, row in cells.items():
            if name not in reached:
                row.append("-")
                continue
            values, density = best[name]
            at = f", d = {density:g}" if density else ""
            row.append(f"**{order.index(name) + 1}** {_spread(values)}{at}")
    head = ["method", *(title for title, *_ in RANKED)]
    return markdown(head, list(cells.values()))


def tuning(choices: dict) -> str:
    """Formats what tuning chose.

    Args:
      choices: as `studies/benchmark.json` has them, by method.
    """
    head, rows = ["method", "rate", "its own", "best", "next", "worst", "diverged"], []
    for method, found in choices.items():
        own = dict(found["settings"])
        rate = own.pop(benchmark.RATE)
        ((field, value),) = own.items()
        ended = [v for v in found["scores"].values() if v is not None]
        scores = sorted(ended, reverse=True)
        cells = [f"`{method}`", f"{rate:g}", f"`{field.rpartition('.')[2]}={value}`"]
        shown = [f"{100 * score:.1f}" for score in (*scores[:2], scores[-1])]
        lost = len(found["scores"]) - len(scores)
        rows.append([*cells, *shown, lost or "-"])
    return markdown(head, rows)


def draw(entries: Sequence[dict], path: Path) -> None:
    """Draws the accuracy within each budget of bits, at density 0.05 or without one."""
    shown = [e for e in entries if e["density"] in (None, DRAWN)]
    with figure.axes(path, "traffic, both ways, Gbit", "accuracy, %") as ax:
        for place, found in enumerate(shown):
            reached = {b: chosen(found, "gbit", b) for b in BUDGETS["gbit"]}
            points = {b: 100 * statistics.fmean(v) for b, v in reached.items() if v}
            turn, color = divmod(place, len(figure.COLORS))
            ax.plot(
                list(points),
                list(points.values()),
                color=figure.COLORS[color],
                linestyle=("-", "--", ":")[turn],
                marker="osD"[turn],
                label=found["method"],
            )
        ax.set_xscale("log")
        figure.label_powers(ax.xaxis)
        figure.legend(ax, columns=4)


def _core(found: dict) -> bool:
    """Tells whether a point is one of the core, not of another split or data set."""
    return found["point"].count("-") == bool(found["density"])


def _best(entries, method: str, axis: str, budget: float) -> tuple | None:
    """Returns the accuracies of a method at its best density, and the density."""
    scored = {}
    for found in entries:
        scores = chosen(found, axis, budget, place=1)
        if found["method"] == method and scores and not found["diverged"]:
            values = chosen(found, axis, budget)
            scored[statistics.fmean(scores)] = values, found["density"]
    return scored[max(scored)] if scored else None


def _spread(values: Sequence[float]) -> str:
    """Formats mean and sample deviation over seeds, in percent."""
    if not values:
        return "-"
    percent = [100 * value for value in values]
    deviation = f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else ""
    return f"{statistics.fmean(percent):.1f}{deviation}"


def _rounded(value):
    """Returns plain values with six significant digits."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def collect(workdir: Path) -> list[dict]:
    """Returns the entries of a study's points that have ended, in their order.

    Raises:
      ValueError: the folder holds no part of the benchmark but its tuning.
    """
    known = on_disk.read(workdir)
    entries = []
    for point in known:
        unknown = point.name.partition("-")[0] not in benchmark.METHODS
        if unknown or benchmark.TUNING_SEED in point.seeds:
            raise ValueError(
                f"{workdir} holds the point {point.name!r}, expected those of the "
                "benchmark's core, or of its part 'more'"
            )
        folders = [folder for _, folder in on_disk.folders(workdir, point)]
        ended = [f for f in folders if (f / "summary.json").exists()]
        lost = len(folders) - len(ended)
        if not lost or _diverged(workdir, point.name):
            runs = list(map(read_run, ended))
            entries.append(entry(point.name, point.config.density, runs, lost))
    return entries


def _diverged(workdir: Path, name: str) -> bool:
    """Tells whether a point failed because a loss or a weight was not finite."""
    note = on_disk.failure(workdir, name)
    return note.exists() and FloatingPointError.__name__ in note.read_text()


def publish(new: Sequence[dict], root: Path = ROOT) -> None:
    """Adds entries to the results and draws the tables of the page anew."""
    path = root / RESULTS
    known = json.loads(path.read_text()) if path.exists() else []
    entries = {found["point"]: found for found in [*known, *new]}
    every = list(entries.values())
    lines = ",\n".join(json.dumps(_rounded(found)) for found in every)
    files.write_text(path, f"[\n{lines}\n]\n")
    core = [found for found in every if _core(found)]
    tables = {"densities": densities(core), "ranking": ranking(core)}
    if (choices := root / CHOICES).exists():
        tables["tuning"] = tuning(json.loads(choices.read_text()))
    draw(core, root / FIGURE)
    for name, text in tables.items():
        redraw(root / PAGE, name, text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("expected the folder of a study")
    try:
        publish(collect(Path(sys.argv[1])))
    except ValueError as error:
        sys.exit(str(error))
