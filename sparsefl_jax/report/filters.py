"""Plots active filters over the rounds and by client, and thresholds of filters.

`masks/filters.json`                    {"names": [L], "sizes": [L]}: the layers, in
                                        order, and how many filters each has
`masks/filters_{stage}_{round:06d}.npy` uint8 [N or 1, ceil(sum(sizes) / 8)]:
                                        `np.packbits` along axis 1 of a row for every
                                        client's own model, or one for the server's

Source: Fig. 3 to 5 of Kim et al., "SpaFL: Communication-Efficient Federated Learning
with Sparse Models and Low Computational Overhead", NeurIPS 2024.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sparsefl_jax.report.figure import canvas, name_lines, whole_numbers
from sparsefl_jax.report.lines import (
    by_round,
    column,
    count_rounds,
    draw_line,
    layer_looks,
    short,
    shortened,
    spread,
)
from sparsefl_jax.report.load import Run
from sparsefl_jax.report.masks import Kept, open_snapshots

_KEPT = ("#f1f3f5", "#2a6fb0")  # of no client and of all, legible on light and dark
_MAX_PATTERNS = 6  # layers whose patterns are drawn client by client


def read_filters(run_dir: str | Path) -> Kept | None:
    """Opens the filters that a run kept, without reading them.

    Args:
      run_dir: the folder of a run.

    Returns:
      The filters, or None if the run has no `masks/filters.json`.

    Raises:
      ValueError: a file is damaged, or its size does not fit the layers.

    Example:
      >>> read_filters("no/such/run") is None
      True
    """
    return open_snapshots(run_dir, "filters.json", {"filters": 2})


def plot_filters(run: Run, folder: Path) -> list[Path]:
    """Plots the filters that a run kept, unless none was ever pruned.

    Args:
      run: the records.
      folder: the folder of the files.

    Returns:
      The files written: `filter_activity.svg`, and with personal models also
      `client_filters.svg` and `client_layer_density.svg`.

    Raises:
      ValueError: a file of filters is damaged, see `read_filters`.
    """
    kept = read_filters(run.path)
    if kept is None:
        return []
    # The masks of a stopped run may be ahead of its metrics.
    known = [s for s in kept.filters if s.stage < len(run.starts)]
    kept = kept._replace(filters=known)
    if all(v.all() for s in known for v in kept.active(s).values()):
        return []
    paths = [folder / "filter_activity.svg"]
    filter_activity(run, paths[0], kept)
    if len(known[-1].packed) > 1:
        paths += [folder / "client_filters.svg", folder / "client_layer_density.svg"]
        client_filters(run, paths[1], kept)
        client_layer_density(run, paths[2], kept)
    return paths


def filter_activity(run: Run, path: Path, kept: Kept) -> None:
    """Draws the share of clients that keep each filter of a layer, by round.

    Args:
      run: the records.
      path: the file to write.
      kept: from `read_filters`.
    """
    names = kept.names
    shares = [
        {name: v.mean(0) for name, v in kept.active(s).items()} for s in kept.filters
    ]
    rounds = [run.rounds_until(s.stage, s.round) for s in kept.filters]
    columns = min(len(names), 2 if len(names) <= 4 else 3)
    rows = -(-len(names) // columns)
    with canvas(path, (4.9, 0.6 + 1.6 * rows)) as figure:
        for place, name in enumerate(names, start=1):
            ax = figure.add_subplot(rows, columns, place)
            image = _cells(ax, np.stack([share[name] for share in shares], 1))
            _name_columns(ax, rounds, most=5)
            ax.set_title(shortened(short(name), 42 // columns))
        figure.supxlabel("round", fontsize=9.5)
        figure.supylabel("filter", fontsize=9.5)
        clients = max(len(s.packed) for s in kept.filters)
        label = "clients that keep the filter" if clients > 1 else "kept by the server"
        figure.colorbar(image, ax=figure.axes, label=f"{label} [%]", aspect=30)


def client_filters(run: Run, path: Path, kept: Kept) -> None:
    """Draws the filters that each client keeps in blue and the pruned ones in grey.

    Of layers and of the last stage's rounds it draws the first, the last and some
    between.

    Args:
      run: the records.
      path: the file to write.
      kept: from `read_filters`, with personal models in the last stage.
    """
    last = [s for s in kept.filters if s.stage == kept.filters[-1].stage]
    chosen = [last[i] for i in spread(len(last), 3)]
    layers = [kept.names[i] for i in spread(len(kept.names), _MAX_PATTERNS)]
    with canvas(path, (4.9, 0.6 + 1.5 * len(layers))) as figure:
        grid = figure.subplots(len(layers), len(chosen), squeeze=False)
        for column, snapshot in enumerate(chosen):
            active = kept.active(snapshot)
            done = run.rounds_until(snapshot.stage, snapshot.round)
            for row, name in enumerate(layers):
                ax = grid[row, column]
                _cells(ax, active[name])
                whole_numbers(ax.xaxis)
                head = "" if row else f"round {done}\n"
                ax.set_title(f"{head}{100 * active[name].mean():.1f} %")
                if column == 0:
                    ax.set_ylabel(shortened(short(name), 16), fontsize=8.5)
        figure.supxlabel("filter", fontsize=9.5)
        figure.supylabel("client", fontsize=9.5)


def client_layer_density(run: Run, path: Path, kept: Kept) -> None:
    """Draws the share of each layer's filters that each client keeps at the end.

    Args:
      run: the records.
      path: the file to write.
      kept: from `read_filters`; its last snapshot is drawn.
    """
    snapshot = kept.filters[-1]
    active = kept.active(snapshot)
    shares = np.stack([v.mean(1) for v in active.values()], 1)
    with canvas(path, (4.9, 3.9)) as figure:
        ax = figure.subplots()
        image = _cells(ax, shares, "viridis")
        _name_columns(ax, [short(name) for name in active], most=24)
        ax.tick_params(axis="x", rotation=90)
        ax.set_ylabel("client")
        done = run.rounds_until(snapshot.stage, snapshot.round)
        label = f"filters kept, round {done} [%]"
        figure.colorbar(image, ax=ax, label=label)


def thresholds_by_round(run: Run, path: Path) -> None:
    """Draws the mean and the largest threshold of every layer's filters.

    Args:
      run: the records, with the server's `threshold_mean/LAYER` and
        `threshold_max/LAYER`.
      path: the file to write.
    """
    names, table = threshold_layers(run), by_round(run, run.train)
    with canvas(path, (4.9, 4.6)) as figure:
        pair = figure.subplots(2, 1, sharex=True)
        for ax, kind in zip(pair, ("mean", "max"), strict=True):
            for name, (label, color) in zip(names, layer_looks(names), strict=True):
                values = column(table, f"server.threshold_{kind}/{name}")
                draw_line(ax, values, short(label), color, 1.3)
            count_rounds(ax, run)
            name_lines(ax)
        pair[0].set(ylabel="mean threshold")
        pair[1].set(xlabel="round", ylabel="largest threshold")


def threshold_layers(run: Run) -> list[str]:
    """Returns the layers whose global thresholds a run has logged, in order."""
    keys = dict.fromkeys(k for r in run.train for k in r.get("server", {}))
    head = "threshold_mean/"
    return [key.removeprefix(head) for key in keys if key.startswith(head)]


def _cells(ax, shares: np.ndarray, colors: str = ""):
    """Draws shares [rows, columns] as cells on a scale from 0 to 100 %."""
    from matplotlib.colors import LinearSegmentedColormap

    kept = LinearSegmentedColormap.from_list("kept", _KEPT)
    image = ax.imshow(
        100.0 * shares, aspect="auto", cmap=colors or kept, vmin=0, vmax=100
    )
    ax.grid(visible=False)
    ax.tick_params(labelsize=7)
    whole_numbers(ax.yaxis)
    return image


def _name_columns(ax, names: Sequence, most: int) -> None:
    ticks = spread(len(names), most)
    ax.set_xticks(ticks, [str(names[i]) for i in ticks])
