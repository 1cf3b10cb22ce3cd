"""Plots one run over its rounds: accuracy, loss, density and mask mismatch.

Each function takes the records that `read_run` returned and the path of a file, whose
suffix gives the format. Rounds are counted over all stages. Values that are absent or
not finite are left out. Matplotlib is imported only when drawing.
"""

import itertools
from pathlib import Path

import numpy as np

from sparsefl_jax.report.comparison.costs import axis
from sparsefl_jax.report.comparison.evaluations import accuracy, best_eval
from sparsefl_jax.report.comparison.figures import scale_costs
from sparsefl_jax.report.figure import COLORS, FAINT, INK, axes, legend
from sparsefl_jax.report.filters import (
    plot_filters,
    threshold_layers,
    thresholds_by_round,
)
from sparsefl_jax.report.lines import (
    coinciding,
    count_rounds,
    draw_layers,
    draw_line,
    finite,
    mark_stages,
    series,
)
from sparsefl_jax.report.load import Record, Run, read_run
from sparsefl_jax.report.mismatch import plot_masks
from sparsefl_jax.report.partition import partition_by_client
from sparsefl_jax.report.unchanged import changes, constant_density


def plot_run(run_dir: str | Path) -> list[Path]:
    """Draws every plot that the run has data for into its folder `plots`.

    A plot that would show nothing but a constant is left out, see `unchanged.py`.

    Args:
      run_dir: the folder of a run, see `read_run`.

    Returns:
      The SVG files written.

    Raises:
      ValueError: the folder cannot be read, see `read_run`.

    Example:
      >>> plot_run("no/such/run")
      Traceback (most recent call last):
      ValueError: run_dir='no/such/run' expected a folder with metrics.jsonl.
    """
    run = read_run(run_dir)
    models = [model for record in run.evals for model in record["models"].values()]
    plots = {
        accuracy_by_round: bool(run.evals),
        loss_by_round: any(
            finite(found.get("loss")) for found in [*run.train, *models]
        ),
        accuracy_by_gbit: bool(run.evals),
        size_by_round: len(set(_headline(run, "parameters")[1])) > 1,
        density_by_round: constant_density(run) is False,
        mismatch_by_round: len(changes(run) or ()) > 1,
        thresholds_by_round: bool(threshold_layers(run)),
        partition_by_client: run.partition is not None,
    }
    folder = run.path / "plots"
    folder.mkdir(exist_ok=True)
    paths = []
    for plot, has_data in plots.items():
        if has_data:
            paths.append(folder / f"{plot.__name__}.svg")
            plot(run, paths[-1])
    return paths + plot_masks(run, folder) + plot_filters(run, folder)


def accuracy_by_round(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model, of training and of the clients.

    A ring marks the best evaluation of the headline model.

    Args:
      run: the records.
      path: the file to write.
    """
    with axes(path, "round", "accuracy [%]") as ax:
        x, y = series(run, run.train, lambda r: r.get("train_accuracy"))
        draw_line(ax, x, 100 * y, "training, local", FAINT, 1.0)
        x, y = series(run, run.evals, lambda r: r.get("val_accuracy"))
        draw_line(ax, x, 100 * y, "validation", COLORS[2], 1.2)
        x, low = series(
            run, run.evals, lambda r: r.get("client_accuracy", {}).get("p10")
        )
        _, median = series(
            run, run.evals, lambda r: r.get("client_accuracy", {}).get("median")
        )
        if len(x) and len(low) == len(median):
            ax.fill_between(
                x,
                100 * low,
                100 * median,
                color=COLORS[0],
                alpha=0.14,
                linewidth=0,
                label="clients, p10 to median",
            )
        _draw_models(ax, run, "accuracy", 100.0)
        if (best := best_eval(run)) is not None:
            _mark_best(ax, run.rounds_until(best["stage"], best["round"]), best)
        count_rounds(ax, run)
        legend(ax)


def loss_by_round(run: Run, path: Path) -> None:
    """Draws the loss of training and of every deployed model on the test set.

    Args:
      run: the records.
      path: the file to write.
    """
    with axes(path, "round", "loss [nats a sample]") as ax:
        x, y = series(run, run.train, lambda r: r.get("loss"))
        draw_line(ax, x, y, "training, local", FAINT, 1.2)
        _draw_models(ax, run, "loss", suffix=" (test)")
        count_rounds(ax, run)
        legend(ax)


def accuracy_by_gbit(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model over the bits that it cost.

    Args:
      run: the records.
      path: the file to write.
    """
    with axes(path, "", "") as ax:
        end = max(r["gbit_cumulative"] for r in run.evals)
        scale = scale_costs(ax, [end], axis("gbit"))
        _draw_models(ax, run, "accuracy", 100.0, "gbit_cumulative", scale)
        if (best := best_eval(run)) is not None:
            _mark_best(ax, scale * best["gbit_cumulative"], best)
        ends = [
            max((r["gbit_cumulative"] for r in run.train if r["stage"] < i), default=0)
            for i in range(len(run.starts))
        ]
        mark_stages(ax, run, [scale * end for end in ends])
        ax.set_xlim(left=0)
        legend(ax)


def size_by_round(run: Run, path: Path) -> None:
    """Draws the headline model's accuracy, and its alive parameters on a second axis.

    Args:
      run: the records.
      path: the file to write.
    """
    from matplotlib.ticker import EngFormatter

    with axes(path, "round", "accuracy [%]") as ax:
        x, y = _headline(run, "accuracy")
        draw_line(ax, x, 100 * y, "accuracy", COLORS[0])
        right = ax.twinx()
        right.set_ylabel("parameters alive")
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        right.yaxis.set_major_formatter(EngFormatter())
        draw_line(right, *_headline(run, "parameters"), "parameters", COLORS[1])
        right.set_ylim(bottom=0)
        count_rounds(ax, run)
        legend(ax, [*ax.lines[:1], *right.lines[:1]])


def density_by_round(run: Run, path: Path) -> None:
    """Draws the share of weights that are alive, overall and by layer.

    Args:
      run: the records.
      path: the file to write.
    """
    with axes(path, "round", "weights alive [%]") as ax:
        draw_layers(ax, run, run.train, "density", "layer_density")


def mismatch_by_round(run: Run, path: Path) -> None:
    """Draws 1 - Jaccard index of the mask and that of the previous round, by layer.

    Args:
      run: the records.
      path: the file to write.
    """
    with axes(path, "round", "mismatch with the previous round [%]") as ax:
        draw_layers(ax, run, run.train, "mismatch", "layer_mismatch")


def _draw_models(
    ax,
    run: Run,
    field: str,
    scale: float = 1.0,
    at: str | None = None,
    at_scale: float = 1.0,
    suffix: str = "",
) -> None:
    """Draws a field of every deployed model; models with one line share it."""
    names = dict.fromkeys(name for r in run.evals for name in r["models"])
    lines = {
        name: series(
            run, run.evals, lambda r, n=name: r["models"].get(n, {}).get(field), at
        )
        for name in names
    }
    groups = coinciding(lines, within=1e-3)
    colors = itertools.cycle(COLORS[:2] + COLORS[3:])  # the third is validation's
    for (label, (x, y)), color in zip(groups.items(), colors, strict=False):
        draw_line(ax, at_scale * x, scale * y, label + suffix, color)


def _mark_best(ax, x: float, best: Record) -> None:
    """Draws a ring around the best evaluation."""
    y = 100 * (accuracy(best) or 0.0)  # the best is finite
    ax.plot(
        [x],
        [y],
        label="best",
        zorder=4,
        ls="none",
        marker="o",
        ms=9,
        mfc="none",
        mec=INK,
    )


def _headline(run: Run, field: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rounds, and a field of the headline model there."""
    return series(
        run, run.evals, lambda r: next(iter(r["models"].values()), {}).get(field)
    )
