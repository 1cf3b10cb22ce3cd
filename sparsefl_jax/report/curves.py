"""Plots the accuracy of several runs against rounds, traffic and computation."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sparsefl_jax.report.compare import Group, method_of, spread, training_pflop
from sparsefl_jax.report.figure import COLORS, canvas, whole_numbers
from sparsefl_jax.report.lines import finite, legend
from sparsefl_jax.report.load import Record, Run

_LINES = ("-", "--", "-.", ":")


def plot_comparison(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Draws the accuracy of groups of runs, with a band of one deviation over seeds.

    The accuracy is that of the headline model. A group's line goes through the rounds
    that all of its runs evaluated, at the mean traffic or work of the runs.

    Args:
      groups: as `read_groups` returned them.
      folder: the folder of the PNG files; created if absent.

    Returns:
      The files written: `compare_rounds.png`, `compare_gbit.png`, `compare_flops.png`,
      `compare_sparsity.png` if a method has runs of different sparsity, and
      `compare_clients.png` if the runs evaluate single clients. None are written if no
      run has been evaluated.
    """
    groups = [
        group._replace(runs=[run for run in group.runs if run.evals])
        for group in groups
    ]
    groups = [group for group in groups if group.runs]
    if not groups:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    plots = {
        "rounds": ("Accuracy", "round", _done),
        "gbit": ("Accuracy by traffic", "traffic, up and down [Gbit]", _gbit),
        "flops": ("Accuracy by training", "training FLOPs at the masks", _flops),
    }
    paths = []
    for name, (title, label, across) in plots.items():
        paths.append(folder / f"compare_{name}.png")
        with canvas(paths[-1]) as figure:
            ax = figure.subplots()
            ax.set(xlabel=label, ylabel="accuracy [%]", title=title)
            for group, style in zip(groups, _styles(), strict=False):
                _band(ax, _label(group), *_curve(group, across, _accuracy), **style)
            _finish(ax, name)
            legend(ax)
    by_method = _by_sparsity(groups)
    if any(len(points) > 1 for points in by_method.values()):
        paths.append(folder / "compare_sparsity.png")
        _plot_sparsity(by_method, paths[-1])
    if any(finite(_percentile(r, "p10")) for g in groups for r in _evals(g)):
        paths.append(folder / "compare_clients.png")
        _plot_clients(groups, paths[-1])
    return paths


def _by_sparsity(groups: Sequence[Group]) -> dict[str, list]:
    """Returns each method's points: final sparsity, accuracy and its deviation."""
    found = {}
    for group in groups:
        final = [
            next(iter(run.evals[-1]["models"].values()), {}) if run.evals else {}
            for run in group.runs
        ]
        if not all(finite(m.get("density")) for m in final):
            continue
        density, accuracy = (
            spread([m.get(key) for m in final]) for key in ("density", "accuracy")
        )
        if density.mean is None or accuracy.mean is None:
            continue
        if density.mean < 1:
            point = 1 - density.mean, accuracy.mean, accuracy.std or 0.0
            found.setdefault(method_of(group.runs[0]), []).append(point)
    return {method: sorted(points) for method, points in found.items()}


def _plot_sparsity(by_method: dict[str, list], path: Path) -> None:
    """Draws the final accuracy against the share of parameters that are zero."""
    with canvas(path) as figure:
        ax = figure.subplots()
        title = "Accuracy by sparsity"
        ax.set(xlabel="parameters pruned [%]", ylabel="accuracy [%]", title=title)
        for (name, points), style in zip(by_method.items(), _styles(), strict=False):
            x, y, deviation = 100 * np.array(points).T
            ax.errorbar(x, y, deviation, label=name, marker="o", capsize=3, **style)
        legend(ax)


def _plot_clients(groups: Sequence[Group], path: Path) -> None:
    """Draws the clients' median and their 10th percentile, each in its own axes."""
    with canvas(path, (10.4, 4.3)) as figure:
        titles = {"median": "Median of the clients"}
        titles |= {"p10": "10th percentile of the clients"}
        pair = figure.subplots(1, 2, sharey=True)
        for ax, (name, title) in zip(pair, titles.items(), strict=True):
            ax.set(xlabel="round", title=title)
            for group, style in zip(groups, _styles(), strict=False):
                curve = _curve(group, _done, lambda r, n=name: _percentile(r, n))
                _band(ax, _label(group), *curve, **style)
            _finish(ax, "rounds")
        legend(pair[0])
        pair[0].set_ylabel("accuracy on the client's own test split [%]")


def _curve(
    group: Group, across: Callable[[Run, Record], float], value: Callable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the mean x, and the mean and deviation of y, at the shared rounds."""
    by_round = [
        {
            _done(run, r): (across(run, r), value(r))
            for r in run.evals
            if finite(value(r))
        }
        for run in group.runs
    ]
    rounds = sorted(set(by_round[0]).intersection(*by_round[1:]))
    points = np.array([[run[r] for run in by_round] for r in rounds], float)
    x, y = np.moveaxis(points.reshape(-1, len(by_round), 2), -1, 0)
    deviation = y.std(axis=1, ddof=1) if len(by_round) > 1 else np.zeros(len(y))
    return x.mean(axis=1), y.mean(axis=1), deviation


def _band(ax, label: str, x, y, deviation, color: str, linestyle: str) -> None:
    if not len(x):
        return
    marker = "o" if len(x) <= 25 else None
    ax.plot(
        x,
        100 * y,
        label=label,
        color=color,
        linestyle=linestyle,
        marker=marker,
        markersize=4,
    )
    if deviation.any():
        low, high = 100 * (y - deviation), 100 * (y + deviation)
        ax.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0)


def _finish(ax, name: str) -> None:
    from matplotlib.ticker import EngFormatter

    ax.set_xlim(left=0)
    if name == "rounds":
        whole_numbers(ax.xaxis)
    if name == "flops":
        ax.xaxis.set_major_formatter(EngFormatter())


def _styles():
    """Yields all colours with one line style, then with the next one."""
    for linestyle in itertools.cycle(_LINES):
        for color in COLORS:
            yield {"color": color, "linestyle": linestyle}


def _label(group: Group) -> str:
    count = len(group.runs)
    return f"{group.name}, {count} seeds" if count > 1 else group.name


def _evals(group: Group) -> list[Record]:
    return [record for run in group.runs for record in run.evals]


def _accuracy(record: Record) -> float | None:
    return record.get("accuracy")


def _percentile(record: Record, name: str) -> float | None:
    return (record.get("client_accuracy") or {}).get(name)


def _done(run: Run, record: Record) -> int:
    return run.starts[record["stage"]] + record["round"]


def _gbit(run: Run, record: Record) -> float:
    return record["gbit_cumulative"]


def _flops(run: Run, record: Record) -> float:
    return 1e15 * training_pflop(run, record)
