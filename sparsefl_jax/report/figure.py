"""The style that all plots share."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsefl_jax.report.load import Run
from sparsefl_jax.system.files import naming

COLORS = ("#0b5fa5", "#d9541e", "#2e8b57", "#8552a1", "#b8860b", "#3a3a3a")

STYLE = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "savefig.dpi": 150,
}


@contextlib.contextmanager
def canvas(path: Path, size: tuple[float, float] = (7.2, 4.3)) -> Iterator:
    """Yields an empty figure of a size in inches, and saves it as a PNG on exit."""
    import matplotlib
    from matplotlib.figure import Figure  # pyplot would open windows and keep state

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
        yield figure
        with naming(path):
            figure.savefig(path)


@contextlib.contextmanager
def axes(path: Path, run: Run, title: str, xlabel: str, ylabel: str) -> Iterator:
    """Yields axes with the run's name in the title, and saves the figure on exit."""
    with canvas(path) as figure:
        ax = figure.subplots()
        ax.set(xlabel=xlabel, ylabel=ylabel, title=titled(run, title))
        yield ax


def titled(run: Run, title: str) -> str:
    """Returns a plot's title followed by the run's method and data set."""
    method = run.summary.get("method") or run.path.resolve().name
    dataset = run.summary.get("dataset")
    return f"{title}: {method}" + (f" on {dataset}" if dataset else "")


def whole_numbers(axis: Any) -> None:
    """Puts the ticks of a matplotlib axis on whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(
        MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    )
