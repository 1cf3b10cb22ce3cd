"""Draws a comparison: curves over each cost, fronts, and the spread over clients.

A method has a colour. Its variants, such as densities, differ in the line style; where
one number alone differs, colours follow it from dark to light. All lines differ in the
marker, so that they can be distinguished without colours.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.report import costs, figure
from sparsefl_jax.report.comparison import VALIDATION, Comparison
from sparsefl_jax.report.costs import Axis
from sparsefl_jax.report.differences import compare_fields
from sparsefl_jax.report.figure import COLORS, FAINT
from sparsefl_jax.report.groups import Group, method_of

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
_DASHES = ((5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 2), (3, 1, 1, 1, 1, 1))
_STYLES = ("-", *((0, dashes) for dashes in _DASHES))
_LOG_FROM = 8.0  # how much the costs must differ for a logarithmic axis
_ALIKE = 1.02  # costs that differ less are the same
_FITTED = ("num_rounds", "eval_every", "algorithm.rounds")  # which a budget sets


def swept(groups: Sequence[Group]) -> tuple[str, list[float]] | None:
    """Returns the one number in which groups of a method differ, and its values.

    Fields with the same values in every group, such as the densities of two stages,
    are one; its name is the shortest of theirs. Rounds that a budget sets do not count.
    It is None below three values.

    Example:
      >>> from pathlib import Path
      >>> from sparsefl_jax.report.load import Run
      >>> configs = [{"algorithm": {"name": "a", "mu": mu}} for mu in (0.1, 1.0, 10.0)]
      >>> runs = [Run(Path("a"), [], [], [0], {}, config, None) for config in configs]
      >>> swept([Group("", [run]) for run in runs])
      ('algorithm.mu', [0.1, 1.0, 10.0])
    """
    every = compare_fields(groups).differing
    differing = {name: every[name] for name in every if name not in _FITTED} or every
    try:
        (values,) = {tuple(map(float, texts)) for texts in differing.values()}
    except ValueError:  # several fields or none, or no numbers
        return None
    return (min(differing, key=len), list(values)) if len({*values}) >= 3 else None


def looks(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Returns the style of each group's line and points, as matplotlib takes it.

    Example:
      >>> from pathlib import Path
      >>> from sparsefl_jax.report.load import Run
      >>> configs = [{"algorithm": {"name": name}} for name in "aba"]
      >>> runs = [Run(Path("a"), [], [], [0], {}, config, None) for config in configs]
      >>> a, b, c = looks([Group("", [run]) for run in runs])
      >>> a["color"] == c["color"] != b["color"], a["linestyle"] != c["linestyle"]
      (True, True)
    """
    kinds: list[Any] = [method_of(group.runs[0]) for group in groups]
    order, palette, variants, found = list(dict.fromkeys(kinds)), COLORS, {}, []
    if (sweep := swept(groups)) is not None:
        import matplotlib

        _, kinds = sweep
        order = sorted({*kinds})
        shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(order)))
        palette = tuple(map(matplotlib.colors.to_hex, shades))
    for i, kind in enumerate(kinds):
        color = palette[order.index(kind) % len(palette)]
        variants[color] = variants.get(color, -1) + 1
        style = _STYLES[variants[color] % len(_STYLES)]
        mark = MARKERS[i % len(MARKERS)]
        found.append({"color": color, "linestyle": style, "marker": mark})
    return found


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Draws every figure of a comparison that shows anything.

    These are `sweep` where one number differs; `accuracy_by_AXIS` and, where costs
    differ, `front_AXIS`; `front_density` where densities do; `clients_median` and
    `clients_p10` where they are recorded.

    Args:
      comparison: as `compare` made it.
      folder: of the files.

    Returns:
      The SVG files.
    """
    paths = _sweep(comparison, folder / "sweep.svg")
    fronts = [*comparison.axes, costs.axis("density")]
    for axis in comparison.axes:
        paths += _curves(
            comparison, axis, "accuracy", folder / f"accuracy_by_{axis.name}.svg"
        )
    for axis in fronts:
        paths += _front(comparison, axis, folder / f"front_{axis.name}.svg")
    for name in ("median", "p10"):
        value, path = f"client_{name}", folder / f"clients_{name}.svg"
        paths += _curves(comparison, costs.axis("rounds"), value, path)
    return paths


def band(group: Group, name: str, value: str) -> Any:
    """Returns the mean over seeds at the rounds that all of a group's runs evaluated.

    Args:
      group: of a comparison.
      name: of the axis of cost.
      value: the column of shares, see `costs.progress`.

    Returns:
      A DataFrame, a row for each round: the means `cost` and `share`, and the sample
      `deviation` of the share, 0 of a single run.
    """
    import pandas as pd

    runs = [t.reindex(columns=[name, value]).dropna() for t in group.progress]
    by_round = pd.concat(runs).set_axis(["cost", "share"], axis=1).groupby(level=0)
    found = by_round.mean().assign(deviation=by_round["share"].std().fillna(0.0))
    return found[by_round.size() == len(runs)]


def _sweep(comparison: Comparison, path: Path) -> list[Path]:
    """Draws the last accuracies over the one number that differs, if one does."""
    if (sweep := swept(comparison.groups)) is None:
        return []
    name, values = sweep
    lines = comparison.lines.reindex(range(len(values))).set_axis(values).sort_index()
    scale, label = figure.scale_of(comparison.measure)
    with figure.axes(path, name, label) as ax:
        kinds = (VALIDATION, "validation", COLORS[2]), ("accuracy", "test", COLORS[0])
        for value, split, color in kinds:
            if value in lines:
                found = scale * lines[value].fillna({"std": 0})
                style = {"color": color, "marker": "o", "label": split}
                ax.errorbar(found.index, found["mean"], found["std"], **style)
        low, middle, high = np.quantile(values, [0, 0.5, 1])
        # Whether the middle lies at the ends' geometric mean or at half of their sum.
        if low > 0 and middle**2 < np.sqrt(low * high) * (low + high) / 2:
            ax.set_xscale("log")
            figure.label_powers(ax.xaxis)
        figure.name_lines(ax)
    return [path]


def _curves(comparison: Comparison, axis: Axis, value: str, path: Path) -> list[Path]:
    """Draws a value of the evaluations over a cost, if there is any."""
    bands = [band(group, axis.name, value) for group in comparison.groups]
    ends = [each["cost"].max() for each in bands if len(each)]
    scale, label = figure.scale_of(comparison.measure)
    if not ends:
        return []
    with figure.axes(path) as ax:
        styles = looks(comparison.groups)
        for group, each, style in zip(comparison.groups, bands, styles, strict=True):
            if not len(each):
                continue
            x, y, spread = (each * [axis.scale, scale, scale]).to_numpy().T
            style = style | ({"marker": ""} if len(x) > 25 else {})
            ax.plot(x, y, label=group.label, **style)
            low, high, color = y - spread, y + spread, style["color"]
            ax.fill_between(x, low, high, color=color, alpha=0.14, linewidth=0)
        label_costs(ax, axis, ends, label)
        if ax.get_xscale() == "linear":
            ax.set_xlim(left=0)
        figure.name_lines(ax)
    return [path]


def _front(comparison: Comparison, axis: Axis, path: Path) -> list[Path]:
    """Draws the last accuracy against a cost or a density, if they differ."""
    columns = [(axis.name, "mean"), ("accuracy", "mean")]
    found = comparison.lines[columns].dropna().set_axis(["cost", "share"], axis=1)
    ends = found["cost"]
    if not ends.max() > _ALIKE * ends.min():
        return []
    with figure.axes(path) as ax:
        gains = found * [1, comparison.sign]
        kept = costs.on_front(list(gains.itertuples(index=False, name=None)))
        scale, label = figure.scale_of(comparison.measure)
        found *= [axis.scale, scale]
        front = found[kept].sort_values(["cost", "share"])
        ax.plot(front["cost"], front["share"], color=FAINT, lw=1, zorder=1)
        styles = looks(comparison.groups)
        for (line, x, y), best in zip(found.itertuples(name=None), kept, strict=True):
            style = styles[line] | {"linestyle": "none", "markersize": 7.5}
            if not best:
                style |= {"color": FAINT, "markerfacecolor": "none"}
            ax.plot(x, y, label=comparison.groups[line].label, **style)
        label_costs(ax, axis, list(ends), label)
        figure.name_lines(ax)
    return [path]


def label_costs(ax, axis: Axis, ends: Sequence[float], label: str) -> None:
    """Labels the axes of a cost and an accuracy, with logarithmic costs if they differ.

    Args:
      ax: matplotlib axes, on which everything has been drawn.
      axis: of the cost.
      ends: the last cost of each line.
    """
    from matplotlib.ticker import EngFormatter

    ax.set(xlabel=axis.title, ylabel=label)
    if not axis.unit:
        return figure.whole_numbers(ax.xaxis)
    ax.set_xlabel(f"{axis.title} [{axis.unit}]")
    if max(ends) >= _LOG_FROM * min(ends) > 0:
        ax.set_xscale("log")
        figure.label_powers(ax.xaxis)
    if axis.unit in ("bit", "FLOP"):
        ax.xaxis.set_major_formatter(EngFormatter())
