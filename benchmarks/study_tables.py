"""Writes the tables of docs/benchmark.md from the folder of the benchmark's study.

    python -m benchmarks.study_tables runs/benchmark

Results go to `benchmarks/tables/benchmark.json`, from which the tables between
`<!-- table NAME -->` and `<!-- end -->` are drawn; commit both. A point is left out
until each of its seeds has ended or diverged, and so is one that failed otherwise;
entries of points that the folder does not hold are kept.

The accuracy within a budget is that of the round that validation chooses among those
within the budget. A run that ended earlier counts with what it has spent; one that
spent more, because its pilot measured too little, counts up to the budget. `UNKNOWN`
marks what the records do not contain.

Differences are paired by seed and have 95 % intervals of Student's t. Their p-values
are corrected by Holm's method (Scandinavian Journal of Statistics, 1979) over all
comparisons within a budget.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import ttest_1samp

from benchmarks.measure import markdown
from benchmarks.pages import redraw
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
MOST = 2.01  # Gbit; the pilot's estimate may be half a percent off
BUDGETS = {  # by axis, in its own units
    "gbit": (0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, MOST),
    "gbit_values": (0.25, 0.5, 1.0),
    "pflop": (2e-5, 5e-5, 1e-4, 2e-4),
    "hours": (0.0025, 0.005, 0.01, 0.02),
}
WHOLE, LAST = f"gbit {MOST}", "last"  # names of budgets; the last model within WHOLE
COLUMNS = {  # what methods are compared by: the accuracy within a budget
    "2 Gbit": WHOLE,
    "2 Gbit, last": LAST,
    "0.5 Gbit": "gbit 0.5",
    "0.5 Gbit without positions": "gbit_values 0.5",
    "50 GFLOP": "pflop 5e-05",
    "18 s": "hours 0.005",
}
UNKNOWN, MISSING = "unknown", "-"
_UNKNOWN, _MISSING = (math.inf, math.nan, math.nan), (math.nan,) * 3
BASELINE = "fedavg"
PERSONAL = ("spafl",)  # methods whose clients are tested with models of their own


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
    runs = list(map(_paid, runs))
    spent = [costs.progress(run) for run in runs]
    return {
        "point": name,
        "method": name.partition("-")[0],
        "density": density,
        "diverged": diverged,
        "seeds": [evaluations.seed_of(run) for run in runs],
        "within": {
            f"{axis} {budget:g}": [
                _within(run, load.column(table, axis), budget)
                for run, table in zip(runs, spent, strict=True)
            ]
            for axis, budgets in BUDGETS.items()
            for budget in budgets
        },
        "last": [evaluations.accuracy(evaluations.last_eval(run)) for run in runs],
        "totals": {
            axis: [costs.total(run, axis) for run in runs]
            for axis in (*BUDGETS, "rounds")
        },
        "seconds": [run.summary["seconds"] for run in runs],
        "commits": sorted({run.summary["commit"] for run in runs}),
    }


def _paid(run: Run) -> Run:
    """Returns the part of a run within the budget of bits."""
    train, evals = (
        [record for record in records if record["gbit_cumulative"] <= MOST]
        for records in (run.train, run.evals)
    )
    return run._replace(train=train, evals=evals)


def _within(run: Run, spent: pd.Series, budget: float) -> tuple | None:
    """Returns accuracy, score and density of what validation chooses in a budget."""
    paid = [
        record
        for record in evaluations.final_evals(run)
        if spent.get(run.done(record), math.inf) <= budget
    ]
    if (best := evaluations.best_of(paid)) is None:
        return None
    density = next(iter(best["models"].values()))["density"]
    return evaluations.accuracy(best), best["val_accuracy"], density


def reached(found: dict, budget: str) -> pd.DataFrame:
    """Returns what the seeds of a point reach within a budget.

    Args:
      found: the entry of the point.
      budget: its name, such as 'gbit 0.5', or `LAST`.

    Returns:
      A row for each seed with `accuracy`, validation `score`, and the `density` of the
      model; NaN if it reaches nothing, and an accuracy of inf if that is not known.
    """
    triples = [
        _UNKNOWN if triple == UNKNOWN else triple or _MISSING
        for triple in found["within"][WHOLE if budget == LAST else budget]
    ]
    names = ["accuracy", "score", "density"]
    table = pd.DataFrame(triples, found["seeds"], names, dtype=float)
    return table.assign(accuracy=found["last"]) if budget == LAST else table


def at_best(entries: Sequence[dict], method: str, budget: str) -> tuple[pd.Series, str]:
    """Returns the accuracies of a method at its best density, by seed, and as text.

    The density is the one with the best mean score on the validation split within the
    budget, of those at which no seed diverged. Without one there are no accuracies.
    """
    tables = {
        found["density"]: reached(found, budget)
        for found in entries
        if found["method"] == method and not found["diverged"]
    }
    scores = {d: table["score"].mean(skipna=False) for d, table in tables.items()}
    scores = {density: score for density, score in scores.items() if score >= 0}
    if not scores:
        unknown = any(np.isinf(table["accuracy"]).any() for table in tables.values())
        return pd.Series(dtype=float), UNKNOWN if unknown else MISSING
    density = max(scores, key=scores.get)
    accuracy = tables[density]["accuracy"]
    return accuracy, _spread(accuracy) + (f", d = {density:g}" if density else "")


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
        row = [f"`{found['method']}`", f"{density:g}" if density else MISSING]
        row[0] += f" ({lost} of {lost + len(found['seeds'])} diverged)" * bool(lost)
        if found["seeds"]:
            totals = pd.DataFrame(found["totals"]).replace(UNKNOWN, math.nan)
            mean = totals.astype(float).mean(skipna=False)
            minutes = 60 * mean["hours"]
            row += [
                *(_cell(reached(found, b)) for b in ("gbit 0.5", "gbit 1", WHOLE)),
                _cell(reached(found, LAST)),
                f"{reached(found, WHOLE)['density'].mean():.3f}",
                f"{mean['rounds']:.0f}",
                f"{mean['gbit']:.2f}",
                f"{100 * (1 - mean['gbit_values'] / mean['gbit']):.0f} %",
                f"{1e6 * mean['pflop']:.0f}",
                UNKNOWN if math.isnan(minutes) else f"{minutes:.1f}",
            ]
        rows.append(row + [MISSING] * (len(head) - len(row)))
    return markdown(head, rows)


def methods(entries: Sequence[dict]) -> str:
    """Formats each method at its best density within each budget."""
    rows = [
        [f"`{name}`", *(at_best(entries, name, b)[1] for b in COLUMNS.values())]
        for name in _names(entries)
    ]
    return markdown(["method", *COLUMNS], rows)


def against_baseline(entries: Sequence[dict]) -> str:
    """Formats how far each method, at its best density, is from FedAvg, by seed."""
    rows = {name: [f"`{name}`"] for name in _names(entries) if name != BASELINE}
    for budget in COLUMNS.values():
        best = {n: at_best(entries, n, budget) for n in (BASELINE, *rows)}
        accuracies = {name: accuracy for name, (accuracy, _) in best.items()}
        told = differences(accuracies, [(name, BASELINE) for name in rows])
        for name, row in rows.items():
            missing = UNKNOWN if best[name][1] == UNKNOWN else MISSING
            row.append(told.get((name, BASELINE), missing))
    return markdown(["method", *COLUMNS], list(rows.values()))


def neighbours(entries: Sequence[dict]) -> str:
    """Formats how far methods are from the next one in the order of their means."""
    best = {name: at_best(entries, name, WHOLE)[0] for name in _names(entries)}
    means = pd.Series({name: accuracy.mean() for name, accuracy in best.items()})
    order = list(means.dropna().sort_values(ascending=False, kind="stable").index)
    told = differences(best, list(zip(order, order[1:], strict=False)))
    rows = [[f"`{one}`", f"`{other}`", text] for (one, other), text in told.items()]
    return markdown(["method", "next", "difference"], rows)


def differences(
    accuracies: Mapping[str, pd.Series], pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Formats paired differences in points, with 95 % intervals and p by Holm.

    Args:
      accuracies: of each method, by seed.
      pairs: names of two methods.

    Returns:
      By pair; those are absent of which fewer than two seeds have both.
    """
    found, p_values = {}, []
    for one, other in pairs:
        gaps = (accuracies[one] - accuracies[other]).dropna()
        if len(gaps) > 1:
            tested = ttest_1samp(gaps, 0.0)
            found[one, other] = gaps.mean(), *tested.confidence_interval()
            p_values.append(float(tested.pvalue) if gaps.any() else 1.0)  # t is 0 / 0
    texts = {}
    for (pair, interval), p in zip(found.items(), holm(p_values), strict=True):
        mean, low, high = (100 * value for value in interval)
        shown = "p < 0.01" if p < 0.01 else f"p = {p:.2f}"
        texts[pair] = f"{mean:+z.1f} [{low:+z.1f}, {high:+z.1f}], {shown}"
    return texts


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p-values of several comparisons by Holm's method.

    Example:
      >>> holm([0.04, 0.01, 0.03])  # 3 * .01; 2 * .03; and .04 is not below the last
      [0.06, 0.03, 0.06]
    """
    order, count = np.argsort(p_values, kind="stable"), len(p_values)
    scaled = np.sort(p_values) * np.arange(count, 0, -1)
    corrected = np.zeros(count)
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected.tolist()


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
        scores = pd.Series(found["scores"], dtype=float)
        ended = scores.dropna().sort_values(ascending=False)
        cells = [f"`{method}`", f"{rate:g}", f"`{field.rpartition('.')[2]}={value}`"]
        shown = [f"{100 * score:.1f}" for score in ended.iloc[[0, 1, -1]]]
        rows.append([*cells, *shown, len(scores) - len(ended) or MISSING])
    return markdown(head, rows)


def draw(entries: Sequence[dict], path: Path) -> None:
    """Draws the accuracy within each budget of bits, at density 0.05 or without one."""
    shown = [e for e in entries if e["density"] in (None, DRAWN)]
    with figure.axes(path, "traffic, both ways, Gbit", "accuracy, %") as ax:
        for place, found in enumerate(shown):
            turn, color = divmod(place, len(figure.COLORS))
            tables = {b: reached(found, f"gbit {b:g}") for b in BUDGETS["gbit"]}
            means = {
                b: each["accuracy"].mean(skipna=False) for b, each in tables.items()
            }
            points = {b: 100 * mean for b, mean in means.items() if mean <= 1}
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
    """Returns whether a point is one of the core, not of another split or data set."""
    return found["point"].count("-") == bool(found["density"])


def _names(entries: Sequence[dict]) -> list[str]:
    return list(dict.fromkeys(found["method"] for found in entries))


def _cell(table: pd.DataFrame) -> str:
    """Formats what the seeds of a point reach."""
    accuracy = table["accuracy"]
    if np.isinf(accuracy).any():
        return UNKNOWN
    return MISSING if accuracy.isna().any() else _spread(accuracy)


def _spread(accuracy: pd.Series) -> str:
    """Formats mean and sample deviation over seeds, in percent."""
    deviation = f" ± {100 * accuracy.std():.1f}" if len(accuracy) > 1 else ""
    return f"{100 * accuracy.mean():.1f}{deviation}"


def collect(workdir: Path) -> list[dict]:
    """Returns the entries of a study's points that have ended, in their order.

    Raises:
      ValueError: the folder holds no part of the benchmark but its tuning.
    """
    entries = []
    for point in on_disk.read(workdir):
        unknown = point.name.partition("-")[0] not in benchmark.METHODS
        if unknown or benchmark.TUNING_SEED in point.seeds:
            raise ValueError(
                f"{workdir} holds the point {point.name!r}, expected those of the "
                "benchmark's core, or of its part 'more'"
            )
        folders = [folder for _, folder in on_disk.folders(workdir, point)]
        ended = [f for f in folders if (f / "summary.json").exists()]
        lost = len(folders) - len(ended)
        note = on_disk.failure(workdir, point.name)
        if not lost or note.exists() and "FloatingPointError" in note.read_text():
            runs = list(map(read_run, ended))
            entries.append(entry(point.name, point.config.density, runs, lost))
    return entries


def _rounded(found: dict) -> dict:
    """Returns an entry with six significant digits."""
    six = lambda number: float(f"{float(number):.6g}")  # noqa: E731
    return json.loads(json.dumps(found), parse_float=six)


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
