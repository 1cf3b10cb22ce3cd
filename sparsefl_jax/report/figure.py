"""What figures share: style and files, lines over rounds, and their names."""

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.report.load import Run, by_round, column
from sparsefl_jax.system.files import name_file

# Okabe and Ito's palette for colour-blind readers, without its yellow.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
INK, FAINT = "#1b1f23", "#8a94a0"
SIZE = (4.9, 3.3)  # inches: a column of a paper, and legible on a phone
STYLE = Path(__file__).with_name("style.mplstyle")
_NAME = 0.17  # inches that a line of a name takes


@contextlib.contextmanager
def canvas(path: Path, size: tuple[float, float] = SIZE) -> Iterator:
    """Yields an empty figure of a size in inches, and saves it on exit.

    Args:
      path: the file; its suffix gives the format, such as `.svg`, `.pdf` or `.png`.
      size: width and height.
    """
    import matplotlib
    from matplotlib.figure import Figure  # pyplot would open windows and keep state

    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        vector = path.suffix == ".svg"
        metadata = {"Date": None} if vector else None
        with name_file(path):
            figure.savefig(path, transparent=vector, metadata=metadata)


@contextlib.contextmanager
def axes(path: Path, xlabel: str = "", ylabel: str = "") -> Iterator:
    """Yields axes with labels, and saves the figure on exit."""
    with canvas(path) as figure:
        ax = figure.subplots()
        ax.set(xlabel=xlabel, ylabel=ylabel)
        yield ax


def whole_numbers(axis: Any) -> None:
    """Puts the ticks of a matplotlib axis on whole numbers."""
    axis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def label_powers(axis: Any) -> None:
    """Puts round numbers on a logarithmic axis, fewer of them if it is long."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def name_lines(ax: Any) -> None:
    """Names every line that has a label, in a legend beside the axes.

    A figure that is too low for all names grows.
    """
    lines, names = ax.get_legend_handles_labels()
    names = [textwrap.fill(name.replace("$", r"\$"), 24) for name in names]
    rows = sum(1 + name.count("\n") for name in names)
    width, height = ax.figure.get_size_inches()
    ax.figure.set_size_inches(width, max(height, _NAME * rows + 0.7))
    ax.figure.legend(lines, names, loc="outside right upper")


def scale_of(measure: str) -> tuple[int, str]:
    """Returns by what values of a measure are multiplied, and the label of their axis.

    Example:
      >>> scale_of("accuracy"), scale_of("rmse")
      ((100, 'accuracy [%]'), (1, 'rmse'))
    """
    return (100, "accuracy [%]") if measure == "accuracy" else (1, measure)


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


def draw_layers(ax: Any, run: Run, name: str) -> None:
    """Draws a line for each layer, coloured by depth, and one for all layers together.

    The scale begins at 0, or is logarithmic if the values differ much.

    Args:
      ax: matplotlib axes.
      run: the run, in whose records of training the two keys are.
      name: the key of the value over all layers, a share; `layer_{name}` is that of the
        values `{layer: share}`.
    """
    import matplotlib

    table = 100 * by_round(run, run.train)
    draw_line(ax, column(table, name), "all layers", INK, 3.2)
    head = f"layer_{name}."
    layers = [field for field in table if field.startswith(head)]
    colors = matplotlib.colormaps["plasma"](np.linspace(0.0, 0.9, len(layers)))
    for layer, color in zip(layers, colors, strict=True):
        name = layer.removeprefix(head).removesuffix("/kernel")
        draw_line(ax, column(table, layer), name, color, 1.3)
    low, high = ax.dataLim.intervaly
    if low > 0 and high > 20 * low:
        ax.set_yscale("log")
        label_powers(ax.yaxis)
    else:
        ax.set_ylim(bottom=0)
    count_rounds(ax, run)
    name_lines(ax)


def count_rounds(ax: Any, run: Run) -> None:
    """Makes an x axis of rounds from 0, and marks where each later stage begins."""
    mark_stages(ax, [start + 0.5 for start in run.starts])
    whole_numbers(ax.xaxis)
    ax.set_xlim(left=0)


def mark_stages(ax: Any, positions: Sequence[float]) -> None:
    """Draws dashed lines where the stages after the first begin."""
    for position in positions[1:]:
        ax.axvline(position, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
