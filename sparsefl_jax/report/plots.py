"""Plots one run over its rounds: accuracy, loss, density and mask mismatch.

Each function takes the records that `read_run` returned and the path of a file, whose
suffix gives the format. Rounds are counted over all stages. Values that are absent or
not finite are left out. Matplotlib is imported only when drawing.
"""

import itertools
from pathlib import Path

from sparsefl_jax.report import density, lines, maps
from sparsefl_jax.report.comparison import costs, figures
from sparsefl_jax.report.comparison.evaluations import accuracy, best_eval, last_eval
from sparsefl_jax.report.figure import COLORS, FAINT, INK, axes, canvas, name_lines
from sparsefl_jax.report.load import Record, Run, by_round, column, read_run
from sparsefl_jax.report.partition import partition_by_client


def plot_run(run_dir: str | Path) -> list[Path]:
    """Draws every plot that the run has data for into its folder `plots`.

    A plot that would show nothing but a constant is left out, see `density.changes`.

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
    logged = by_round(run, run.train)
    plots = {
        accuracy_by_round: bool(run.evals),
        loss_by_round: bool(run.train),
        accuracy_by_gbit: bool(run.evals),
        size_by_round: _headline(run, "parameters").nunique() > 1,
        density_by_round: density.constant(run) is False,
        mismatch_by_round: len(density.changes(run) or ()) > 1,
        thresholds_by_round: any("server.threshold_mean/" in n for n in logged),
        partition_by_client: run.partition is not None,
    }
    folder = run.path / "plots"
    folder.mkdir(exist_ok=True)
    paths = []
    for plot, has_data in plots.items():
        if has_data:
            paths.append(folder / f"{plot.__name__}.svg")
            plot(run, paths[-1])
    return paths + maps.plot_masks(run, folder) + maps.plot_filters(run, folder)


def accuracy_by_round(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model, of training and of the clients.

    A ring marks the best evaluation of the headline model.

    Args:
      run: the records.
      path: the file to write.
    """
    train, evals = (100 * by_round(run, r) for r in (run.train, run.evals))
    with axes(path, "round", "accuracy [%]") as ax:
        lines.draw_line(
            ax, column(train, "train_accuracy"), "training, local", FAINT, 1.0
        )
        lines.draw_line(ax, column(evals, "val_accuracy"), "validation", COLORS[2], 1.2)
        for name in ("median", "p10"):
            values = column(evals, f"client_accuracy.{name}")
            lines.draw_line(ax, values, f"clients, {name}", COLORS[5], 1.0)
        _draw_models(ax, run, evals, "accuracy")
        if (best := best_eval(run)) is not None:
            _mark_best(ax, run.done(best), best)
        lines.count_rounds(ax, run)
        name_lines(ax)


def loss_by_round(run: Run, path: Path) -> None:
    """Draws the loss of training and of every deployed model on the test set.

    Args:
      run: the records.
      path: the file to write.
    """
    train, evals = (by_round(run, records) for records in (run.train, run.evals))
    with axes(path, "round", "loss [nats a sample]") as ax:
        lines.draw_line(ax, column(train, "loss"), "training, local", FAINT, 1.2)
        _draw_models(ax, run, evals, "loss", suffix=" (test)")
        lines.count_rounds(ax, run)
        name_lines(ax)


def accuracy_by_gbit(run: Run, path: Path) -> None:
    """Draws the accuracy of every deployed model over the bits that it cost.

    Args:
      run: the records.
      path: the file to write.
    """
    with axes(path, "", "") as ax:
        evals = by_round(run, run.evals)
        scale = figures.scale_costs(
            ax, [evals["gbit_cumulative"].max()], costs.axis("gbit")
        )
        evals.index = scale * evals["gbit_cumulative"]
        _draw_models(ax, run, 100 * evals, "accuracy")
        if (best := best_eval(run)) is not None:
            _mark_best(ax, scale * best["gbit_cumulative"], best)
        starts = costs.progress(run)["gbit"].reindex(run.starts, fill_value=0.0)
        lines.mark_stages(ax, run, list(scale * starts))
        ax.set_xlim(left=0)
        name_lines(ax)


def size_by_round(run: Run, path: Path) -> None:
    """Draws the headline model's accuracy, and its alive parameters on a second axis.

    Each axis has the colour of its line.

    Args:
      run: the records.
      path: the file to write.
    """
    from matplotlib.ticker import EngFormatter

    with axes(path, "round", "accuracy [%]") as ax:
        lines.draw_line(ax, 100 * _headline(run, "accuracy"), "accuracy", COLORS[0])
        ax.yaxis.label.set_color(COLORS[0])
        right = ax.twinx()
        right.set_ylabel("parameters alive", color=COLORS[1])
        right.grid(visible=False)
        right.spines["right"].set_visible(True)
        right.yaxis.set_major_formatter(EngFormatter())
        lines.draw_line(right, _headline(run, "parameters"), "parameters", COLORS[1])
        right.set_ylim(bottom=0)
        lines.count_rounds(ax, run)


def density_by_round(run: Run, path: Path) -> None:
    """Draws the share of weights that are alive, overall and by layer.

    Args:
      run: the records.
      path: the file to write.
    """
    with axes(path, "round", "weights alive [%]") as ax:
        lines.draw_layers(ax, run, run.train, "density")


def mismatch_by_round(run: Run, path: Path) -> None:
    """Draws 1 - Jaccard index of the mask and that of the previous round, by layer.

    Args:
      run: the records.
      path: the file to write.
    """
    with axes(path, "round", "mismatch with the previous round [%]") as ax:
        lines.draw_layers(ax, run, run.train, "mismatch")


def thresholds_by_round(run: Run, path: Path) -> None:
    """Draws the mean and the largest threshold of every layer's filters.

    This is Fig. 3 of Kim et al. (SpaFL), NeurIPS 2024.

    Args:
      run: the records, with the server's `threshold_mean/LAYER` and
        `threshold_max/LAYER`.
      path: the file to write.
    """
    table = by_round(run, run.train)
    with canvas(path, (4.9, 4.6)) as figure:
        pair = figure.subplots(2, 1, sharex=True)
        for ax, kind in zip(pair, ("mean", "max"), strict=True):
            found = lines.of_layers(table, f"server.threshold_{kind}/")
            lines.draw_depths(ax, found)
            lines.count_rounds(ax, run)
            name_lines(ax)
        pair[0].set(ylabel="mean threshold")
        pair[1].set(xlabel="round", ylabel="largest threshold")


def _draw_models(ax, run: Run, evals, field: str, suffix: str = "") -> None:
    """Draws a field of every deployed model; models with one line share it."""
    names = dict.fromkeys(name for r in run.evals for name in r["models"])
    found = {name: column(evals, f"models.{name}.{field}") for name in names}
    groups = lines.coinciding(found, within=1e-3)
    colors = itertools.cycle(COLORS[:2] + COLORS[3:])  # the third is validation's
    for (label, values), color in zip(groups.items(), colors, strict=False):
        lines.draw_line(ax, values, label + suffix, color)


def _mark_best(ax, x: float, best: Record) -> None:
    """Draws a ring around the best evaluation."""
    y = 100 * (accuracy(best) or 0.0)  # the best is finite
    ax.plot(x, y, "o", ms=9, mfc="none", mec=INK, zorder=4)


def _headline(run: Run, field: str):
    """Returns a field of the last headline model by round."""
    name = next(iter(last_eval(run)["models"]), "")
    return column(by_round(run, run.evals), f"models.{name}.{field}")
