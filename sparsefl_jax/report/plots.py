"""Plots one run over its rounds: accuracy, density and mask mismatch.

Each function takes the records that `read_run` returned and the path of a PNG. Values
that are absent or not finite are left out. Matplotlib is imported only when drawing.
"""

import itertools
from pathlib import Path

import numpy as np

from sparsefl_jax.report.figure import COLORS, axes
from sparsefl_jax.report.filters import (
    plot_filters,
    threshold_layers,
    thresholds_by_round,
)
from sparsefl_jax.report.lines import (
    count_rounds,
    draw_layers,
    draw_line,
    finite,
    legend,
    mark_stages,
    series,
)
from sparsefl_jax.report.load import Record, Run, read_run
from sparsefl_jax.report.mismatch import plot_masks
from sparsefl_jax.report.partition import partition_by_client


def plot_run(run_dir: str | Path) -> list[Path]:
    """Draws every plot that the run has data for into its folder `plots`.

    Args:
      run_dir: the folder of a run, see `read_run`.

    Returns:
      The PNG files written.

    Raises:
      ValueError: the folder cannot be read, see `read_run`.

    Example:
      >>> plot_run("no/such/run")
      Traceback (most recent call last):
      ValueError: run_dir='no/such/run' expected a folder with metrics.jsonl.
    """
    run = read_run(run_dir)
    plots = {
        accuracy_by_round: bool(run.evals),
        accuracy_by_gbit: bool(run.evals),
        size_by_round: len(set(_headline(run, "parameters")[1])) > 1,
        density_by_round: any(finite(r.get("density")) for r in run.train),
        mismatch_by_round: any(finite(r.get("mismatch")) for r in run.train),
        thresholds_by_round: bool(threshold_layers(run)),
        partition_by_client: run.partition is not None,
    }
    folder = run.path / "plots"
    folder.mkdir(exist_ok=True)
    paths = []
    for plot, has_data in plots.items():
        if has_data:
            paths.append(folder / f"{plot.__name__}.png")
            plot(run, paths[-1])
    return paths + plot_masks(run, folder) + plot_filters(run, folder)


def accuracy_by_round(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model, of training and of the clients.

    Args:
      run: the records.
      path: the PNG to write.
    """
    with axes(path, run, "Accuracy", "round", "accuracy [%]") as ax:
        x, y = series(run, run.train, lambda r: r.get("train_accuracy"))
        draw_line(ax, x, 100 * y, "training, local", "#9a9a9a", 1.2)
        x, y = series(run, run.evals, lambda r: r.get("val_accuracy"))
        draw_line(ax, x, 100 * y, "validation", "#5f9ea0", 1.2)
        x, low = series(run, run.evals, lambda r: _client(r, "p10"))
        _, median = series(run, run.evals, lambda r: _client(r, "median"))
        if len(x) and len(low) == len(median):
            ax.fill_between(
                x,
                100 * low,
                100 * median,
                color=COLORS[0],
                alpha=0.14,
                linewidth=0,
                label="clients, 10th percentile to median",
            )
        for name, color in zip(_models(run), itertools.cycle(COLORS), strict=False):
            x, y = series(run, run.evals, lambda r, n=name: _accuracy(r, n))
            draw_line(ax, x, 100 * y, name, color)
        count_rounds(ax, run)
        legend(ax)


def accuracy_by_gbit(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model over the bits that it cost.

    Args:
      run: the records.
      path: the PNG to write.
    """
    label = "traffic of all clients, up and down [Gbit]"
    with axes(path, run, "Accuracy by traffic", label, "accuracy [%]") as ax:
        for name, color in zip(_models(run), itertools.cycle(COLORS), strict=False):
            pairs = [
                (r["gbit_cumulative"], _accuracy(r, name))
                for r in run.evals
                if finite(_accuracy(r, name))
            ]
            x, y = np.array(pairs, float).reshape(-1, 2).T
            draw_line(ax, x, 100 * y, name, color)
        ends = [
            max((r["gbit_cumulative"] for r in run.train if r["stage"] < i), default=0)
            for i in range(len(run.starts))
        ]
        mark_stages(ax, run, ends)
        ax.set_xlim(left=0)
        legend(ax)


def size_by_round(run: Run, path: Path) -> None:
    """Draws the headline model's accuracy, and its alive parameters on a second axis.

    Args:
      run: the records.
      path: the PNG to write.
    """
    from matplotlib.ticker import EngFormatter

    title = "Accuracy and model size"
    with axes(path, run, title, "round", "accuracy [%]") as ax:
        draw_line(ax, *_headline(run, "accuracy", 100), "accuracy", COLORS[0])
        right = ax.twinx()
        right.set_ylabel("parameters alive")
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        right.yaxis.set_major_formatter(EngFormatter())
        draw_line(right, *_headline(run, "parameters"), "parameters", COLORS[1])
        right.set_ylim(bottom=0)
        count_rounds(ax, run)
        lines = [*ax.lines[:1], *right.lines[:1]]
        right.legend(lines, [line.get_label() for line in lines], loc="best")


def density_by_round(run: Run, path: Path) -> None:
    """Draws the share of weights that are alive, overall and by layer.

    Args:
      run: the records.
      path: the PNG to write.
    """
    with axes(path, run, "Density", "round", "weights alive [%]") as ax:
        draw_layers(ax, run, run.train, "density", "layer_density")


def mismatch_by_round(run: Run, path: Path) -> None:
    """Draws 1 - Jaccard index of the mask and that of the previous round, by layer.

    Args:
      run: the records.
      path: the PNG to write.
    """
    label = "mismatch with the previous round [%]"
    with axes(path, run, "Mask mismatch", "round", label) as ax:
        draw_layers(ax, run, run.train, "mismatch", "layer_mismatch")


def _headline(run: Run, field: str, scale: float = 1.0) -> tuple:
    """Returns the rounds, and a field of the headline model there."""
    x, y = series(
        run, run.evals, lambda r: next(iter(r["models"].values()), {}).get(field)
    )
    return x, scale * y


def _models(run: Run) -> list[str]:
    return list(dict.fromkeys(name for r in run.evals for name in r["models"]))


def _accuracy(record: Record, name: str) -> float | None:
    return record["models"].get(name, {}).get("accuracy")


def _client(record: Record, name: str) -> float | None:
    return (record.get("client_accuracy") or {}).get(name)
