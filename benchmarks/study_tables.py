"""Writes the tables of docs/benchmark.md from the folder of the benchmark's study.

    python -m benchmarks.study_tables runs/benchmark

Results go to `benchmarks/tables/benchmark.json`, from which the tables between
`<!-- table NAME -->` and `<!-- end -->` are drawn; commit both. A point is left out
until each of its seeds has ended or diverged, and so is one that failed otherwise;
entries of points that the folder does not hold are kept.

The accuracy within a budget is that of the round which validation chooses among those
that have cost no more. So a run that ended before counts with what it has spent, and
one that spent more, because its pilot measured too little, up to the budget. `UNKNOWN`
stands where the records do not say what was reached.

Differences are paired by seed and have 95 % intervals of Student's t. Their p-values
are corrected by Holm's method (Scandinavian Journal of Statistics, 1979) over all
comparisons within a budget.
"""

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.stats import ttest_1samp

from benchmarks.measure import markdown
from benchmarks.table import redraw
from sparsefl_jax.report import figure, load
from sparsefl_jax.report.comparison import costs, evaluations
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
UNKNOWN = "unknown"
BASELINE = "fedavg"
PERSONAL = ("spafl",)  # methods whose clients are tested with models of their own


class Column(NamedTuple):
    """What methods are compared by: the accuracy within a budget."""

    title: str
    axis: str
    budget: float
    last: bool = False  # the last model instead of the one that validation chooses


COLUMNS = (
    Column("2 Gbit", "gbit", WHOLE),
    Column("2 Gbit, last", "gbit", WHOLE, last=True),
    Column("0.5 Gbit", "gbit", 0.5),
    Column("0.5 Gbit without positions", "gbit_values", 0.5),
    Column("50 GFLOP", "pflop", 5e-5),
    Column("18 s", "hours", 0.005),
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
        "last": [evaluations.accuracy(evaluations.last_eval(run)) for run in runs],
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
    spent = load.column(costs.progress(run), axis)
    rounds = [run.done(record) for record in evals]
    paid = [
        r
        for r, n in zip(evals, rounds, strict=True)
        if (spent.get(n) or math.inf) <= budget
    ]
    if (best := evaluations.best_of(paid)) is None:
        return None
    density = next(iter(best["models"].values()))["density"]
    return evaluations.accuracy(best), best["val_accuracy"], density


def chosen(found: dict, axis: str, budget: float, place: int = 0) -> list[float]:
    """Returns what a point's seeds reach within a budget; none if one is missing.

    Args:
      found: the entry of the point.
      axis: of the budget.
      budget: one of its `BUDGETS`.
      place: 0 for accuracies, 1 for validation scores, 2 for densities.
    """
    triples = found["within"][f"{axis} {budget:g}"]
    if not all(triples) or UNKNOWN in triples:
        return []
    return [triple[place] for triple in triples]


def tables(entries: Sequence[dict]) -> dict[str, str]:
    """Returns the tables of the page by name, of the core's entries."""
    common, personal = (
        [found for found in entries if (found["method"] in PERSONAL) == own]
        for own in (False, True)
    )
    return {
        "common": densities(common),
        "personal": densities(personal),
        "methods": methods(common),
        "personal_methods": methods(personal),
        "differences": against_baseline(entries),
        "neighbours": neighbours(common),
    }


def densities(entries: Sequence[dict]) -> str:
    """Formats every point with what it reached and what it cost."""
    head = ["method", "density", "0.5 Gbit", "1 Gbit", "2 Gbit", "2 Gbit, last"]
    head += ["its density", "rounds", "Gbit", "positions", "GFLOP", "minutes"]
    rows = []
    for found in entries:
        lost, density = found["diverged"], found["density"]
        named = [f"`{found['method']}`", f"{density:g}" if density else "-"]
        named[0] += f" ({lost} of {lost + len(found['seeds'])} diverged)" * bool(lost)
        if not found["seeds"]:
            rows.append([*named, *["-"] * (len(head) - len(named))])
            continue
        mean = {
            axis: statistics.fmean(values)
            for axis, values in found["totals"].items()
            if UNKNOWN not in values
        }
        row = [
            *named,
            *(_reached(found, "gbit", budget) for budget in (0.5, 1.0, WHOLE)),
            _spread(found["last"]),
            f"{statistics.fmean(chosen(found, 'gbit', WHOLE, place=2)):.3f}",
            f"{mean['rounds']:.0f}",
            f"{mean['gbit']:.2f}",
            f"{100 * (1 - mean['gbit_values'] / mean['gbit']):.0f} %",
            f"{1e6 * mean['pflop']:.0f}",
            f"{60 * mean['hours']:.1f}" if "hours" in mean else UNKNOWN,
        ]
        rows.append(row)
    return markdown(head, rows)


def methods(entries: Sequence[dict]) -> str:
    """Formats each method at its best density within each budget.

    The density is the one with the best mean score on the validation split within that
    budget, of those at which no seed diverged.
    """
    rows = []
    for name in dict.fromkeys(found["method"] for found in entries):
        row = [f"`{name}`"]
        for column in COLUMNS:
            if found := _best(entries, name, column):
                density = f", d = {found['density']:g}" if found["density"] else ""
                row.append(_spread(list(_seeds(found, column).values())) + density)
            else:
                row.append(_missing(_of(entries, name), *column[1:3]))
        rows.append(row)
    return markdown(["method", *(column.title for column in COLUMNS)], rows)


def against_baseline(entries: Sequence[dict]) -> str:
    """Formats how far each method, at its best density, is from FedAvg, by seed."""
    names = dict.fromkeys(found["method"] for found in entries)
    rows = {name: [f"`{name}`"] for name in names if name != BASELINE}
    for column in COLUMNS:
        told = differences(entries, [(name, BASELINE) for name in rows], column)
        for name, row in rows.items():
            missing = _missing(_of(entries, name), *column[1:3])
            row.append(told.get((name, BASELINE), missing))
    return markdown(["method", *(column.title for column in COLUMNS)], rows.values())


def neighbours(entries: Sequence[dict], column: Column = COLUMNS[0]) -> str:
    """Formats how far methods are from the next one in the order of their means."""
    names = dict.fromkeys(found["method"] for found in entries)
    best = {name: _best(entries, name, column) for name in names}
    means = {
        name: statistics.fmean(_seeds(found, column).values())
        for name, found in best.items()
        if found
    }
    order = sorted(means, key=means.get, reverse=True)
    told = differences(entries, list(zip(order, order[1:], strict=False)), column)
    rows = [[f"`{one}`", f"`{other}`", text] for (one, other), text in told.items()]
    return markdown(["method", "next", "difference"], rows)


def differences(
    entries: Sequence[dict], pairs: Sequence[tuple[str, str]], column: Column
) -> dict[tuple[str, str], str]:
    """Formats paired differences in points, with 95 % intervals and p by Holm.

    Args:
      entries: of all points.
      pairs: names of two methods, each of which stands at its best density.
      column: the budget.

    Returns:
      By pair; those are absent of which fewer than two seeds have both.
    """
    found, p_values = {}, []
    for pair in pairs:
        best = [_best(entries, name, column) for name in pair]
        if all(best):
            one, other = (_seeds(point, column) for point in best)
            gaps = [one[seed] - other[seed] for seed in one.keys() & other.keys()]
            if len(gaps) > 1:
                tested = ttest_1samp(gaps, 0.0)
                found[pair] = (statistics.fmean(gaps), *tested.confidence_interval())
                same = not any(gaps)  # t is 0 / 0
                p_values.append(1.0 if same else float(tested.pvalue))
    texts = {}
    for (pair, interval), p in zip(found.items(), holm(p_values), strict=True):
        mean, low, high = (100 * value for value in interval)
        texts[pair] = f"{mean:+z.1f} [{low:+z.1f}, {high:+z.1f}], p = {p:.2f}"
    return texts


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p-values of several comparisons by Holm's method.

    Example:
      >>> holm([0.04, 0.01, 0.03])  # 3 * .01; 2 * .03; and .04 is not below the last
      [0.06, 0.03, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for done, place in enumerate(order):
        scaled = min(1.0, (len(p_values) - done) * p_values[place])
        corrected[place] = largest = max(largest, scaled)
    return corrected


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
                label=found["method"] + " (personal)" * (found["method"] in PERSONAL),
            )
        ax.set_xscale("log")
        figure.label_powers(ax.xaxis)
        figure.legend(ax, columns=4)


def _core(found: dict) -> bool:
    """Tells whether a point is one of the core, not of another split or data set."""
    return found["point"].count("-") == bool(found["density"])


def _of(entries: Sequence[dict], method: str) -> list[dict]:
    return [found for found in entries if found["method"] == method]


def _best(entries: Sequence[dict], method: str, column: Column) -> dict | None:
    """Returns the entry of a method at its best density within a budget."""
    scored = {}
    for found in _of(entries, method):
        scores = chosen(found, column.axis, column.budget, place=1)
        if scores and not found["diverged"]:
            scored[statistics.fmean(scores)] = found
    return scored[max(scored)] if scored else None


def _seeds(found: dict, column: Column) -> dict[int, float]:
    """Returns the accuracies of a point within a budget, by seed."""
    values = found["last"] if column.last else chosen(found, *column[1:3])
    return dict(zip(found["seeds"], values, strict=True))


def _missing(points: Sequence[dict], axis: str, budget: float) -> str:
    """Tells what is not known from what was not reached."""
    within = (found["within"][f"{axis} {budget:g}"] for found in points)
    return UNKNOWN if any(UNKNOWN in triples for triples in within) else "-"


def _reached(found: dict, axis: str, budget: float) -> str:
    """Formats what a point reaches within a budget."""
    values = chosen(found, axis, budget)
    return _spread(values) if values else _missing([found], axis, budget)


def _spread(values: Sequence[float]) -> str:
    """Formats mean and sample deviation over seeds, in percent."""
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


def published(root: Path = ROOT) -> list[dict]:
    """Returns the entries of the results."""
    path = root / RESULTS
    return json.loads(path.read_text()) if path.exists() else []


def publish(new: Sequence[dict], root: Path = ROOT) -> None:
    """Adds entries to the results and draws the tables of the page anew."""
    entries = {found["point"]: found for found in [*published(root), *new]}
    every = list(entries.values())
    lines = ",\n".join(json.dumps(_rounded(found)) for found in every)
    files.write_text(root / RESULTS, f"[\n{lines}\n]\n")
    core = [found for found in every if _core(found)]
    drawn = tables(core)
    if (choices := root / CHOICES).exists():
        drawn["tuning"] = tuning(json.loads(choices.read_text()))
    draw(core, root / FIGURE)
    for name, text in drawn.items():
        redraw(root / PAGE, name, text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("expected the folder of a study")
    try:
        publish(collect(Path(sys.argv[1])))
    except ValueError as error:
        sys.exit(str(error))
