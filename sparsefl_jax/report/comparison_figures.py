"""Draws a comparison: curves over each cost, fronts, and the spread over clients.

A method has a colour. Its variants, such as densities, differ in the line style. All
lines differ in the marker, so that they can be distinguished without colours.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsefl_jax.core.formats import format_si
from sparsefl_jax.report import costs, figure
from sparsefl_jax.report.comparison import Comparison
from sparsefl_jax.report.costs import Axis
from sparsefl_jax.report.figure import COLORS, FAINT
from sparsefl_jax.report.groups import Group, method_of

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">", "h", "*")
_DASHES = ((5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 2), (3, 1, 1, 1, 1, 1))
_STYLES = ("-", *((0, dashes) for dashes in _DASHES))
_SIZE = (5.8, 3.6)  # inches
_LOG_FROM = 8.0  # how much the costs must differ for a logarithmic axis
_ALIKE = 1.02  # costs that differ less are the same


class Look(NamedTuple):
    """The style of a group's line and points, as matplotlib takes it."""

    color: str
    linestyle: Any
    marker: str


def looks(groups: Sequence[Group]) -> list[Look]:
    """Returns the look of each group.

    Example:
      >>> from pathlib import Path
      >>> from sparsefl_jax.report.load import Run
      >>> configs = [{"algorithm": {"name": name}} for name in "aba"]
      >>> runs = [Run(Path("a"), [], [], [0], {}, config, None) for config in configs]
      >>> a, b, c = looks([Group("", [run]) for run in runs])
      >>> a.color == c.color != b.color, a.linestyle == b.linestyle != c.linestyle
      (True, True)
    """
    colors, variants, found = {}, {}, []
    for i, group in enumerate(groups):
        method = method_of(group.runs[0])
        color = COLORS[colors.setdefault(method, len(colors)) % len(COLORS)]
        variants[color] = variants.get(color, -1) + 1
        style = _STYLES[variants[color] % len(_STYLES)]
        found.append(Look(color, style, MARKERS[i % len(MARKERS)]))
    return found


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Draws every figure of a comparison that shows anything.

    These are `accuracy_by_AXIS` and, where costs differ, `front_AXIS`;
    `front_density` where densities do; `clients_median` and `clients_p10` where they
    are recorded.

    Args:
      comparison: as `compare` made it.
      folder: of the files.

    Returns:
      The SVG files.
    """
    paths, fronts = [], [*comparison.axes, costs.axis("density")]
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


def _curves(comparison: Comparison, axis: Axis, value: str, path: Path) -> list[Path]:
    """Draws a value of the evaluations over a cost, if there is any."""
    groups = comparison.groups
    bands = [band(group, axis.name, value) for group in groups]
    if not any(map(len, bands)):
        return []
    with figure.axes(path, size=_SIZE) as ax:
        scale = scale_costs(ax, [b["cost"].max() for b in bands if len(b)], axis)
        styles = looks(groups)
        for group, each, look in zip(groups, bands, styles, strict=True):
            if not len(each):
                continue
            x, y, spread = (each * [scale, 100, 100]).to_numpy().T
            style = look._replace(marker=look.marker if len(x) <= 25 else "")._asdict()
            ax.plot(x, y, label=group.label, **style)
            ax.fill_between(
                x, y - spread, y + spread, color=look.color, alpha=0.14, linewidth=0
            )
        if ax.get_xscale() == "linear":
            ax.set_xlim(left=0)
        else:
            figure.label_powers(ax.xaxis)
        if axis.name == "rounds":
            figure.whole_numbers(ax.xaxis)
        figure.name_lines(ax)
    return [path]


def _front(comparison: Comparison, axis: Axis, path: Path) -> list[Path]:
    """Draws the last accuracy against a cost or a density, if they differ."""
    columns = [(axis.name, "mean"), ("accuracy", "mean")]
    found = list(comparison.lines[columns].dropna().itertuples(name=None))
    ends = [x for _, x, _ in found]
    if not ends or max(ends) < _ALIKE * min(ends) or not max(ends):
        return []
    with figure.axes(path, size=_SIZE) as ax:
        scale = scale_costs(ax, ends, axis)
        kept = costs.on_front([(x, y) for _, x, y in found])
        front = itertools.compress(found, kept)
        best = sorted((scale * x, 100 * y) for _, x, y in front)
        ax.plot(*zip(*best, strict=True), color=FAINT, lw=1, zorder=1)
        styles = looks(comparison.groups)
        for (line, x, y), best in zip(found, kept, strict=True):
            color = styles[line].color if best else FAINT
            ax.plot(
                scale * x,
                100 * y,
                label=comparison.groups[line].label,
                marker=styles[line].marker,
                color=color,
                markerfacecolor=color if best else "none",
                markersize=7.5,
                linestyle="none",
            )
        if ax.get_xscale() == "log":
            figure.label_powers(ax.xaxis)
        figure.name_lines(ax)
    return [path]


def scale_costs(ax, ends: Sequence[float], axis: Axis) -> float:
    """Labels the axes of a cost and an accuracy, with logarithmic costs if they differ.

    Args:
      ax: matplotlib axes.
      ends: the last cost of each line, in units of the column.
      axis: of the cost.

    Returns:
      What costs are multiplied by to be drawn.
    """
    positive = [end for end in ends if end > 0]
    ax.set_ylabel("accuracy [%]")
    if not axis.unit or not positive:
        ax.set_xlabel(axis.title if not axis.unit else f"{axis.title} [{axis.unit}]")
        return 1.0
    spread = max(positive) >= _LOG_FROM * min(positive) and len(positive) == len(ends)
    shown = min(positive) if spread else max(positive)
    number, unit = format_si(axis.scale * shown, axis.unit).split(" ")
    power = round(np.log10(axis.scale * shown / float(number)) / 3)
    ax.set_xlabel(f"{axis.title} [{unit}]")
    if spread:
        ax.set_xscale("log")
    return axis.scale / 1000.0**power
