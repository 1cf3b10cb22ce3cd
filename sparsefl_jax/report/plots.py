"""One run as pictures over its rounds: accuracy, density and mask mismatch.

Each function takes the records that `read_run` returned and the path of a PNG. A value
that is absent or not finite is left out. Matplotlib is imported only when drawing.
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sparsefl_jax.report.figure import axes, whole_numbers
from sparsefl_jax.report.load import Record, Run, read_run
from sparsefl_jax.report.partition import partition_by_client

_COLORS = ("#0b5fa5", "#d9541e", "#2e8b57", "#8552a1")
_MAX_LEGEND_LAYERS = 10


def plot_run(run_dir: str | Path) -> list[Path]:
    """Draws every plot that the run has data for into its folder `plots`.

    Args:
      run_dir: the folder of a run, see `read_run`.

    Returns:
      The PNG files written.

    Raises:
      ValueError: the folder can not be read, see `read_run`.

    Example:
      >>> plot_run("no/such/run")
      Traceback (most recent call last):
      ValueError: run_dir='no/such/run' expected a folder with metrics.jsonl.
    """
    run = read_run(run_dir)
    plots = {
        accuracy_by_round: bool(run.evals),
        accuracy_by_gbit: bool(run.evals),
        density_by_round: any(_finite(r.get("density")) for r in run.train),
        mismatch_by_round: any(_finite(r.get("mismatch")) for r in run.train),
        partition_by_client: run.partition is not None,
    }
    folder = run.path / "plots"
    folder.mkdir(exist_ok=True)
    paths = []
    for plot, has_data in plots.items():
        if has_data:
            paths.append(folder / f"{plot.__name__}.png")
            plot(run, paths[-1])
    return paths


def accuracy_by_round(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model, of training and of the clients.

    Args:
      run: the records.
      path: the PNG to write.
    """
    with axes(path, run, "Accuracy", "round", "accuracy [%]") as ax:
        x, y = _series(run, run.train, lambda r: r.get("train_accuracy"))
        _line(ax, x, 100 * y, "training, local", "#9a9a9a", 1.2)
        x, low = _series(run, run.evals, lambda r: _client(r, "p10"))
        _, median = _series(run, run.evals, lambda r: _client(r, "median"))
        if len(x) and len(low) == len(median):
            ax.fill_between(
                x,
                100 * low,
                100 * median,
                color="#0b5fa5",
                alpha=0.14,
                linewidth=0,
                label="clients, 10th percentile to median",
            )
        for name, color in zip(_models(run), itertools.cycle(_COLORS), strict=False):
            x, y = _series(run, run.evals, lambda r, n=name: _accuracy(r, n))
            _line(ax, x, 100 * y, name, color)
        _count_rounds(ax, run)
        _legend(ax)


def accuracy_by_gbit(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model over the bits that it cost.

    Args:
      run: the records.
      path: the PNG to write.
    """
    label = "traffic of all clients, up and down [Gbit]"
    with axes(path, run, "Accuracy by traffic", label, "accuracy [%]") as ax:
        for name, color in zip(_models(run), itertools.cycle(_COLORS), strict=False):
            pairs = [
                (r["gbit_cumulative"], _accuracy(r, name))
                for r in run.evals
                if _finite(_accuracy(r, name))
            ]
            x, y = np.array(pairs, float).reshape(-1, 2).T
            _line(ax, x, 100 * y, name, color)
        ends = [
            max((r["gbit_cumulative"] for r in run.train if r["stage"] < i), default=0)
            for i in range(len(run.starts))
        ]
        _mark_stages(ax, run, ends)
        ax.set_xlim(left=0)
        _legend(ax)


def density_by_round(run: Run, path: Path) -> None:
    """Draws the share of weights that are alive, in all and by layer.

    Args:
      run: the records.
      path: the PNG to write.
    """
    with axes(path, run, "Density", "round", "weights alive [%]") as ax:
        _layers(ax, run, "density", "layer_density")


def mismatch_by_round(run: Run, path: Path) -> None:
    """Draws 1 - the Jaccard index of the mask and that of the round before, by layer.

    Args:
      run: the records.
      path: the PNG to write.
    """
    label = "mismatch with the round before [%]"
    with axes(path, run, "Mask mismatch", "round", label) as ax:
        _layers(ax, run, "mismatch", "layer_mismatch")


def _layers(ax, run: Run, total: str, by_layer: str) -> None:
    """A line for each layer, coloured by depth, and one for all layers together."""
    import matplotlib

    names = list(dict.fromkeys(n for r in run.train for n in r.get(by_layer) or {}))
    colors = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.92, max(len(names), 1)))
    for name, color in zip(names, colors, strict=False):
        x, y = _series(run, run.train, lambda r, n=name: (r.get(by_layer) or {}).get(n))
        _line(ax, x, 100 * y, name.removesuffix("/kernel"), color, 1.3)
    x, y = _series(run, run.train, lambda r: r.get(total))
    _line(ax, x, 100 * y, "all layers", "black", 2.4)
    values = [line.get_ydata() for line in ax.lines]
    low, high = min(map(np.min, values)), max(map(np.max, values))
    if low > 0 and high > 20 * low:
        from matplotlib.ticker import FuncFormatter, LogLocator

        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    else:
        ax.set_ylim(bottom=0)
    thick = ax.lines[-1]
    _count_rounds(ax, run)
    if len(names) <= _MAX_LEGEND_LAYERS:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return
    ax.legend(handles=[thick], loc="best")
    colorbar = ax.figure.colorbar(
        matplotlib.cm.ScalarMappable(cmap=matplotlib.colors.ListedColormap(colors)),
        ax=ax,
        ticks=[0.0, 1.0],
        label=f"{len(names)} layers",
    )
    colorbar.ax.set_yticklabels(["first", "last"])


def _line(ax, x: np.ndarray, y: np.ndarray, label: str, color, width=2.0) -> None:
    if len(x):
        # Few points are shown as such; one point has no line at all.
        marker = "o" if len(x) <= 25 else None
        ax.plot(x, y, label=label, color=color, lw=width, marker=marker, markersize=4)


def _series(
    run: Run, records: list[Record], value: Callable
) -> tuple[np.ndarray, np.ndarray]:
    """Rounds over all stages, and the finite values there."""
    pairs = [
        (run.starts[r["stage"]] + r["round"], value(r))
        for r in records
        if _finite(value(r))
    ]
    x, y = np.array(pairs, float).reshape(-1, 2).T
    return x, y


def _count_rounds(ax, run: Run) -> None:
    _mark_stages(ax, run, [start + 0.5 for start in run.starts])
    whole_numbers(ax.xaxis)
    ax.set_xlim(left=0)


def _mark_stages(ax, run: Run, positions: list[float]) -> None:
    stages = run.summary.get("stages", [])
    for i, position in enumerate(positions[1:], start=1):
        name = stages[i]["name"] if i < len(stages) else f"stage {i}"
        ax.axvline(position, color="#555555", linewidth=1.0, linestyle=(0, (4, 3)))
        ax.annotate(
            f" {name}",
            (position, 1.0),
            xycoords=("data", "axes fraction"),
            va="top",
            fontsize=9.5,
            color="#555555",
        )


def _legend(ax) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best")


def _models(run: Run) -> list[str]:
    return list(dict.fromkeys(name for r in run.evals for name in r["models"]))


def _accuracy(record: Record, name: str) -> float | None:
    return record["models"].get(name, {}).get("accuracy")


def _client(record: Record, name: str) -> float | None:
    return (record.get("client_accuracy") or {}).get(name)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
