"""Draws a comparison: curves over each cost, fronts, and the spread over clients."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sparsefl_jax.core.formats import format_percent, format_si
from sparsefl_jax.report.comparison import costs, measures
from sparsefl_jax.report.comparison.costs import Axis
from sparsefl_jax.report.comparison.equal_cost import on_front
from sparsefl_jax.report.comparison.evaluations import (
    accuracy,
    final_evals,
)
from sparsefl_jax.report.comparison.line_styles import Look, Turn, looks, turns
from sparsefl_jax.report.comparison.measures import Comparison, Entry
from sparsefl_jax.report.figure import FAINT, label_powers, whole_numbers
from sparsefl_jax.report.lines import finite
from sparsefl_jax.report.load import Record

_LOG_FROM = 8.0  # how much the costs must differ for a logarithmic axis


class Figure(NamedTuple):
    """A figure of a comparison."""

    name: str  # of its file, without suffix
    title: str
    caption: str
    draw: Callable[[Any], None]  # on matplotlib axes


class Band(NamedTuple):
    """The mean of a group's runs at the rounds that all of them evaluated."""

    cost: np.ndarray  # [n] float64, the mean over seeds
    mean: np.ndarray  # [n] float64, of shares
    deviation: np.ndarray  # [n] float64, over seeds; zeros for a single one


class Point(NamedTuple):
    """A deployed model in a front."""

    entry: int  # the place of its group
    cost: float  # the mean over seeds
    accuracy: float
    model: str  # '' for the headline model


def curve_figure(comparison: Comparison, axis: Axis) -> Figure:
    """Returns the figure of the accuracy over a cost."""
    bands = [band(entry, axis.name, accuracy) for entry in comparison.entries]
    draw = partial(_draw_bands, comparison=comparison, bands=bands, axis=axis)
    caption = "Headline accuracy of the last stage; bands are one sample deviation."
    return Figure(f"accuracy_by_{axis.name}", "Accuracy over the run", caption, draw)


def front_figure(comparison: Comparison, axis: Axis) -> Figure:
    """Returns the figure of the last accuracy against a cost, with its front."""
    points = []
    for i, entry in enumerate(comparison.entries):
        cost = measures.total(entry, axis.name).mean
        accuracy = measures.over_seeds(entry, measures.last_accuracy).mean
        if cost is not None and accuracy is not None:
            points.append(Point(i, cost, accuracy, ""))

    def draw(ax) -> None:
        scale = scale_costs(ax, [p.cost for p in points], axis)
        _draw_front(ax, comparison, points, scale, axis.text)

    caption = "Last round. Hollow grey points are dominated by another."
    caption += " Points further left and higher are better."
    return Figure(f"front_{axis.name}", "Front: accuracy against cost", caption, draw)


def density_figure(comparison: Comparison) -> Figure | None:
    """Returns the figure of the accuracy against the density of the deployed models.

    Returns None if all densities are the same.
    """
    points = [p for i, e in enumerate(comparison.entries) for p in _models(i, e)]
    densities = [100 * p.cost for p in points]
    if not densities or max(densities) < 1.02 * min(densities):
        return None

    def draw(ax) -> None:
        ax.set_xlabel("density of the deployed model [%]")
        if min(densities) > 0 and max(densities) > _LOG_FROM * min(densities):
            ax.set_xscale("log")
        _draw_front(ax, comparison, points, 100.0, format_percent)

    caption = "All parameters, last round. Small points: a method's other models."
    return Figure("front_density", "Front: accuracy against density", caption, draw)


def clients_figures(comparison: Comparison) -> list[Figure]:
    """Returns the figures of the clients' median and 10th percentile, if recorded."""
    titles = {"median": "Median of the clients", "p10": "10th percentile of clients"}
    figures = []
    caption = "Accuracy on each client's own test samples."
    axis = costs.axis("rounds")
    for name, title in titles.items():
        bands = [
            band(e, "rounds", lambda r, n=name: r.get("client_accuracy", {}).get(n))
            for e in comparison.entries
        ]
        if any(len(each.cost) for each in bands):
            draw = partial(_draw_bands, comparison=comparison, bands=bands, axis=axis)
            figures.append(Figure(f"clients_{name}", title, caption, draw))
    return figures


def band(entry: Entry, name: str, value: Callable[[Record], float | None]) -> Band:
    """Returns the mean over seeds at the rounds that all of a group's runs evaluated.

    Args:
      entry: of the group.
      name: of the axis of cost.
      value: `(record of an evaluation) -> share or None`.

    Returns:
      The band, empty if the runs have no round in common.
    """
    by_round = [
        {
            costs.cost(run, r, "rounds"): (x, value(r))
            for r in final_evals(run)
            if finite(value(r)) and finite(x := costs.cost(run, r, name))
        }
        for run in entry.group.runs
    ]
    rounds = sorted(set(by_round[0]).intersection(*by_round[1:]))
    points = np.array([[run[r] for run in by_round] for r in rounds], float)
    x, y = np.moveaxis(points.reshape(-1, len(by_round), 2), -1, 0)
    deviation = y.std(axis=1, ddof=1) if len(by_round) > 1 else np.zeros(len(y))
    return Band(x.mean(axis=1), y.mean(axis=1), deviation)


def _models(i: int, entry: Entry) -> list[Point]:
    """Returns a point for each deployed model of a group, the headline first."""
    points = []
    for j, name in enumerate(measures.models(entry)):
        density, accuracy = (
            measures.over_seeds(entry, partial(measure, model=name)).mean
            for measure in (measures.density, measures.last_accuracy)
        )
        if density is not None and accuracy is not None:
            points.append(Point(i, density, accuracy, name if j else ""))
    return points


def _draw_bands(ax, comparison: Comparison, bands: Sequence[Band], axis: Axis) -> None:
    scale = scale_costs(ax, [b.cost.max() for b in bands if len(b.cost)], axis)
    styles = looks([entry.group for entry in comparison.entries])
    placed = turns([(each.cost, each.mean) for each in bands])
    for i, (entry, each, look, turn) in enumerate(
        zip(comparison.entries, bands, styles, placed, strict=True)
    ):
        if not len(each.cost):
            continue
        x, y, spread = scale * each.cost, 100 * each.mean, 100 * each.deviation
        line = _line(ax, x, y, look, turn, len(x) <= 25)
        line.set_gid(tip(f"line-{i}", entry.label))
        if spread.any():
            ax.fill_between(
                x, y - spread, y + spread, color=look.color, alpha=0.14, linewidth=0
            )
    if ax.get_xscale() == "linear":
        ax.set_xlim(left=0)
    else:
        label_powers(ax.xaxis)
    if axis.name == "rounds":
        whole_numbers(ax.xaxis)


def _draw_front(
    ax, comparison: Comparison, points: Sequence[Point], scale: float, text: Callable
) -> None:
    """Draws points, and a line through those of the front."""
    best = on_front([(p.cost, p.accuracy) for p in points])
    styles = looks([entry.group for entry in comparison.entries])
    front = [p for p, kept in zip(points, best, strict=True) if kept]
    front = sorted((scale * p.cost, 100 * p.accuracy) for p in front)
    if len(front) > 1:
        ax.plot(*zip(*front, strict=True), color=FAINT, lw=1, zorder=1)
    rings = _rings(points)
    for i, (point, kept) in enumerate(zip(points, best, strict=True)):
        look, label = styles[point.entry], comparison.entries[point.entry].label
        color = look.color if kept else FAINT
        x, y = scale * point.cost, 100 * point.accuracy
        (dot,) = ax.plot(
            x,
            y,
            marker=look.marker,
            color=color,
            markerfacecolor=color if kept and not rings[i] else "none",
            markersize=(5 if point.model else 7.5) + 4 * rings[i],
            linestyle="none",
            zorder=3,
        )
        name = f"{label} ({point.model})" if point.model else label
        values = f"{format_percent(point.accuracy)} at {text(point.cost)}"
        dot.set_gid(tip(f"point-{i}", f"{name}: {values}"))
    if ax.get_xscale() == "log":
        label_powers(ax.xaxis)


def _rings(points: Sequence[Point]) -> list[int]:
    """Counts the points before each one that it would hide; it is drawn around them."""
    if not points:
        return []
    values = np.array([(p.cost, p.accuracy) for p in points])
    near = np.abs(values[:, None] - values) <= 0.01 * np.ptp(values, axis=0)
    return np.tril(near.all(-1), -1).sum(1).tolist()


def tip(name: str, text: str) -> str:
    """Returns an id that carries the text of a tooltip, see `svg.inline`."""
    return f"tip:{name}:{text}"


def _line(ax, x, y, look: Look, turn: Turn, marked: bool):
    style = {"color": look.color, "linestyle": turn.linestyle(look), "markersize": 4.5}
    style |= {"marker": look.marker, "markevery": turn} if marked else {}
    return ax.plot(x, y, **style)[0]


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
