"""Plots the partition: the classes of every client."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.data import FederatedData, partition_counts
from sparsefl_jax.report.figure import FAINT, SIZE, STYLE, axes, whole_numbers
from sparsefl_jax.report.load import Run

_MAX_BAR_CLIENTS = 60
_MAX_MAP_COLUMNS = 400


def partition_by_client(run: Run, path: Path) -> None:
    """Draws the classes of each client, as bars for few clients or a map for many.

    Args:
      run: the records; `partition` holds counts [N, classes].
      path: the file to write.
    """
    with axes(path, "client", "training samples") as ax:
        _draw(ax, run.partition)


def plot_partition(data: FederatedData) -> Any:
    """Draws the classes of each client's training samples into a new pyplot figure.

    Up to 60 clients are bars; more are a map, with the sizes of clients above it.

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

    with plt.rc_context(fname=STYLE):
        _, ax = plt.subplots(figsize=SIZE, layout="constrained")
        ax.set(xlabel="client", ylabel="training samples")
        _draw(ax, partition_counts(data))
    return ax


def _draw(ax, counts: np.ndarray) -> None:
    """Draws counts [N, classes], as bars for few clients or a map for many."""
    draw = _partition_bars if len(counts) <= _MAX_BAR_CLIENTS else _partition_map
    draw(ax, counts)


def _partition_bars(ax, counts: np.ndarray) -> None:
    import matplotlib

    num_clients, num_classes = counts.shape
    name = "tab10" if num_classes <= 10 else "tab20" if num_classes <= 20 else "turbo"
    colors = matplotlib.colormaps[name].resampled(num_classes)(range(num_classes))
    bottom = np.zeros(num_clients)
    for label, column in enumerate(counts.T):
        ax.bar(
            np.arange(num_clients),
            column,
            bottom=bottom,
            width=0.85,
            color=colors[label],
            label=str(label),
        )
        bottom = bottom + column
    whole_numbers(ax.xaxis)
    ax.grid(visible=False, axis="x")
    ax.set_xlim(-0.6, num_clients - 0.4)
    if num_classes <= 20:
        ax.figure.legend(loc="outside lower left", ncols=7)


def _partition_map(ax, counts: np.ndarray) -> None:
    sizes = counts.sum(axis=1)
    shares = counts / np.maximum(sizes, 1)[:, None]
    # Sorted by main class and its share, the map shows blocks instead of noise.
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    # Average neighbours here, because resampling the image would also blur the classes.
    edges = np.arange(0, len(counts), math.ceil(len(counts) / _MAX_MAP_COLUMNS))
    widths = np.diff([*edges, len(counts)])
    sizes = np.add.reduceat(sizes[order], edges) / widths
    shares = np.add.reduceat(shares[order], edges) / widths[:, None]
    top = ax.inset_axes([0.0, 0.74, 1.0, 0.26])
    top.stairs(sizes, [*edges, len(counts)], fill=True, color=FAINT)
    top.set(xlim=(0, len(counts)), ylabel="samples", xticks=[])
    bottom = ax.inset_axes([0.0, 0.0, 1.0, 0.68])
    image = bottom.imshow(
        100 * shares.T,
        aspect="auto",
        cmap="Blues",
        vmin=0,
        interpolation="nearest",
        origin="lower",
        extent=(0, len(counts), -0.5, counts.shape[1] - 0.5),
    )
    bottom.grid(visible=False)
    bottom.set(xlabel="client, ordered by its main class", ylabel="class")
    whole_numbers(bottom.xaxis)
    whole_numbers(bottom.yaxis)
    ax.set_axis_off()
    ax.figure.colorbar(image, ax=ax, label="share of the client's samples [%]")
