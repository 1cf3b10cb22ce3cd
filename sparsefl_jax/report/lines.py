"""Draws lines over a run's rounds, with marked stages and coloured layers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsefl_jax.report.figure import (
    FAINT,
    INK,
    label_powers,
    legend,
    whole_numbers,
)
from sparsefl_jax.report.load import Record, Run, stage_name

_MAX_LEGEND_LAYERS = 10
_MAX_JOINED = 4  # names of layers in one label
_DEPTHS = ("#3b7dd8", "#8a6fd1", "#c2609b", "#d97a3a", "#a8921e")

Points = tuple[np.ndarray, np.ndarray]


def finite(value: Any) -> bool:
    """Tells whether a value is a number that is neither NaN nor infinite.

    Example:
      >>> finite(0.5), finite(None), finite(float("nan")), finite("0.5")
      (True, False, False, False)
    """
    kinds = int | float | np.floating
    number = isinstance(value, kinds) and not isinstance(value, bool)
    return number and abs(value) <= 1e300  # a larger one may overflow in a sum


def series(
    run: Run, records: Sequence[Record], value: Callable, at: str | None = None
) -> Points:
    """Returns the rounds, counted over all stages, and the finite values there.

    Args:
      run: the run of the records.
      records: records with `stage` and `round`.
      value: `(record) -> number or None`.
      at: a key of the records that stands for the rounds; None for these.

    Returns:
      Two float arrays [n].
    """
    pairs = [
        (r[at] if at else run.rounds_until(r["stage"], r["round"]), value(r))
        for r in records
        if finite(value(r))
    ]
    x, y = np.array(pairs, float).reshape(-1, 2).T
    return x, y


def draw_line(
    ax: Any, x: np.ndarray, y: np.ndarray, label: str, color: Any, width: float = 1.7
) -> None:
    """Draws a line with a label, or nothing if there are no points."""
    if len(x):
        # Few points get markers; a single point has no line at all.
        marker = "o" if len(x) <= 25 else None
        ax.plot(x, y, label=label, color=color, lw=width, marker=marker, markersize=3.5)


def draw_layers(
    ax: Any, run: Run, records: Sequence[Record], total: str, by_layer: str
) -> None:
    """Draws a line for each layer, coloured by depth, and one for all layers together.

    Layers whose values are the same are one line with all their names.

    Args:
      ax: matplotlib axes.
      run: the run of the records.
      records: records with `stage`, `round` and the two keys.
      total: the key of the value over all layers, a share.
      by_layer: the key of the values `{layer: share}`.
    """
    x, y = series(run, records, lambda r: r.get(total))
    draw_line(ax, x, 100 * y, "all layers", INK, 3.2)
    names = list(dict.fromkeys(n for r in records for n in r.get(by_layer) or {}))
    lines = {
        short(name): series(
            run, records, lambda r, n=name: (r.get(by_layer) or {}).get(n)
        )
        for name in names
    }
    groups = coinciding(lines, within=0.01)
    colors = layer_colors(len(groups))
    for (label, (x, y)), color in zip(groups.items(), colors, strict=False):
        draw_line(ax, x, 100 * y, label, color, 1.3)
    _scale_shares(ax)
    count_rounds(ax, run)
    name_layers(ax, colors)


def coinciding(lines: dict[str, Points], within: float) -> dict[str, Points]:
    """Joins lines that would hide each other under all their names.

    Args:
      lines: x and y [n] of each line, by its name.
      within: by what share the values of such lines may differ.

    Returns:
      The first line of each group, by the names of the group.

    Example:
      >>> x, y = np.arange(2), np.array([0.5, 0.2])
      >>> list(coinciding({"a": (x, y), "b": (x, 2 * y), "c": (x, y)}, 0.01))
      ['a, c', 'b']
    """
    groups: list[tuple[list[str], Points]] = []
    for name, (x, y) in lines.items():
        for names, (u, v) in groups:
            if np.array_equal(x, u) and np.allclose(y, v, rtol=within, atol=1e-6):
                names.append(name)
                break
        else:
            groups.append(([name], (x, y)))
    return {_joined(names): points for names, points in groups if len(points[0])}


def _joined(names: Sequence[str]) -> str:
    """Joins names, of which many become a count.

    Example:
      >>> _joined(["conv1", "conv2"]), _joined([f"conv{i}" for i in range(1, 9)])
      ('conv1, conv2', 'conv1 to conv8 (8 layers)')
    """
    if len(names) <= _MAX_JOINED:
        return ", ".join(names)
    return f"{names[0]} to {names[-1]} ({len(names)} layers)"


def short(layer: str) -> str:
    """Returns a layer's name without the suffix that all names share.

    Example:
      >>> short("conv1/kernel")
      'conv1'
    """
    return layer.removesuffix("/kernel")


def spread(count: int, most: int) -> list[int]:
    """Returns at most `most` evenly spaced indices below `count`.

    Example:
      >>> spread(9, 3), spread(2, 3)
      ([0, 4, 8], [0, 1])
    """
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def layer_colors(count: int) -> np.ndarray:
    """Returns the colours [count, 4] of layers by depth, legible on light and dark."""
    from matplotlib.colors import LinearSegmentedColormap

    depths = LinearSegmentedColormap.from_list("depth", _DEPTHS)
    return depths(np.linspace(0.0, 1.0, max(count, 2)))[:count]


def name_layers(ax: Any, colors: np.ndarray) -> None:
    """Names lines below the axes; if there are many, a colour bar names the layers."""
    if len(colors) <= _MAX_LEGEND_LAYERS:
        return legend(ax, columns=3)
    import matplotlib

    handles, _ = ax.get_legend_handles_labels()
    legend(ax, [h for h in handles if h.get_label() == "all layers"])
    colorbar = ax.figure.colorbar(
        matplotlib.cm.ScalarMappable(cmap=matplotlib.colors.ListedColormap(colors)),
        ax=ax.figure.axes,
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
        ax.axvline(position, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.annotate(
            stage_name(run, i),
            (position, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            fontsize=8.5,
            color=FAINT,
        )


def _scale_shares(ax) -> None:
    """Scales percentages from 0, or logarithmically if they differ much."""
    values = [line.get_ydata() for line in ax.lines]
    if not values:
        return
    low, high = min(map(np.min, values)), max(map(np.max, values))
    if low > 0 and high > 20 * low:
        ax.set_yscale("log")
        label_powers(ax.yaxis)
    else:
        ax.set_ylim(bottom=0)
