"""Draws lines over a run's rounds, with marked stages and coloured layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefl_jax.report import figure
from sparsefl_jax.report.load import Record, Run, Table, by_round, column, stage_name

_MAX_LAYERS = 12  # that are named
_MAX_JOINED = 4  # names of layers in one label
_DEPTHS = ("#3b7dd8", "#8a6fd1", "#c2609b", "#d97a3a", "#a8921e")


def draw_line(ax: Any, values: Any, label: str, color: Any, width: float = 1.7) -> None:
    """Draws a line over the index, or nothing if there are no points.

    Args:
      ax: matplotlib axes.
      values: by round.
      label: the line's name; '' for a line without one.
      color: as matplotlib takes it.
      width: in points.
    """
    if len(values):
        # Few points get markers; a single point has no line at all.
        marker = "o" if len(values) <= 25 else None
        ax.plot(values, label=label, color=color, lw=width, marker=marker, ms=3.5)


def draw_layers(ax: Any, run: Run, records: Sequence[Record], name: str) -> None:
    """Draws a line for each layer, coloured by depth, and one for all layers together.

    Layers whose values are the same are one line with all their names. The scale begins
    at 0, or is logarithmic if the values differ much.

    Args:
      ax: matplotlib axes.
      run: the run of the records.
      records: records with `stage`, `round` and the two keys.
      name: the key of the value over all layers, a share; `layer_{name}` is that of the
        values `{layer: share}`.
    """
    table = 100 * by_round(run, records)
    draw_line(ax, column(table, name), "all layers", figure.INK, 3.2)
    draw_depths(ax, coinciding(of_layers(table, f"layer_{name}."), within=0.01))
    low, high = ax.dataLim.intervaly
    if low > 0 and high > 20 * low:
        ax.set_yscale("log")
        figure.label_powers(ax.yaxis)
    else:
        ax.set_ylim(bottom=0)
    count_rounds(ax, run)
    figure.name_lines(ax)


def of_layers(table: Table, head: str) -> dict[str, Any]:
    """Returns the columns whose names begin with a head, by their layers' names."""
    names = [name for name in table if name.startswith(head)]
    return {short(name.removeprefix(head)): column(table, name) for name in names}


def coinciding(lines: dict[str, Any], within: float) -> dict[str, Any]:
    """Joins lines that would hide each other under all their names.

    Args:
      lines: the values of each line, by its name.
      within: by what share the values of such lines may differ.

    Returns:
      The first line of each group, by the names of the group.

    Example:
      >>> import pandas as pd
      >>> one = pd.Series([0.5, 0.2])
      >>> list(coinciding({"a": one, "b": 2 * one, "c": one}, 0.01))
      ['a, c', 'b']
    """
    groups: list[tuple[list[str], Any]] = []
    for name, values in lines.items():
        for names, first in groups:
            same = values.index.equals(first.index)
            if same and np.allclose(values, first, rtol=within, atol=1e-6):
                names.append(name)
                break
        else:
            groups.append(([name], values))
    return {_joined(names): values for names, values in groups if len(values)}


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


def shortened(text: str, most: int) -> str:
    """Leaves out the middle of a text that is too long.

    Example:
      >>> shortened("a_long_method, density 0.05", 20)
      'a_long_me… sity 0.05'
    """
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}… {text[-(most - half - 2) :]}"


def spread(count: int, most: int) -> list[int]:
    """Returns at most `most` evenly spaced indices below `count`.

    Example:
      >>> spread(9, 3), spread(2, 3)
      ([0, 4, 8], [0, 1])
    """
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def draw_depths(ax: Any, lines: dict[str, Any]) -> None:
    """Draws the lines of layers, by their names, coloured by depth.

    Of many layers the first, the last and some between are named.
    """
    from matplotlib.colors import LinearSegmentedColormap

    depths = LinearSegmentedColormap.from_list("depth", _DEPTHS)
    colors = depths(np.linspace(0.0, 1.0, max(len(lines), 2)))
    named = spread(len(lines), _MAX_LAYERS)
    for i, (name, values) in enumerate(lines.items()):
        draw_line(ax, values, name if i in named else "", colors[i], 1.3)


def count_rounds(ax: Any, run: Run) -> None:
    """Makes an x axis of rounds from 0, and marks where each later stage begins."""
    mark_stages(ax, run, [start + 0.5 for start in run.starts])
    figure.whole_numbers(ax.xaxis)
    ax.set_xlim(left=0)


def mark_stages(ax: Any, run: Run, positions: Sequence[float]) -> None:
    """Draws dashed lines with names where the stages after the first begin."""
    for i, position in enumerate(positions[1:], start=1):
        ax.axvline(position, color=figure.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.annotate(
            stage_name(run, i),
            (position, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            fontsize=8.5,
            color=figure.FAINT,
        )
