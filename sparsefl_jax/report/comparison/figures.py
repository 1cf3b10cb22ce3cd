"""Draws a comparison: curves over each cost, fronts, and the spread over clients."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.core.formats import format_si
from sparsefl_jax.report.comparison import costs
from sparsefl_jax.report.comparison.costs import Axis
from sparsefl_jax.report.comparison.equal_cost import on_front
from sparsefl_jax.report.comparison.line_styles import looks
from sparsefl_jax.report.comparison.measures import Comparison, Entry
from sparsefl_jax.report.figure import (
    FAINT,
    canvas,
    label_powers,
    name_lines,
    whole_numbers,
)
from sparsefl_jax.report.lines import finite

_SIZE = (5.8, 3.6)  # inches
_LOG_FROM = 8.0  # how much the costs must differ for a logarithmic axis
_ALIKE = 1.02  # costs that differ less are the same


def draw(comparison: Comparison, folder: Path) -> dict[str, Path]:
    """Draws every figure of a comparison that shows anything.

    These are `accuracy_by_AXIS` and, where costs differ, `front_AXIS`;
    `front_density` where densities do; `clients_median` and `clients_p10` where they
    are recorded.

    Args:
      comparison: as `compare` made it.
      folder: of the files.

    Returns:
      The SVG files by name.
    """
    drawn = {}
    if not any(run.evals for entry in comparison.entries for run in entry.group.runs):
        return drawn
    for axis in comparison.axes:
        name = f"accuracy_by_{axis.name}"
        drawn[name] = _curves(comparison, axis, "accuracy")
        drawn[f"front_{axis.name}"] = _cost_front(comparison, axis)
    drawn["front_density"] = _density_front(comparison)
    for name in ("median", "p10"):
        by_round = _curves(comparison, costs.axis("rounds"), f"client_{name}")
        drawn[f"clients_{name}"] = by_round
    paths = {}
    for name, plot in drawn.items():
        if plot is not None:
            paths[name] = folder / f"{name}.svg"
            with canvas(paths[name], _SIZE) as figure:
                plot(figure.subplots())
    return paths


def band(entry: Entry, name: str, value: str) -> Any:
    """Returns the mean over seeds at the rounds that all of a group's runs evaluated.

    Args:
      entry: of the group.
      name: of the axis of cost.
      value: the column of shares, see `costs.progress`.

    Returns:
      A DataFrame, a row for each round: the means `cost` and `share`, and the sample
      `deviation` of the share, 0 of a single run.
    """
    import pandas as pd

    runs = [t.reindex(columns=[name, value]).dropna() for t in entry.progress]
    by_round = pd.concat(runs).set_axis(["cost", "share"], axis=1).groupby(level=0)
    found = by_round.mean().assign(deviation=by_round["share"].std().fillna(0.0))
    return found[by_round.size() == len(runs)]


def _curves(comparison: Comparison, axis: Axis, value: str) -> Callable | None:
    """Returns what draws a value of the evaluations over a cost, if there is any."""
    entries = comparison.entries
    bands = [band(entry, axis.name, value) for entry in entries]
    if not any(map(len, bands)):
        return None

    def plot(ax) -> None:
        scale = scale_costs(ax, [b["cost"].max() for b in bands if len(b)], axis)
        styles = looks([entry.group for entry in entries])
        for entry, each, look in zip(entries, bands, styles, strict=True):
            if not len(each):
                continue
            x, y, spread = (each * [scale, 100, 100]).to_numpy().T
            style = look._replace(marker=look.marker if len(x) <= 25 else "")._asdict()
            ax.plot(x, y, label=_name(entry), **style)
            ax.fill_between(
                x, y - spread, y + spread, color=look.color, alpha=0.14, linewidth=0
            )
        if ax.get_xscale() == "linear":
            ax.set_xlim(left=0)
        else:
            label_powers(ax.xaxis)
        if axis.name == "rounds":
            whole_numbers(ax.xaxis)
        name_lines(ax)

    return plot


def _cost_front(comparison: Comparison, axis: Axis) -> Callable | None:
    """Returns what draws the last accuracy against a cost, if costs differ."""
    found = comparison.lines
    points = [
        (line, 0, cost, share)
        for line, cost, share in zip(
            found.index,
            found[axis.name, "mean"],
            found["accuracy", "mean"],
            strict=True,
        )
        if finite(cost) and finite(share)
    ]
    ends = [cost for _, _, cost, _ in points]
    if _all_alike(ends):
        return None
    return lambda ax: _front(ax, comparison, points, scale_costs(ax, ends, axis))


def _density_front(comparison: Comparison) -> Callable | None:
    """Returns what draws the accuracy of all models against their density.

    There is nothing to draw if all densities are the same.
    """
    points = model_points(comparison)
    densities = [density for _, _, density, _ in points]
    if _all_alike(densities):
        return None

    def plot(ax) -> None:
        ax.set(xlabel="density of the deployed model [%]", ylabel="accuracy [%]")
        if min(densities) > 0 and max(densities) > _LOG_FROM * min(densities):
            ax.set_xscale("log")
        _front(ax, comparison, points, 100.0)

    return plot


def model_points(comparison: Comparison) -> list[tuple[int, int, float, float]]:
    """Returns line, rank, density and last accuracy of each deployed model."""
    found = comparison.models
    shares = zip(found["density", "mean"], found["accuracy", "mean"], strict=True)
    return [
        (line, rank, density, share)
        for (line, rank, _), (density, share) in zip(found.index, shares, strict=True)
        if finite(density) and finite(share)
    ]


def _front(ax, comparison: Comparison, points: Sequence, scale: float) -> None:
    """Draws points, and a line through those that no other one dominates."""
    kept = on_front([(x, y) for _, _, x, y in points])
    styles = looks([entry.group for entry in comparison.entries])
    best = [
        (scale * x, 100 * y)
        for (_, _, x, y), best in zip(points, kept, strict=True)
        if best
    ]
    ax.plot(*zip(*sorted(best), strict=True), color=FAINT, lw=1, zorder=1)
    for (line, rank, x, y), best in zip(points, kept, strict=True):
        color = styles[line].color if best else FAINT
        ax.plot(
            scale * x,
            100 * y,
            label=_name(comparison.entries[line]) if rank == 0 else "_",
            marker=styles[line].marker,
            color=color,
            markerfacecolor=color if best else "none",
            markersize=5 if rank else 7.5,
            linestyle="none",
        )
    if ax.get_xscale() == "log":
        label_powers(ax.xaxis)
    name_lines(ax)


def _all_alike(values: Sequence[float]) -> bool:
    return not values or max(values) < _ALIKE * min(values) or not max(values)


def _name(entry: Entry) -> str:
    return f"{entry.label} other {entry.unlike}" if entry.unlike else entry.label


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
