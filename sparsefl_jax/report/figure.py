"""The style that all figures share, and the files that they are written to."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsefl_jax.report.comparison.line_styles import PALETTE
from sparsefl_jax.system.files import naming

COLORS = PALETTE
INK, GRID, FAINT = "#1b1f23", "#d9dee3", "#8a94a0"  # pages replace them, see `svg.py`
SIZE = (4.9, 3.3)  # inches: a column of a paper, and legible on a phone
STYLE = {
    "font.size": 9.5,
    "font.family": "sans-serif",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "image.interpolation": "none",  # SVG files hold the cells themselves
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "lines.markersize": 5,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "sparsefl_jax",  # equal results give equal files
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextlib.contextmanager
def canvas(path: Path, size: tuple[float, float] = SIZE) -> Iterator:
    """Yields an empty figure of a size in inches, and saves it on exit.

    Args:
      path: the file; its suffix gives the format, such as `.svg`, `.pdf` or `.png`.
      size: width and height.
    """
    import matplotlib
    from matplotlib.figure import Figure  # pyplot would open windows and keep state

    with matplotlib.rc_context(STYLE):
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


def name_axes(figure: Any, xlabel: str, ylabel: str) -> None:
    """Sets labels that all axes of a figure share."""
    figure.supxlabel(xlabel, fontsize=9.5)
    figure.supylabel(ylabel, fontsize=9.5)


def legend(ax: Any, handles: list | None = None, columns: int = 2) -> None:
    """Puts a legend below the axes, which keep their size, if anything has a label.

    Args:
      ax: the only axes of a figure, or the axes whose lines stand for all.
      handles: the lines to name; None for all that have a label.
      columns: at most as many, fewer if the labels are long.
    """
    if handles is None:
        handles, _ = ax.get_legend_handles_labels()
    labels = [handle.get_label() for handle in list(handles or ())]
    if not labels:
        return
    columns = max(1, min(columns, 62 // (max(map(len, labels)) + 6)))
    rows = -(-len(labels) // columns)
    figure = ax.figure
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.19 * rows)
    figure.legend(
        handles, labels, loc="outside lower left", ncols=-(-len(labels) // rows)
    )
