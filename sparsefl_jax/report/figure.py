"""The look that all plots share."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sparsefl_jax.report.load import Run

_STYLE = {
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
def axes(path: Path, run: Run, title: str, xlabel: str, ylabel: str) -> Iterator:
    """Yields axes with the run's name in the title; leaving saves the figure."""
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    method = run.summary.get("method") or run.path.resolve().name
    dataset = run.summary.get("dataset")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        ax = figure.subplots()
        ax.set(xlabel=xlabel, ylabel=ylabel)
        ax.set_title(f"{title}: {method}" + (f" on {dataset}" if dataset else ""))
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
        yield ax
        figure.savefig(path)


def whole_numbers(axis) -> None:
    """Puts the ticks of a matplotlib axis on whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(
        MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    )
