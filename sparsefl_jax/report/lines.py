"""Draws lines over a run's rounds, with marked stages and coloured layers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsefl_jax.report.figure import (
    FAINT,
    INK,
    label_powers,
    name_lines,
    whole_numbers,
)
from sparsefl_jax.report.load import Record, Run, stage_name

if TYPE_CHECKING:
    import pandas as pd

_MAX_LAYERS = 12  # that are named
_MAX_JOINED = 4  # names of layers in one label
_DEPTHS = ("#3b7dd8", "#8a6fd1", "#c2609b", "#d97a3a", "#a8921e")


def finite(value: Any) -> bool:
    """Tells whether a value is a number that is neither NaN nor infinite.

    Example:
      >>> finite(0.5), finite(None), finite(float("nan")), finite("0.5")
      (True, False, False, False)
    """
    number = isinstance(value, int | float | np.integer | np.floating)
    # A larger one may overflow in a sum.
    return number and not isinstance(value, bool) and bool(abs(value) <= 1e300)


def by_round(run: Run, records: Sequence[Record]) -> "pd.DataFrame":
    """Returns the numbers of records by round, counted over all stages.

    Args:
      run: the run of the records.
      records: records with `stage` and `round`.

    Returns:
      A row for each record; fields within fields have dotted names. What is not finite
      is NaN.
    """
    import pandas as pd

    table = pd.json_normalize(list(records)).select_dtypes("number")
    table.index = [run.rounds_until(r["stage"], r["round"]) for r in records]
    return table.where(np.isfinite(table))


def column(table: "pd.DataFrame", name: str) -> Any:
    """Returns the known values of a column, a Series; none if there is no such column.

    Example:
      >>> import pandas as pd
      >>> table = pd.DataFrame({"loss": [2.0, np.nan]}, index=[5, 10])
      >>> column(table, "loss").to_dict(), len(column(table, "gain"))
      ({5: 2.0}, 0)
    """
    return table.reindex(columns=[name])[name].dropna()


def draw_line(
    ax: Any, values: "pd.Series", label: str, color: Any, width: float = 1.7
) -> None:
    """Draws a line with a label over the index, or nothing if there are no points."""
    if len(values):
        # Few points get markers; a single point has no line at all.
        marker = "o" if len(values) <= 25 else None
        ax.plot(values, label=label, color=color, lw=width, marker=marker, ms=3.5)


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
    table = 100 * by_round(run, records)
    draw_line(ax, column(table, total), "all layers", INK, 3.2)
    head = f"{by_layer}."
    lines = {
        short(name.removeprefix(head)): column(table, name)
        for name in table
        if name.startswith(head)
    }
    groups = coinciding(lines, within=0.01)
    looks = layer_looks(groups)
    for (label, color), values in zip(looks, groups.values(), strict=True):
        draw_line(ax, values, label, color, 1.3)
    _scale_shares(ax)
    count_rounds(ax, run)
    name_lines(ax)


def coinciding(lines: "dict[str, pd.Series]", within: float) -> "dict[str, pd.Series]":
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


def layer_looks(names: Sequence[str] | dict) -> list[tuple[str, Any]]:
    """Returns the label and the colour of each layer's line, by depth.

    Of many layers the first, the last and some between are named; the labels of others
    begin with an underscore.
    """
    from matplotlib.colors import LinearSegmentedColormap

    depths = LinearSegmentedColormap.from_list("depth", _DEPTHS)
    colors = depths(np.linspace(0.0, 1.0, max(len(names), 2)))
    named = spread(len(names), _MAX_LAYERS)
    return [
        (name if i in named else f"_{name}", color)
        for i, (name, color) in enumerate(zip(names, colors, strict=False))
    ]


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
