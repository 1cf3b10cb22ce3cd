"""Makes all tables and figures of the benchmark's pages from the committed records.

    python -m benchmarks.v2.page

docs/benchmark_tables.md has the primary families, and all else, which is exploratory;
docs/methods/*.md have the rows of their methods; the long tables are
benchmarks/results/v2/tables/*.csv. Tables on pages stand between `<!-- table NAME -->`
and `<!-- end -->`. Outcomes and tests are those of `outcome.py`; half of an interval is
Student's t at 95 %.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.measure import markdown
from benchmarks.pages import ROOT, redraw
from benchmarks.v2 import outcome, rules, run
from benchmarks.v2.outcome import Reached
from sparsefl_jax.report import figure
from sparsefl_jax.system import files

PAGE, METHODS = "docs/benchmark_tables.md", "docs/methods"
FIGURES = "docs/_static"
LONG = run.RESULTS / "tables"
V1 = run.RESULTS.parent / "v1"
DRAWN = ("fedavg", "fedavg_decay", "fedavg_8bit", "fedavg_small", "small_stc")
DRAWN += ("pdst", "stc")
_CONTROLS = (  # exploratory pairs: the controls, and the claims of the papers
    *(("fedavg_small", "fedavg"), ("fedavg_8bit", "fedavg")),
    *(("fedavg_8bit", "fedavg_small"), ("fedavg_16bit", "fedavg")),
    *(("fedavg_decay", "fedavg"), ("fedavg_momentum", "fedavg"), ("fedadam", "fedavg")),
    *(("small_stc", "fedavg_small"), ("small_stc", "stc"), ("stc", "fedavg_8bit")),
    *(("pdst", "fedavg_8bit"), ("pqsu", "fedavg"), ("pqsu", "fedavg_small")),
    *(("spdst", "zerofl"), ("spdst", "feddst"), ("complement", "prunefl")),
    *(("complement", "pqsu"), ("fedsparsify_global", "prunefl")),
)
_DECAYED = ("fedavg_small", "fedavg_8bit", "pdst", "spdst", "stc", "topk")
PAIRS = {
    "fashion": _CONTROLS,
    "cifar10": (
        *((name, "fedavg_decay") for name in _DECAYED),
        *((name, "fedavg_small") for name in _DECAYED[1:]),
        *((name, "fedavg_8bit") for name in ("pdst", "spdst", "stc", "topk")),
        *((name, "pdst") for name in ("spdst", "stc", "topk")),
    ),
}
EARLY = {"cifar10": 0.9}  # Gbit, what a mask spends in all rounds that it may have
# Methods whose results have changed since their runs in version 1.
CHANGED = ("grasp", "ssfl", "flasc", "fiarse", "heterofl", "heterofl_own", "fedrolex")
CHANGED += ("fjord", "fjord_own", "hetero_spdst", "hetero_jmwst")
OUTCOMES = {"primary": "ten budgets", "whole": "whole budget", "guarded": "last ones"}
MARKS = {"above": 2, "below": 1, "equivalent": 0, "undecided": "#8a94a0"}

Runs = Mapping[str, Mapping[int, Reached]]  # of each method, by seed


class Records(NamedTuple):
    """The evaluations of a workload, and what its pages say of it."""

    name: str
    rows: pd.DataFrame  # with a column `label`, the method and its density
    gbit: float  # the budget
    most: float = np.inf  # the limit of rounds
    targets: tuple[float, ...] = ()

    def runs(self, last: float | None = None) -> Runs:
        """Returns what all runs have reached within the budgets, by method and seed.

        Args:
          last: the largest budget; by default the workload's.
        """
        found: dict = {}
        budgets = rules.budgets(last or self.gbit)
        for (label, seed), evals in self.rows.groupby(["label", "seed"], sort=False):
            found.setdefault(label, {})[int(seed)] = outcome.reached(evals, budgets)
        return found


def read_v2(workload: str) -> Records:
    """Reads the runs of version 2 of methods that have all seeds, by the same rules."""
    task = rules.WORKLOADS[workload]
    runs = run.read(workload, "runs", run.RUNS).groupby("method")
    whole = [
        name
        for name, own in runs
        if set(own["seed"]) == {*task.seeds} and own["rules"].nunique() == 1
    ]
    rows = run.read(workload, "evaluations", run.EVALUATIONS)
    rows = rows[rows["method"].isin(whole)]
    rows = rows.assign(label=rows["method"])
    return Records(workload, rows, task.gbit, task.most, task.targets)


def read_v1(workload: str, gbit: float, personal: bool = False) -> Records:
    """Reads records of version 1, without methods whose results have changed since."""
    rows = pd.read_csv(V1 / f"{workload}.csv", dtype={"commit": str, "data": str})
    rows = rows[(rows["personal"].astype(bool) == personal)]
    rows = rows[~rows["method"].isin(CHANGED)]
    if personal:  # thresholds up, they and their change down, and no initial weights
        own = rows[rows["method"] == "spafl"]
        own = own.assign(method="spafl_from_a_seed", gbit=3 * own["gbit_up"])
        rows = pd.concat([rows, own])
    named = [
        method if density == 1.0 else f"{method} {density:g}".replace(" 0.", " .")
        for method, density in zip(rows["method"], rows["density"], strict=True)
    ]
    return Records(workload, rows.assign(label=named), gbit)


EXPLORATORY = {  # version 1, seeds 0 to 9 or 0 to 2: budgets in Gbit, and baselines
    "fashion": (2.0, False, ("fedavg", "pdst .05")),
    "fashion_personal": (2.0, True, ("fedavg_own",)),
    "cifar10": (3.0, False, ("fedavg", "pdst .05")),
    "writers": (11.0, False, ("fedavg", "pdst .05")),
    "fashion_long": (20.0, False, ("fedavg",)),
}

ROWS = {  # of a method's page: the data, FedAvg, the small network, the random mask
    "fashion": ("Fashion-MNIST", rules.FEDAVG, rules.SMALL, rules.RANDOM),
    "cifar10": ("CIFAR-10", "fedavg_decay", rules.SMALL, rules.RANDOM),
    "v1_fashion": ("Fashion-MNIST", "fedavg", "", "pdst .05"),
    "v1_fashion_personal": ("personal models", "fedavg_own", "", ""),
    "v1_cifar10": ("CIFAR-10", "fedavg", "", "pdst .05"),
}


def compare(runs: Runs, pairs: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Compares pairs of methods by all outcomes.

    Args:
      runs: of all methods.
      pairs: a method and its baseline, by the name of the row.

    Returns:
      A row for each pair, as `outcome.compare` returns it for the primary outcome; the
      mean and the answer by the two others; and `stands`, whether all three say the
      same.
    """
    gaps = {n: outcome.outcomes(runs[a], runs[b]) for n, (a, b) in pairs.items()}
    by_outcome = {
        key: outcome.compare({name: each[key] for name, each in gaps.items()})
        for key in OUTCOMES
    }
    found = by_outcome["primary"]
    for key in ("whole", "guarded"):
        found[[key, f"{key}_answer"]] = by_outcome[key][["mean", "answer"]]
    same = (by_outcome[key]["answer"] == found["answer"] for key in OUTCOMES)
    found["stands"] = np.logical_and.reduce(list(same))
    return found


def families(runs: Runs) -> dict[str, pd.DataFrame]:
    """Returns the primary families by baseline, as far as they are opened.

    The next one is opened only if the one before has a rejection.
    """
    found: dict[str, pd.DataFrame] = {}
    for base, names in rules.FAMILIES.items():
        found[base] = compare(runs, {name: (name, base) for name in names})
        if not found[base]["answer"].isin(("above", "below")).any():
            break
    return found


def points(value: float) -> str:
    """Formats a difference in points.

    Example:
      >>> points(0.031), points(-0.0001)
      ('+3.1', '+0.0')
    """
    return f"{100 * value:+z.1f}"


def spread(values: Sequence[float]) -> str:
    """Formats the mean of seeds and half of its interval, in percent."""
    found = outcome.difference(values)
    return f"{100 * found.mean:.1f} ± {100 * (found.high - found.mean):.1f}"


def answers(found: pd.DataFrame) -> str:
    """Formats a family: the difference by each outcome, and what stands."""
    head = ["method", *OUTCOMES.values(), "interval", "p, Holm", "p, flips", "answer"]
    table = []
    for name, row in found.sort_values("mean", ascending=False).iterrows():
        said = row["answer"] if row["stands"] else f"{row['answer']}, not by all"
        cells = [f"{row['holm']:.2g}", f"{row['flips']:.2g}", said]
        table.append([f"`{name}`", *_three(row), *cells])
    return markdown(head, table)


def explored(found: pd.DataFrame) -> str:
    """Formats pairs, with p by Benjamini and Hochberg."""
    head = ["pair", *OUTCOMES.values(), "interval", "p"]
    table = [[n, *_three(row), f"{row['bh']:.2g}"] for n, row in found.iterrows()]
    return markdown(head, table)


def _three(row: pd.Series) -> list[str]:
    by_outcome = [points(row[key]) for key in ("mean", "whole", "guarded")]
    return [*by_outcome, f"[{points(row['low'])}, {points(row['high'])}]"]


def scores(runs: Runs, names: Sequence[str]) -> pd.DataFrame:
    """Returns the outcomes of methods and seeds, in shares."""
    return pd.DataFrame(
        {
            "method": name,
            "seed": seed,
            "score": outcome.score(reached),
            "whole": reached.tail[-1],
            "last": reached.last[-1],
            "rounds": reached.rounds[-1],
        }
        for name in names
        for seed, reached in runs[name].items()
    )


def summary(records: Records, runs: Runs, names: Sequence[str]) -> str:
    """Formats what methods reach, the best first."""
    table = []
    every = scores(runs, names).groupby("method")
    spent = records.rows.groupby(["label", "seed"])["gbit"].max()
    spent = spent.groupby("label").mean()
    order = every["score"].mean().sort_values(ascending=False).index
    for name in order:
        own = every.get_group(name)
        early = "*" if own["rounds"].max() >= records.most else ""
        table.append(
            [f"`{name}`", *(spread(own[key]) for key in ("score", "whole", "last"))]
            + [f"{spent[name]:.3g}{early}", f"{own['rounds'].mean():.0f}"]
        )
    head = ["method", "score", "tail", "last", "Gbit", "rounds"]
    return markdown(head, table)


def costs(records: Records, names: Sequence[str]) -> str:
    """Formats the median Gbit at which methods reach fixed accuracies."""
    groups = records.rows.groupby(["label", "seed"], sort=False)
    found = {
        name: [
            np.median(
                [
                    outcome.cost_of(evals, target)
                    for (label, _), evals in groups
                    if label == name
                ]
            )
            for target in records.targets
        ]
        for name in names
    }
    order = sorted(names, key=lambda name: found[name][::-1])
    table = [
        [f"`{name}`", *("-" if np.isinf(v) else f"{v:.3g}" for v in found[name])]
        for name in order
    ]
    return markdown(["method", *(f"{100 * t:g} %" for t in records.targets)], table)


def settings(workload: str) -> str:
    """Formats the settings that tuning has chosen."""
    tries, table = run.read(workload, "tries", run.TRIES), []
    for name, chosen in run.read_settings(workload).items():
        chosen, own = dict(chosen), tries[tries["method"] == name]
        rate, momentum = chosen.pop(rules.RATE), chosen.pop(rules.MOMENTUM, None)
        words = [f"`{k.rpartition('.')[2]}={v}`" for k, v in chosen.items()]
        lost = f"{int(own['diverged'].sum())} of {len(own)}"
        cells = [f"`{name}`", f"{rate:g}", f"{momentum or 0:g}", " ".join(words) or "-"]
        table.append([*cells, lost])
    return markdown(["method", "rate", "momentum", "its own", "diverged"], table)


class Source(NamedTuple):
    """The runs in which a method's row is sought."""

    data: str
    runs: Runs
    bases: tuple[str, str, str]  # FedAvg, the small network, a random mask; '' if none
    families: Mapping[str, pd.DataFrame]  # the primary ones, by baseline


def sources() -> tuple[list[Source], list[Source]]:
    """Returns the runs of version 2, and those of version 1."""
    found: tuple[list[Source], list[Source]] = ([], [])
    for key, (data, *bases) in ROWS.items():
        workload = key.removeprefix("v1_")
        first = key != workload
        gbit, personal, _ = EXPLORATORY[workload]
        name = workload.removesuffix("_personal")
        records = read_v1(name, gbit, personal) if first else read_v2(workload)
        runs = records.runs()
        primary = families(runs) if key == "fashion" else {}
        found[first].append(Source(data, runs, tuple(bases), primary))
    return found


def rows(sources: Sequence[Sequence[Source]], names: Sequence[str]) -> str:
    """Formats the rows of methods: of version 2, or of version 1 if it has none there.

    Args:
      sources: by version, the one that is preferred first.
      names: of methods; those of version 1 have a row for each density.

    Returns:
      A table, without columns in which there is no difference.
    """
    columns: dict[str, list[str]] = {}
    for name in names:
        own = [
            [
                (source, label)
                for source in version
                for label in source.runs
                if re.fullmatch(rf"{name}( \.\d+)?", label)
            ]
            for version in sources
        ]
        for source, label in next(filter(None, own), []):
            reached = source.runs[label].values()
            primary = source.families and label in rules.CORE
            cells = {
                "method": f"`{label}`",
                "data": source.data + ("" if primary else ", exploratory"),
                "score, %": spread([outcome.score(each) for each in reached]),
            }
            less = ("less FedAvg", "less a small network", "less a random mask")
            gaps = (_gap(source, label, base) for base in source.bases)
            for column, text in (cells | dict(zip(less, gaps, strict=True))).items():
                columns.setdefault(column, []).append(text)
    columns = {name: texts for name, texts in columns.items() if {*texts} != {"-"}}
    return markdown([*columns], [*zip(*columns.values(), strict=True)])


def _gap(source: Source, label: str, base: str) -> str:
    """Formats a difference, and whether that of a family is not so by all outcomes."""
    if base not in source.runs or base == label:
        return "-"
    found = source.families.get(base, pd.DataFrame())
    primary = label in found.index
    found = found if primary else compare(source.runs, {label: (label, base)})
    row = found.loc[label]
    text = f"{points(row['mean'])} [{points(row['low'])}, {points(row['high'])}]"
    return text + (", not by all outcomes" if primary and not row["stands"] else "")


def draw_rows(root: Path = ROOT) -> None:
    """Redraws the rows on the pages of methods.

    They stand between `<!-- table row_METHOD METHOD ... -->` and `<!-- end -->`.
    """
    found = sources()
    for page in sorted((root / METHODS).glob("*.md")):
        for names in re.findall(r"<!-- table row_([\w ]+) -->", page.read_text()):
            redraw(page, f"row_{names}", rows(found, names.split()))


def draw_forest(panels: Mapping[str, pd.DataFrame], path: Path) -> None:
    """Draws differences with 95 % intervals, a panel for each baseline."""
    names = list(dict.fromkeys(name for each in panels.values() for name in each.index))
    first = next(iter(panels.values()))["mean"]  # its baseline has a difference of 0
    names.sort(key=lambda name: first.get(name, 0.0))
    places = {name: n for n, name in enumerate(names)}
    size = 3.4 * len(panels) + 1.2, 0.2 * len(names) + 1.0
    with figure.canvas(path, size) as canvas:
        grid = canvas.subplots(1, len(panels), sharey=True, squeeze=False).flat
        for ax, (base, found) in zip(grid, panels.items(), strict=True):
            margin = 100 * rules.MARGIN
            ax.axvspan(-margin, margin, color=figure.FAINT, alpha=0.2, lw=0)
            ax.axvline(0, color=figure.INK, lw=0.8)
            for name, row in found.iterrows():
                mark = MARKS[row["answer"] if row.get("stands", True) else "undecided"]
                color = figure.COLORS[mark] if isinstance(mark, int) else mark
                mean, low, high = 100 * row[["mean", "low", "high"]].astype(float)
                ax.plot([low, high], [places[name]] * 2, color=color)
                ax.plot(mean, places[name], "o", color=color, markersize=4)
            ax.set_title(f"less {base}", fontsize=9)
            ax.set_yticks(list(places.values()), list(places))
            ax.set_ylim(-0.7, len(names) - 0.3)
        canvas.supxlabel("difference of the accuracy, points", fontsize=9)


def draw_curves(runs: Runs, names: Sequence[str], gbit: float, path: Path) -> None:
    """Draws accuracies by log bits, with bands of 95 %."""
    budgets = rules.budgets(gbit)
    with figure.axes(path, "traffic, both ways, Gbit", "accuracy, %") as ax:
        for name, color in zip(names, figure.COLORS, strict=False):
            tails = np.array([reached.tail for reached in runs[name].values()])
            found = [outcome.difference(column) for column in 100 * tails.T]
            mean, low, high = np.array([each[:3] for each in found]).T
            color = figure.INK if name == rules.FEDAVG else color
            ax.plot(budgets, mean, color=color, label=name)
            ax.fill_between(budgets, low, high, color=color, alpha=0.15, lw=0)
        ax.set_xscale("log")
        figure.label_powers(ax.xaxis)
        figure.name_lines(ax)


def long_table(runs: Runs, bases: Sequence[str]) -> pd.DataFrame:
    """Returns all outcomes of all methods, and their differences from baselines."""
    found = scores(runs, list(runs)).drop(columns="seed").groupby("method").mean()
    for base in bases:
        own = compare(runs, {name: (name, base) for name in runs if name != base})
        own = own.drop(columns=["holm", "holm_equivalence", "stands"])
        words = {"above", "below"}
        own["answer"] = [  # Benjamini and Hochberg's p instead of Holm's
            ("above" if mean > 0 else "below") if p < rules.LEVEL else "undecided"
            for mean, p in zip(own["mean"], own["bh"], strict=True)
        ]
        own = own.drop(columns=["whole_answer", "guarded_answer"])
        assert set(own["answer"]) <= words | {"undecided"}
        found = found.join(own.add_prefix(f"{base}: "))
    return found.sort_values("score", ascending=False)


def explore(name: str, root: Path) -> None:
    """Writes the long table of a workload of version 1, and draws its figure."""
    gbit, personal, bases = EXPLORATORY[name]
    runs = read_v1(name.removesuffix("_personal"), gbit, personal).runs()
    table = long_table(runs, bases)
    text = table.to_csv(float_format="%.4g")
    files.write_text(root / LONG.relative_to(ROOT) / f"v1_{name}.csv", text)
    panels = {}
    for base in bases:
        own = table.filter(like=f"{base}: ").dropna()
        own = own[~own.index.str.contains("_finetuned")]  # no model before the end
        panels[base] = own.rename(columns=lambda c: c.partition(": ")[2])
    draw_forest(panels, root / FIGURES / f"benchmark_v1_{name}.svg")


def main(root: Path = ROOT) -> None:
    """Draws all tables and figures of the workloads that have records."""
    (root / LONG.relative_to(ROOT)).mkdir(parents=True, exist_ok=True)
    for name in EXPLORATORY:
        explore(name, root)
    for workload in rules.WORKLOADS:
        records = read_v2(workload)
        runs = records.runs()
        if not runs:
            continue
        names = list(runs)
        text = scores(runs, names).to_csv(index=False, float_format="%.6g")
        files.write_text(root / LONG.relative_to(ROOT) / f"{workload}.csv", text)
        bases = [b for b in (*rules.FAMILIES, "fedavg_decay") if b in runs]
        text = long_table(runs, bases).to_csv(float_format="%.4g")
        files.write_text(root / LONG.relative_to(ROOT) / f"{workload}_all.csv", text)
        redraw(root / PAGE, f"{workload}_settings", settings(workload))
        redraw(root / PAGE, f"{workload}_all", summary(records, runs, names))
        redraw(root / PAGE, f"{workload}_costs", costs(records, names))
        drawn = [name for name in DRAWN if name in runs]
        file = root / FIGURES / f"benchmark_{workload}.svg"
        draw_curves(runs, drawn, records.gbit, file)
        pairs = {
            f"`{a}` - `{b}`": (a, b) for a, b in PAIRS[workload] if {a, b} <= {*names}
        }
        table = explored(compare(runs, pairs))
        redraw(root / PAGE, f"{workload}_pairs", table)
        if workload in EARLY:
            table = explored(compare(records.runs(EARLY[workload]), pairs))
            redraw(root / PAGE, f"{workload}_early", table)
        if workload == "fashion" and set(names) >= {*rules.FAMILIES, *rules.CORE}:
            found = families(runs)
            for base, table in found.items():
                redraw(root / PAGE, f"{workload}_{base}", answers(table))
            draw_forest(found, root / FIGURES / f"benchmark_{workload}_forest.svg")
    draw_rows(root)


if __name__ == "__main__":
    main()
