"""What all figures share: their style, their files, and lines named at their ends."""

import contextlib
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.system.files import naming

# Okabe and Ito's palette for colour-blind readers, without its yellow.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
INK, FAINT = "#1b1f23", "#8a94a0"
SIZE = (4.9, 3.3)  # inches: a column of a paper, and legible on a phone
STYLE = Path(__file__).with_name("style.mplstyle")
_NAME = 0.15  # inches that a line of a name takes


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
        with naming(path):
            metadata = {"Date": None} if vector else None
            figure.savefig(path, transparent=vector, metadata=metadata)


@contextlib.contextmanager
def axes(path: Path, xlabel: str, ylabel: str) -> Iterator:
    """Yields axes with labels, and saves the figure on exit."""
    with canvas(path) as figure:
        ax = figure.subplots()
        ax.set(xlabel=xlabel, ylabel=ylabel)
        yield ax


def whole_numbers(axis: Any) -> None:
    """Puts the ticks of a matplotlib axis on whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(
        MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    )


def label_powers(axis: Any) -> None:
    """Puts round numbers on a logarithmic axis, fewer of them if it is long."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def name_lines(ax: Any) -> None:
    """Writes the label of every line that has one beside its end, without overlaps.

    Call it last, as it takes the limits of the axes as they are. A figure that is too
    low for all names grows.
    """
    from matplotlib.colors import to_rgb

    # This is how matplotlib labels lines that have no name.
    lines = [line for line in ax.lines if not line.get_label().startswith("_child")]
    if not lines:
        return
    ends = {line: tuple(line.get_xydata()[-1]) for line in lines}
    heights = {
        line: ax.transAxes.inverted().transform(ax.transData.transform(end))[1]
        for line, end in ends.items()
    }
    lines.sort(key=lambda line: heights[line])
    names = [textwrap.fill(line.get_label(), 24) for line in lines]
    sizes = np.array([_NAME * (1 + name.count("\n")) for name in names])
    rows = ax.get_gridspec().nrows
    width, height = ax.figure.get_size_inches()
    height = max(height, rows * sizes.sum() + 0.7)
    ax.figure.set_size_inches(width, height)
    places = apart([heights[line] for line in lines], rows * sizes / (height - 0.6))
    for line, name, place in zip(lines, names, places, strict=True):
        ax.annotate(
            name.replace("$", r"\$"),
            ends[line],
            xytext=(1.04, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            color=[0.75 * part for part in to_rgb(line.get_color())],
            arrowprops={
                **{"arrowstyle": "-", "linestyle": (0, (1, 2))},
                **{"color": line.get_color(), "linewidth": 0.8},
            },
        )


def apart(ends: Sequence[float], sizes: Sequence[float]) -> np.ndarray:
    """Returns where names stand: at the ends of lines, but none over another.

    Args:
      ends: increasing, from 0 at the bottom to 1 at the top.
      sizes: how high each name is; if there is no room, the first are below 0.

    Example:
      >>> apart([0.0, 0.5, 0.5, 1.0], [0.25, 0.25, 0.25, 0.25]).tolist()
      [0.0, 0.5, 0.75, 1.0]
      >>> apart([0.75, 1.0, 1.0], [0.5, 0.5, 0.5]).tolist()
      [0.0, 0.5, 1.0]
    """
    gaps = [(a + b) / 2 for a, b in itertools.pairwise(sizes)]
    offsets = np.cumsum([0.0, *gaps])
    lowest = np.maximum.accumulate(np.asarray(ends) - offsets)
    return np.minimum(lowest, 1.0 - offsets[-1]) + offsets
