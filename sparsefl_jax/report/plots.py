"""Plots one run: accuracy, loss and density by round, its masks and partition.

Each function takes the records that `read_run` returned and the path of a file, whose
suffix gives the format. Rounds are counted over all stages. Values that are absent or
not finite are left out. Matplotlib is imported only when drawing.
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.data import FederatedData, names, partition_counts
from sparsefl_jax.report import costs, figure
from sparsefl_jax.report.comparison_figures import label_costs
from sparsefl_jax.report.costs import best_eval
from sparsefl_jax.report.figure import COLORS, FAINT, INK
from sparsefl_jax.report.load import Run, by_round, column, read_run

_MAX_BAR_CLIENTS = 60
_MAX_MAP_COLUMNS = 400


def plot_run(run_dir: str | Path) -> list[Path]:
    """Draws every plot that the run has data for into its folder `plots`.

    Densities and mismatches that never change are left out.

    Args:
      run_dir: the folder of a run, see `read_run`.

    Returns:
      The SVG files written.

    Raises:
      ValueError: the folder cannot be read, see `read_run`.

    Example:
      >>> plot_run("no/such/run")
      Traceback (most recent call last):
      sparsefl_jax.UserError: run_dir='no/such/run' expected a folder with
      metrics.jsonl.
    """
    run = read_run(run_dir)
    table = by_round(run, run.train)
    densities = table.filter(regex="^(layer_)?density")
    plots = {
        accuracy_by_round: bool(run.evals),
        loss_by_round: bool(run.train),
        accuracy_by_gbit: bool(run.evals),
        density_by_round: bool((densities.nunique() > 1).any()),
        mismatch_by_round: bool((column(table, "mismatch") > 0).any()),
        partition_by_client: run.partition is not None,
    }
    folder = run.path / "plots"
    folder.mkdir(exist_ok=True)
    paths = []
    for plot, has_data in plots.items():
        if has_data:
            paths.append(folder / f"{plot.__name__}.svg")
            plot(run, paths[-1])
    return paths


def accuracy_by_round(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model, of training and of the clients.

    A ring marks the best evaluation of the headline model.

    Args:
      run: the records.
      path: the file to write.
    """
    scale, label = figure.scale_of(costs.measure_of(run))
    train, evals = (scale * by_round(run, r) for r in (run.train, run.evals))
    with figure.axes(path, "round", label) as ax:
        trained = column(train if scale == 100 else train.iloc[:0], "train_accuracy")
        figure.draw_line(ax, trained, "training, local", FAINT, 1.0)
        figure.draw_line(
            ax, column(evals, "val_accuracy"), "validation", COLORS[2], 1.2
        )
        for name, color in (("median", COLORS[5]), ("p10", COLORS[6])):
            values = column(evals, f"client_accuracy.{name}")
            figure.draw_line(ax, values, f"clients, {name}", color, 1.0)
        _draw_accuracies(ax, run, evals, run.done)
        figure.count_rounds(ax, run)
        figure.name_lines(ax)


def loss_by_round(run: Run, path: Path) -> None:
    """Draws the loss of training and of every deployed model on the test set.

    Args:
      run: the records.
      path: the file to write.
    """
    train, evals = (by_round(run, records) for records in (run.train, run.evals))
    unit = " [nats a sample]" * (costs.measure_of(run) == "accuracy")
    with figure.axes(path, "round", f"loss{unit}") as ax:
        figure.draw_line(ax, column(train, "loss"), "training, local", FAINT, 1.2)
        _draw_models(ax, run, evals, "loss", suffix=" (test)")
        figure.count_rounds(ax, run)
        figure.name_lines(ax)


def accuracy_by_gbit(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model over the bits that it cost.

    Args:
      run: the records.
      path: the file to write.
    """
    with figure.axes(path) as ax:
        evals, axis = by_round(run, run.evals), costs.axis("gbit")
        evals.index = axis.scale * evals["gbit_cumulative"]
        scale, label = figure.scale_of(costs.measure_of(run))
        spent = lambda record: axis.scale * record["gbit_cumulative"]  # noqa: E731
        _draw_accuracies(ax, run, scale * evals, spent)
        starts = costs.progress(run)["gbit"].reindex(run.starts, fill_value=0.0)
        figure.mark_stages(ax, list(axis.scale * starts))
        ax.set_xlim(left=0)
        label_costs(ax, axis, [evals.index.max()], label)
        figure.name_lines(ax)


def density_by_round(run: Run, path: Path) -> None:
    """Draws the share of weights that are alive, overall and by layer.

    Args:
      run: the records.
      path: the file to write.
    """
    with figure.axes(path, "round", "weights alive [%]") as ax:
        figure.draw_layers(ax, run, "density")


def mismatch_by_round(run: Run, path: Path) -> None:
    """Draws 1 - Jaccard index of the mask and that of the previous round, by layer.

    Args:
      run: the records.
      path: the file to write.
    """
    with figure.axes(path, "round", "mismatch with the previous round [%]") as ax:
        figure.draw_layers(ax, run, "mismatch")


def _draw_models(ax, run: Run, evals, field: str, suffix: str = "") -> None:
    """Draws a field of every deployed model."""
    names = dict.fromkeys(name for r in run.evals for name in r["models"])
    colors = itertools.cycle(COLORS[:2] + COLORS[3:])  # the third is validation's
    for name, color in zip(names, colors, strict=False):
        values = column(evals, f"models.{name}.{field}")
        figure.draw_line(ax, values, name + suffix, color)


def _draw_accuracies(ax, run: Run, evals, place: Callable) -> None:
    """Draws the accuracies over `place` of records, and a ring around the best."""
    _draw_models(ax, run, evals, "accuracy")
    if (best := best_eval(run)) is not None:
        y = figure.scale_of(costs.measure_of(run))[0] * best["accuracy"]
        ax.plot(place(best), y, "o", ms=9, mfc="none", mec=INK, zorder=4)


def partition_by_client(run: Run, path: Path) -> None:
    """Draws the classes of each client, as bars for few clients or a map for many.

    Args:
      run: the records; `partition` holds counts [N, classes].
      path: the file to write.
    """
    with figure.axes(path, "client", "training samples") as ax:
        _draw_partition(ax, run.partition, **run.summary.get("names", {}))


def plot_partition(data: FederatedData) -> Any:
    """Draws the classes of each client's training samples into a new pyplot figure.

    Up to 60 clients are bars; more are a map of shares, of at most 400 of them.

    Args:
      data: from `federate` or `from_arrays`.

    Returns:
      The `matplotlib.axes.Axes`; `ax.figure.savefig(path)` writes a file.

    Example:
      >>> from sparsefl_jax.data import from_arrays
      >>> x, y = np.zeros((20, 2), np.float32), np.arange(20) % 2
      >>> ax = plot_partition(from_arrays(x, y, num_clients=5))
      >>> ax.get_xlabel(), len(ax.patches)
      ('client', 10)
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(fname=figure.STYLE):
        _, ax = plt.subplots(figsize=figure.SIZE, layout="constrained")
        ax.set(xlabel="client", ylabel="training samples")
        _draw_partition(ax, partition_counts(data), **names(data))
    return ax


def _draw_partition(ax, counts: np.ndarray, classes=None, clients=None) -> None:
    """Draws counts [N, classes], as bars for few clients or a map for many."""
    import matplotlib

    num_clients, num_classes = counts.shape
    if num_clients > _MAX_BAR_CLIENTS:
        _draw_map(ax, counts, classes)
        return
    classes = classes or range(num_classes)
    name = "tab10" if num_classes <= 10 else "tab20" if num_classes <= 20 else "turbo"
    colors = matplotlib.colormaps[name].resampled(num_classes)(range(num_classes))
    bottoms = np.cumsum(counts, axis=1) - counts
    bars = zip(classes, counts.T, bottoms.T, colors, strict=True)
    for label, sizes, bottom, color in bars:
        ax.bar(range(num_clients), sizes, 0.85, bottom, color=color, label=str(label))
    figure.whole_numbers(ax.xaxis)
    if clients:
        ax.set_xticks(range(num_clients), clients, rotation=90, fontsize="small")
    ax.grid(visible=False, axis="x")
    ax.set_xlim(-0.6, num_clients - 0.4)
    if num_classes <= 20:
        ax.figure.legend(loc="outside lower left", ncols=7)


def _draw_map(ax, counts: np.ndarray, classes=None) -> None:
    num_clients, num_classes = counts.shape
    shares = counts / np.maximum(counts.sum(axis=1), 1)[:, None]
    # Sorted by main class and its share, the map shows blocks instead of noise.
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    order = order[:: math.ceil(num_clients / _MAX_MAP_COLUMNS)]
    extent = 0, num_clients, -0.5, num_classes - 0.5
    style = {"aspect": "auto", "origin": "lower", "extent": extent}
    image = ax.imshow(100 * shares[order].T, vmin=0, cmap="Blues", **style)
    ax.grid(visible=False)
    ax.set(xlabel="client, ordered by its main class", ylabel="class")
    figure.whole_numbers(ax.xaxis)
    figure.whole_numbers(ax.yaxis)
    if classes and num_classes <= 20:
        ax.set_yticks(range(num_classes), classes)
    ax.figure.colorbar(image, ax=ax, label="share of the client's samples [%]")
