"""Draws lines over a run's rounds, with marked stages and coloured layers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsefl_jax.report.figure import whole_numbers
from sparsefl_jax.report.load import Record, Run, stage_name
from sparsefl_jax.system.files import KINDS, NUMBER

_MAX_LEGEND_LAYERS = 10


def finite(value: Any) -> bool:
    """Tells whether a value is a number that is neither NaN nor infinite.

    Example:
      >>> finite(0.5), finite(None), finite(float("nan")), finite("0.5")
      (True, False, False, False)
    """
    return KINDS[NUMBER](value) and math.isfinite(value)


def series(
    run: Run, records: Sequence[Record], value: Callable
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rounds, counted over all stages, and the finite values there.

    Args:
      run: the run of the records.
      records: records with `stage` and `round`.
      value: `(record) -> number or None`.

    Returns:
      Two float arrays [n].
    """
    pairs = [
        (run.starts[r["stage"]] + r["round"], value(r))
        for r in records
        if finite(value(r))
    ]
    x, y = np.array(pairs, float).reshape(-1, 2).T
    return x, y


def draw_line(
    ax: Any, x: np.ndarray, y: np.ndarray, label: str, color: Any, width: float = 2.0
) -> None:
    """Draws a line with a label, or nothing if there are no points."""
    if len(x):
        # Few points get markers; a single point has no line at all.
        marker = "o" if len(x) <= 25 else None
        ax.plot(x, y, label=label, color=color, lw=width, marker=marker, markersize=4)


def draw_layers(
    ax: Any, run: Run, records: Sequence[Record], total: str, by_layer: str
) -> None:
    """Draws a line for each layer, coloured by depth, and one for all layers together.

    Args:
      ax: matplotlib axes.
      run: the run of the records.
      records: records with `stage`, `round` and the two keys.
      total: the key of the value over all layers, a share.
      by_layer: the key of the values `{layer: share}`.
    """
    names = list(dict.fromkeys(n for r in records for n in r.get(by_layer) or {}))
    colors = layer_colors(len(names))
    for name, color in zip(names, colors, strict=False):
        x, y = series(run, records, lambda r, n=name: (r.get(by_layer) or {}).get(n))
        draw_line(ax, x, 100 * y, short(name), color, 1.3)
    x, y = series(run, records, lambda r: r.get(total))
    draw_line(ax, x, 100 * y, "all layers", "black", 2.4)
    _scale_shares(ax)
    thick = ax.lines[-1]
    count_rounds(ax, run)
    if len(names) > _MAX_LEGEND_LAYERS:
        ax.legend(handles=[thick], loc="best")
    name_layers(ax, colors)


def short(layer: str) -> str:
    """Returns a layer's name without the suffix that all names share.

    Example:
      >>> short("conv1/kernel")
      'conv1'
    """
    return layer.removesuffix("/kernel")


def layer_colors(count: int) -> np.ndarray:
    """Returns the colours [count, 4] of layers by depth."""
    import matplotlib

    return matplotlib.colormaps["viridis"](np.linspace(0.0, 0.92, max(count, 1)))


def name_layers(ax: Any, colors: np.ndarray) -> None:
    """Puts a legend right of the axes, or a colour bar if there are many layers."""
    if len(colors) <= _MAX_LEGEND_LAYERS:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return
    import matplotlib

    colorbar = ax.figure.colorbar(
        matplotlib.cm.ScalarMappable(cmap=matplotlib.colors.ListedColormap(colors)),
        ax=ax,
        ticks=[0.0, 1.0],
        label=f"{len(colors)} layers",
    )
    colorbar.ax.set_yticklabels(["first", "last"])


def count_rounds(ax: Any, run: Run) -> None:
    """Makes an x axis of rounds from 0, and marks where each later stage begins."""
    mark_stages(ax, run, [start + 0.5 for start in run.starts])
    whole_numbers(ax.xaxis)
    ax.set_xlim(left=0)


def mark_stages(ax: Any, run: Run, positions: Sequence[float]) -> None:
    """Draws dashed lines with names where the stages after the first begin."""
    for i, position in enumerate(positions[1:], start=1):
        ax.axvline(position, color="#555555", linewidth=1.0, linestyle=(0, (4, 3)))
        ax.annotate(
            f" {stage_name(run, i)}",
            (position, 1.0),
            xycoords=("data", "axes fraction"),
            va="top",
            fontsize=9.5,
            color="#555555",
        )


def legend(ax: Any) -> None:
    """Draws a legend if anything has a label."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best")


def _scale_shares(ax) -> None:
    """Scales percentages from 0, or logarithmically if they differ much."""
    values = [line.get_ydata() for line in ax.lines]
    low, high = min(map(np.min, values)), max(map(np.max, values))
    if low > 0 and high > 20 * low:
        from matplotlib.ticker import FuncFormatter, LogLocator

        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    else:
        ax.set_ylim(bottom=0)
