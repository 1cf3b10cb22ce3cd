"""Makes the tables and figures of docs/benchmark.md from benchmarks/results/v1/.

    python -m benchmarks.v1.page

Tables stand between `<!-- table NAME -->` and `<!-- end -->`. The accuracy within a
budget is that of the last evaluation whose cost does not exceed it, never the best one.
A run that ended earlier counts with its last model, and one that diverged with the
accuracy of chance. Budgets are twentieths of what the whole budget of bits, or FedAvg
on another axis, costs.

Differences are paired by seed and have 95 % intervals of Student's t, whose p-values
are corrected by Holm's method (Scandinavian Journal of Statistics, 1979) over all
comparisons of a column.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from benchmarks.measure import markdown
from benchmarks.pages import ROOT, redraw
from benchmarks.v1 import rules, run
from sparsefl_jax.report import figure

PAGE, FIGURES = "docs/benchmark.md", "docs/_static"
BASELINE, PERSONAL = "fedavg", "fedavg_own"  # of common models, of personal ones
RANDOM = "pdst"  # its mask is drawn once and stays
PARTS, SLACK = 20, 1.005  # a pilot may be half a percent off
CHANCE = 0.1  # all data sets have ten classes
AXES = {  # columns of the records; a unit, and how many of it are one of the column's
    "gbit": ("Gbit both ways", 1.0),
    "gbit_up": ("Gbit up", 1.0),
    "pflop": ("GFLOP", 1e6),
    "hours": ("min", 60.0),
}
SHARES = (0.25, 0.5, 1.0)  # of FedAvg's whole accuracy gain, as targets
KEYS = ["method", "density"]


def whole(workload: str, rows: pd.DataFrame, axis: str) -> pd.Series:
    """Returns the budget by seed: that of the rules, or what FedAvg spends."""
    if axis == "gbit":
        return pd.Series(rules.WORKLOADS[workload].gbit, rows["seed"].unique())
    return rows[rows["method"] == BASELINE].groupby("seed")[axis].max()


def within(rows: pd.DataFrame, axis: str, budget: float | pd.Series) -> pd.Series:
    """Returns the accuracy of the last model within a budget, by point and seed.

    Args:
      rows: of records, see `run.RECORDS`.
      axis: the column of the cost.
      budget: the largest cost, in the column's units, of all seeds or by seed.

    Returns:
      A share for every run, indexed by method, density and seed: `CHANCE` for one that
      has diverged, NaN where the first evaluation costs more.

    Example:
      >>> rows = [("a", 0.2, 0, 1.0, 0.5), ("a", 0.2, 0, 2.0, 0.4)]
      >>> rows = pd.DataFrame(rows, columns=[*KEYS, "seed", "gbit", "accuracy"])
      >>> within(rows, "gbit", 3.0).tolist(), within(rows, "gbit", 0.5).isna().all()
      ([0.4], True)
    """
    keys = [*KEYS, "seed"]
    if isinstance(budget, pd.Series):
        budget = rows["seed"].map(budget)
    paid = rows[rows[axis] <= budget * SLACK].groupby(keys)["accuracy"].last()
    every, lost = (
        pd.MultiIndex.from_frame(part[keys].drop_duplicates())
        for part in (rows, rows[rows["accuracy"].isna()])
    )
    found = paid.reindex(every)
    found[lost] = CHANCE
    return found


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Returns the mean over seeds and half of its 95 % interval, NaN for one seed."""
    values = np.array(list(values), float)
    if len(values) < 2:
        return float(values.mean()), np.nan
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1)
    return float(values.mean()), float(half / np.sqrt(len(values)))


def differences(
    accuracies: Mapping[str, pd.Series], pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[float, float, float, float]]:
    """Returns paired differences with their 95 % intervals, and p by Holm.

    Args:
      accuracies: of each method, by seed.
      pairs: names of two methods.

    Returns:
      By pair; those are absent of which a seed lacks one, or with fewer than two seeds.
    """
    found, p_values = {}, []
    for one, other in pairs:
        gaps = accuracies[one] - accuracies[other]
        if len(gaps) > 1 and gaps.notna().all():
            tested = ttest_1samp(gaps, 0.0)
            found[one, other] = gaps.mean(), *tested.confidence_interval()
            p_values.append(float(tested.pvalue) if gaps.any() else 1.0)  # t is 0 / 0
    return {
        pair: (*map(float, each), p)
        for (pair, each), p in zip(found.items(), holm(p_values), strict=True)
    }


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


def groups(
    accuracies: Mapping[str, pd.Series], level: float = 0.05
) -> tuple[pd.Series, list[list[str]]]:
    """Ranks methods, and finds those that are not shown to differ.

    Args:
      accuracies: of each method, by seed.
      level: of Holm's corrected p-values over all pairs.

    Returns:
      Mean ranks over seeds, 1 for the best, in order; and the largest groups of
      neighbours in this order of which no pair differs.
    """
    table = pd.DataFrame(dict(accuracies))
    ranks = table.rank(axis=1, ascending=False).mean().sort_values(kind="stable")
    names = list(ranks.index)
    tested = differences(accuracies, list(itertools.combinations(names, 2)))
    alike = lambda part: all(  # noqa: E731
        tested[pair][3] >= level for pair in itertools.combinations(part, 2)
    )
    found: list[list[str]] = []
    for start in range(len(names)):
        end = max(e for e in range(start + 1, len(names) + 1) if alike(names[start:e]))
        if not found or names[end - 1] not in found[-1]:
            found.append(names[start:end])
    return ranks, [group for group in found if len(group) > 1]


def spread(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns twenty evaluations of each run in equal steps, or all if it has fewer."""
    runs = rows.groupby([*KEYS, "seed"])
    number, count = runs.cumcount(), runs["seed"].transform("size")
    return rows[(number + 1) * PARTS // count > number * PARTS // count]


def cost_of(rows: pd.DataFrame, axis: str, target: float | pd.Series) -> pd.Series:
    """Returns the least cost at which each run reaches an accuracy.

    Twenty evaluations of each run are looked at, at equal intervals. The cost is
    infinite for a run that never reaches it, as one that diverged.

    Args:
      rows: of records.
      axis: the column of the cost.
      target: the accuracy, for all seeds or by seed.

    Example:
      >>> rows = [("a", 0.2, 0, 1.0, 0.5), ("a", 0.2, 0, 2.0, 0.7)]
      >>> rows = pd.DataFrame(rows, columns=[*KEYS, "seed", "gbit", "accuracy"])
      >>> cost_of(rows, "gbit", 0.6).tolist(), cost_of(rows, "gbit", 0.8).tolist()
      ([2.0], [inf])
    """
    keys = [*KEYS, "seed"]
    every = pd.MultiIndex.from_frame(rows[keys].drop_duplicates())
    rows = spread(rows)
    if isinstance(target, pd.Series):
        target = rows["seed"].map(target)
    reached = rows[rows["accuracy"] >= target].groupby(keys)[axis].min()
    return reached.reindex(every, fill_value=np.inf)


def targets(workload: str, rows: pd.DataFrame) -> list[pd.Series]:
    """Returns the accuracies of FedAvg by seed, within three shares of its budget."""
    own = spread(rows[rows["method"] == BASELINE].dropna(subset="accuracy"))
    budget = rules.WORKLOADS[workload].gbit
    found = [within(own, "gbit", share * budget) for share in SHARES]
    return [each.droplevel(KEYS) for each in found]


def profile(ratios: pd.DataFrame, most: Sequence[float]) -> pd.DataFrame:
    """Returns the share of tasks that each method solves within multiples of the best.

    Args:
      ratios: costs, a row for each task and a column for each method; inf for a miss.
      most: the multiples.

    Example:
      >>> costs = pd.DataFrame({"a": [1.0, 4.0], "b": [2.0, np.inf]})
      >>> profile(costs, (1, 2)).to_dict("list")
      {'a': [1.0, 1.0], 'b': [0.0, 0.5]}
    """
    ratios = ratios.div(ratios.min(axis=1), axis=0)
    return pd.DataFrame([(ratios <= tau).mean() for tau in most], index=list(most))


def split(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the records of common models, and those of personal ones."""
    personal = rows["personal"].astype(bool)
    return rows[~personal], rows[personal]


def label(method: str, density: float) -> str:
    """Returns the name of a point, such as 'spdst .05'."""
    return method if density == 1.0 else f"{method} {density:g}".replace(" 0.", " .")


def by_point(values: pd.Series) -> dict[str, pd.Series]:
    """Returns values by the label of a point, each by seed."""
    return {label(*key): part.droplevel(KEYS) for key, part in values.groupby(KEYS)}


def points(workload: str, rows: pd.DataFrame, shown: pd.DataFrame) -> str:
    """Formats what every point reaches within each budget, the best first.

    Args:
      workload: its name.
      rows: all records of the workload, among which FedAvg's set the budgets.
      shown: those of the table.
    """
    totals = {axis: whole(workload, rows, axis) for axis in AXES}
    columns = [("gbit", 0.25), ("gbit", 0.5), *((axis, 1.0) for axis in AXES)]
    reached = [
        by_point(within(shown, axis, share * totals[axis])) for axis, share in columns
    ]
    means = {name: -values.mean() for name, values in reached[-4].items()}  # by Gbit
    names = {label(*key): key for key in shown.groupby(KEYS).groups}
    names = sorted(names.items(), key=lambda item: means.get(item[0], 0.0))
    head = ["method", "density"]
    for axis, share in columns:
        unit, scale = AXES[axis]
        head.append(f"{scale * share * totals[axis].mean():.3g} {unit}")
    head += ["Gbit", "alive", "rounds", "positions", "seeds"]
    table = []
    for name, (method, density) in names:
        own = shown[(shown["method"] == method) & (shown["density"] == density)]
        last = own.groupby("seed").last()
        row = [f"`{method}`", "-" if density == 1.0 else f"{density:g}"]
        lost = int(own["accuracy"].isna().sum())
        if lost < len(last):
            row += [cell(each[name]) for each in reached]
            spent = last["gbit"].sum()
            free = 1 - last["gbit_values"].sum() / spent if spent else 0.0
            row += [f"{last['gbit'].mean():.3g}", f"{last['alive'].mean():.2g}"]
            row += [f"{last['rounds'].mean():.0f}", f"{100 * free:.0f} %"]
        row += ["-"] * (len(head) - 1 - len(row))
        table.append([*row, f"{len(last)}" + f" ({lost} diverged)" * bool(lost)])
    return markdown(head, table)


def cell(values: Iterable[float]) -> str:
    """Formats accuracies of seeds as mean and half of the interval, in percent."""
    mean, half = interval(values)
    if np.isnan(mean):
        return "-"
    return f"{100 * mean:.1f}" + (f" ± {100 * half:.1f}" if half == half else "")


def against(
    workload: str, rows: pd.DataFrame, shown: pd.DataFrame, base: str = BASELINE
) -> str:
    """Formats how far every point is from a baseline within the whole budgets."""
    head, columns = ["method"], []
    for axis, (unit, _) in AXES.items():
        accuracies = by_point(within(shown, axis, whole(workload, rows, axis)))
        pairs = [(name, base) for name in accuracies if name != base]
        head.append(unit)
        columns.append(differences(accuracies, pairs))
    names = dict.fromkeys(name for column in columns for name, _ in column)
    table = [
        [f"`{name}`", *(difference(column.get((name, base))) for column in columns)]
        for name in names
    ]
    return markdown(head, table)


def against_random(workload: str, rows: pd.DataFrame) -> str:
    """Formats how far methods are from PDST at their density, within all bits."""
    budget, columns = whole(workload, rows, "gbit"), []
    for density in rules.DENSITIES:
        reached = within(rows[rows["density"] == density], "gbit", budget)
        by_method = reached.groupby("method", sort=False)
        accuracies = {name: part.droplevel(KEYS) for name, part in by_method}
        pairs = [(name, RANDOM) for name in accuracies if name != RANDOM]
        columns.append(differences(accuracies, pairs))
    names = dict.fromkeys(name for column in columns for name, _ in column)
    table = [
        [f"`{name}`", *(difference(column.get((name, RANDOM))) for column in columns)]
        for name in names
    ]
    return markdown(["method", *map(str, rules.DENSITIES)], table)


def difference(found: tuple[float, float, float, float] | None) -> str:
    """Formats a difference in points, its interval, and p.

    Example:
      >>> difference((0.03, -0.036, 0.096, 0.19)), difference(None)
      ('+3.0 [-3.6, +9.6], p = 0.19', '-')
    """
    if found is None:
        return "-"
    mean, low, high = (100 * value for value in found[:3])
    p = "p < 0.01" if found[3] < 0.01 else f"p = {found[3]:.2f}"
    return f"{mean:+z.1f} [{low:+z.1f}, {high:+z.1f}], {p}"


def costs(workload: str, rows: pd.DataFrame, shown: pd.DataFrame) -> str:
    """Formats the median costs at which points reach FedAvg's accuracies.

    They are Gbit for all targets, and all costs for the highest one. A run that missed
    a target with budget left, at the limit of rounds, has the cost up to there.
    """
    goals = targets(workload, rows)
    columns = [("gbit", goal) for goal in goals]
    columns += [(axis, goals[-1]) for axis in AXES if axis != "gbit"]
    head, medians, spent = ["method"], [], []
    for axis, goal in columns:
        unit, scale = AXES[axis]
        head.append(f"{100 * goal.mean():.1f} %: {unit}")
        medians.append(scale * cost_of(shown, axis, goal).groupby(KEYS).median())
        spent.append(scale * shown.groupby([*KEYS, "seed"])[axis].max())
    spent = [each.groupby(KEYS).median() for each in spent]
    early = spent[0] < 0.95 * rules.WORKLOADS[workload].gbit
    missed = [each.map("> {:.3g}".format).where(early, "-") for each in spent]
    hardest = medians[len(goals) - 1 :: -1]
    order = pd.concat(hardest, axis=1, keys=range(len(goals)))
    table = [
        [f"`{label(*key)}`"]
        + [
            none[key] if np.isinf(each[key]) else f"{each[key]:.3g}"
            for each, none in zip(medians, missed, strict=True)
        ]
        for key in order.sort_values(list(order.columns), kind="stable").index
    ]
    return markdown(head, table)


def tuning(workload: str) -> str:
    """Formats the settings that tuning chose beside the defaults, and all scores.

    A star marks a setting beyond which no value was tried.
    """
    tries, table = run.read_tries(workload), []
    for method, rows in tries.groupby("method", sort=False):
        lost = f"{rows['score'].isna().sum()} of {len(rows)}"
        if rows[rows["share"] == rows["share"].max()]["score"].isna().all():
            table.append([f"`{method}`", *["-"] * 6, lost])
            continue
        settings = run.best(tries, method)
        stars = at_edges(settings, list(map(json.loads, rows["settings"])))
        rate, momentum = settings.pop(rules.RATE), settings.pop(rules.MOMENTUM, None)
        usual = default_settings(workload, method, settings)
        own = " ".join(_plainly(settings, stars)) or "-"
        first = rows[rows["share"] == rows["share"].min()]["score"]
        scores = 100 * first.dropna().sort_values(ascending=False)
        table.append(
            [f"`{method}`", f"{rate:g}" + "*" * (rules.RATE in stars)]
            + [f"{momentum or 0:g}", own, " ".join(_plainly(usual)) or "-"]
            + [f"{scores.iloc[0]:.1f}", f"{scores.iloc[-1]:.1f}", lost]
        )
    head = ["method", "rate", "momentum", "its own", "defaults"]
    return markdown([*head, "best", "worst", "diverged"], table)


def at_edges(chosen: Mapping, tried: Sequence[Mapping]) -> list[str]:
    """Returns the fields of which more than two values were tried, none beyond.

    Example:
      >>> at_edges({"a": 3, "b": 2}, [{"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 3}])
      ['a']
    """
    values = {
        field: {each[field] for each in tried if each.get(field) is not None}
        for field in chosen
    }
    return [
        field
        for field, each in values.items()
        if len(each) > 2 and chosen[field] in (min(each), max(each))
    ]


def _plainly(settings: Mapping, stars: Sequence[str] = ()) -> list[str]:
    return [
        f"`{key.rpartition('.')[2]}={value}`" + "*" * (key in stars)
        for key, value in settings.items()
    ]


def default_settings(workload: str, name: str, fields: Iterable[str]) -> dict:
    """Returns the defaults of a method's fields; none for an entry of another file."""
    method = rules.METHODS[workload].get(name)
    if method is None:
        return {}
    config = rules.configuration(workload, name, method._replace(fields={}), {})
    return {
        field: config[section][key]
        for field in fields
        for section, _, key in [field.partition(".")]
        if config[section].get(key) is not None
    }


def said(workload: str, rows: pd.DataFrame) -> str:
    """Returns what a workload's seeds can show, its time, its data's checksum."""
    accuracies = by_point(within(rows, "gbit", whole(workload, rows, "gbit")))
    pairs = [(name, BASELINE) for name in accuracies if name != BASELINE]
    tested = differences(accuracies, pairs)
    half = 100 * np.median([(high - low) / 2 for _, low, high, _ in tested.values()])
    seeds = rules.WORKLOADS[workload].seeds
    alone, first = student.ppf([0.975, 1 - 0.025 / len(pairs)], seeds - 1)
    data = rows[rows["seed"] == 0]["data"].dropna().iloc[0]
    every, tries = run.read_records(workload), run.read_tries(workload)
    took = every.groupby([*KEYS, "seed"])["seconds"].last().sum() / 3600
    return (
        f"With {seeds} seeds, half of the interval of a difference from FedAvg is "
        f"{half:.1f} points in the median of {len(pairs)} comparisons. After Holm's "
        f"correction, the clearest of so many differences has to be "
        f"{half * first / alone:.1f} points to be significant at 5 %, if it varies as "
        f"much. The runs took {took:.1f} hours and the tries "
        f"{tries['seconds'].sum() / 3600:.1f}, without starts and pilots. The samples "
        f"and the partition of seed 0 have the checksum `{data}`."
    )


def draw_curves(workload: str, rows: pd.DataFrame, path: Path) -> None:
    """Draws each method's accuracy by bits, with bands, beside FedAvg's mean."""
    budgets = rules.WORKLOADS[workload].gbit * np.arange(1, PARTS + 1) / PARTS
    reached = {b: by_point(within(rows, "gbit", b)) for b in budgets}
    names = [n for n in dict.fromkeys(rows["method"]) if n != BASELINE]
    high, means = -(-len(names) // 4), []
    with figure.canvas(path, (9.0, 1.5 * high + 0.5)) as canvas:
        grid = canvas.subplots(high, 4, sharex=True, sharey=True, squeeze=False)
        for ax in grid.flat[len(names) :]:
            ax.set_axis_off()
        for ax, name in zip(grid.flat, names, strict=False):
            ax.set_title(name, fontsize=9)
            own = rows[rows["method"] == name]["density"].drop_duplicates()
            lines = [(BASELINE, BASELINE if ax is grid.flat[0] else "", figure.FAINT)]
            for density, color in zip(own, figure.COLORS, strict=False):
                words = f"{density:g}" if density < 1 else ""
                lines.append((label(name, density), words, color))
            for line, words, color in lines:
                spread = np.array([interval(reached[b][line]) for b in budgets])
                mean, half = 100 * spread.T
                means.append(mean)
                ax.plot(budgets, mean, color=color, label=words or None)
                if line != BASELINE:
                    band = mean - half, mean + half
                    ax.fill_between(budgets, *band, color=color, alpha=0.2)
        grid.flat[0].set_ylim(np.nanmin(means) - 5, np.nanmax(means) + 5)
        for ax in grid.flat[: len(names)]:
            figure.name_lines(ax)
        canvas.supxlabel("traffic, both ways, Gbit")
        canvas.supylabel("accuracy, %")


def draw_ranks(workload: str, rows: pd.DataFrame, path: Path) -> None:
    """Draws mean ranks at density .05 or none; bars join what does not differ."""
    shown = rows[rows["density"].isin((rules.TUNING_DENSITY, 1.0))]
    reached = by_point(within(shown, "gbit", whole(workload, rows, "gbit")))
    seeds = rules.WORKLOADS[workload].seeds
    ranks, alike = groups({n: v for n, v in reached.items() if v.count() == seeds})
    with figure.canvas(path, (6.0, 0.2 * len(ranks) + 0.8)) as canvas:
        ax = canvas.subplots()
        places = {name: -place for place, name in enumerate(ranks.index)}
        ax.plot(ranks, list(places.values()), "o", color=figure.COLORS[0])
        for name, rank in ranks.items():
            ax.annotate(name, (rank, places[name]), (6, -3), textcoords="offset points")
        for turn, group in enumerate(alike):
            ends = [places[group[0]] + 0.3, places[group[-1]] - 0.3]
            ax.plot([-0.5 - 0.3 * (turn % 4)] * 2, ends, color=figure.INK)
        ax.set(xlabel="mean rank, 1 is the best", yticks=[])
        ax.set_xticks([1, *range(5, len(ranks) + 1, 5)])


def draw_profile(workloads: Sequence[str], path: Path) -> None:
    """Draws the share of targets that methods reach within multiples of the least.

    Methods with a density have the one that they are tuned at.
    """
    tasks = {}
    for workload in workloads:
        rows, _ = split(run.read_records(workload))
        rows = rows[rows["density"].isin((rules.TUNING_DENSITY, 1.0))]
        for share, goal in zip(SHARES, targets(workload, rows), strict=True):
            cost = cost_of(rows, "gbit", goal)
            tasks[workload, share] = cost.groupby("method").median()
    table = pd.DataFrame(tasks).T[list(rules.CORE)]
    most = np.geomspace(1, 32, 60)
    with figure.axes(path, "cost, times the least", "share of targets") as ax:
        for name, line in profile(table, most).items():
            color = {"color": figure.INK} if name == BASELINE else {}
            ax.step(most, line, where="post", label=name, **color)
        ax.set_xscale("log")
        figure.label_powers(ax.xaxis)
        figure.name_lines(ax)


def main(root: Path = ROOT) -> None:
    """Draws all tables and figures of the workloads that have records."""
    known = [
        workload
        for workload in rules.WORKLOADS
        if {BASELINE} < set(split(run.read_records(workload))[0]["method"])
    ]
    for workload in known:
        rows = run.read_records(workload)
        common, personal = split(rows)
        tables = {"common": (common, BASELINE), "personal": (personal, PERSONAL)}
        drawn = {"seeds": said(workload, common)}
        if rules.WORKLOADS[workload].tries:
            drawn["tuning"] = tuning(workload)
        for name, (shown, base) in tables.items():
            if len(shown):
                drawn[name] = points(workload, rows, shown)
            if base in set(shown["method"]):
                drawn[f"{name}_against"] = against(workload, rows, shown, base)
        if RANDOM in set(common["method"]):
            drawn["random"] = against_random(workload, common)
        drawn["targets"] = costs(workload, rows, common)
        for name, text in drawn.items():
            redraw(root / PAGE, f"{workload}_{name}", text)
        folder = root / FIGURES
        few = common["method"].nunique() <= len(rules.CORE) + 1  # one figure has room
        core = common["method"].isin(rules.CORE) | few
        dense = common["density"] == 1.0
        parts = {"": core, "_others": ~core & ~dense, "_no_density": ~core & dense}
        for ending, part in parts.items():
            if part.any():
                shown = common[part | (common["method"] == BASELINE)]
                file = folder / f"benchmark_{workload}{ending}.svg"
                draw_curves(workload, shown, file)
        draw_ranks(workload, common, folder / f"benchmark_{workload}_ranks.svg")
    whole_core = [
        workload
        for workload in known
        if rules.WORKLOADS[workload].tries
        and rules.CORE.keys() <= set(run.read_records(workload)["method"])
    ]
    if whole_core:
        draw_profile(whole_core, root / FIGURES / "benchmark_profile.svg")


if __name__ == "__main__":
    main()
