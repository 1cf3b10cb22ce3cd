"""Draws the masks and filters that a run kept, as maps of cells.

Sources: Fig. 3 and 4 of Babakniya et al., "Revisiting Sparsity Hunting in Federated
Learning" (FLASH), TMLR 2023, for the mismatch of masks; Fig. 4 and 5 of Kim et al.,
"SpaFL: Communication-Efficient Federated Learning with Sparse Models and Low
Computational Overhead", NeurIPS 2024, for filters.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sparsefl_jax.report import figure, kept_masks
from sparsefl_jax.report.figure import short, shortened, spread
from sparsefl_jax.report.kept_masks import Kept, Snapshot, pairwise_mismatch
from sparsefl_jax.report.load import Run

_MAX_PANELS = 9
_MAX_NAMED = 20
_MAX_PATTERNS = 6  # layers whose patterns are drawn client by client
_SCALES = (1, 2, 5, 10, 20, 50, 100)  # ends of colour scales, in percent
_KEPT = ("#f1f3f5", "#2a6fb0")  # of no client and of all, legible on light and dark


def plot_masks(run: Run, folder: Path) -> list[Path]:
    """Plots the masks that a run kept, if any.

    Args:
      run: the records.
      folder: the folder of the files.

    Returns:
      The files written: `mask_mismatch.svg` if the masks of two rounds differ, and
      `client_mismatch.svg` and `client_mismatch_by_layer.svg` if those of two clients
      of an observed round do.

    Raises:
      ValueError: a file of masks is damaged, see `read_masks`.
    """
    if (kept := kept_masks.read_masks(run)) is None:
        return []
    paths, server = [], [snapshot.packed for snapshot in kept.server]
    if not kept_masks.same_masks(server):
        paths.append(folder / "mask_mismatch.svg")
        mismatch, _ = pairwise_mismatch(server, kept.sizes)
        mismatch_between_rounds(paths[-1], [s.done for s in kept.server], mismatch)
    clients = [s for s in kept.clients if len(s.packed) > 1]
    if not all(kept_masks.same_masks(s.packed) for s in clients):
        records = [_client_record(run, kept, snapshot) for snapshot in clients]
        paths.append(folder / "client_mismatch.svg")
        mismatch_between_clients(paths[-1], records)
        paths.append(folder / "client_mismatch_by_layer.svg")
        with figure.axes(paths[-1], "round", "mean mismatch of two clients [%]") as ax:
            figure.draw_layers(ax, run, records, "mean")
    return paths


def mismatch_between_rounds(
    path: Path, rounds: Sequence[int], mismatch: np.ndarray
) -> None:
    """Draws the mismatch of the server's masks of every two rounds, over all layers.

    Args:
      path: the file to write.
      rounds: [S], counted over all stages.
      mismatch: [S, S], shares.
    """
    with figure.canvas(path, (4.9, 4.0)) as drawing:
        ax = drawing.subplots()
        image = _mismatch(ax, mismatch, [str(r) for r in rounds], mismatch.max())
        ax.set(xlabel="round", ylabel="round")
        _colorbar(drawing, image, ax, mismatch.max())


def mismatch_between_clients(path: Path, records: Sequence[dict]) -> None:
    """Draws the mismatch of the masks that every two clients of a round sent.

    If many rounds were observed, it draws the first, the last and some between.

    Args:
      path: the file to write.
      records: for each observed round, `done` of all stages, `clients` ([K] names), the
        `mismatch` [K, K] and its `mean`, shares.
    """
    records = [records[i] for i in spread(len(records), _MAX_PANELS)]
    largest = max(record["mismatch"].max() for record in records)
    columns = min(len(records), 3)
    rows = math.ceil(len(records) / columns)
    with figure.canvas(path, (4.9, 0.6 + rows * 4.2 / max(columns, 1.5))) as drawing:
        for place, record in enumerate(records, start=1):
            ax = drawing.add_subplot(rows, columns, place)
            image = _mismatch(ax, record["mismatch"], record["clients"], largest)
            ax.set_title(f"round {record['done']}\n{100 * record['mean']:.1f} %")
            ax.tick_params(labelsize=7)
        label = "client" if records[0]["clients"] else "client, in the order drawn"
        drawing.supxlabel(label, fontsize=9.5)
        drawing.supylabel(label, fontsize=9.5)
        _colorbar(drawing, image, drawing.axes, largest)


def plot_filters(run: Run, folder: Path) -> list[Path]:
    """Plots the filters that a run kept, unless none was ever pruned.

    Args:
      run: the records.
      folder: the folder of the files.

    Returns:
      The files written: `filter_activity.svg`, and with personal models also
      `client_filters.svg`.

    Raises:
      ValueError: a file of filters is damaged, see `read_masks`.
    """
    if (kept := kept_masks.read_masks(run, "filters")) is None:
        return []
    active = [kept.active(snapshot) for snapshot in kept.filters]
    if all(alive.all() for layers in active for alive in layers.values()):
        return []
    paths = [folder / "filter_activity.svg"]
    filter_activity(paths[0], kept)
    if len(kept.filters[-1].packed) > 1:
        paths.append(folder / "client_filters.svg")
        client_filters(paths[1], kept)
    return paths


def filter_activity(path: Path, kept: Kept) -> None:
    """Draws the share of clients that keep each filter of a layer, by round.

    Args:
      path: the file to write.
      kept: the filters.
    """
    names, active = kept.names, [kept.active(s) for s in kept.filters]
    columns = min(len(names), 2 if len(names) <= 4 else 3)
    rows = -(-len(names) // columns)
    with figure.canvas(path, (4.9, 0.6 + 1.6 * rows)) as drawing:
        for place, name in enumerate(names, start=1):
            ax = drawing.add_subplot(rows, columns, place)
            image = _filters(ax, np.stack([found[name].mean(0) for found in active], 1))
            rounds = [str(snapshot.done) for snapshot in kept.filters]
            ticks = spread(len(rounds), 5)
            ax.set_xticks(ticks, [rounds[i] for i in ticks])
            ax.set_title(shortened(short(name), 42 // columns))
        drawing.supxlabel("round", fontsize=9.5)
        drawing.supylabel("filter", fontsize=9.5)
        clients = max(len(s.packed) for s in kept.filters)
        label = "clients that keep the filter" if clients > 1 else "kept by the server"
        drawing.colorbar(image, ax=drawing.axes, label=f"{label} [%]", aspect=30)


def client_filters(path: Path, kept: Kept) -> None:
    """Draws the filters that each client keeps in blue and the pruned ones in grey.

    Of layers and of the last stage's rounds it draws the first, the last and some
    between.

    Args:
      path: the file to write.
      kept: the filters, with personal models in the last stage.
    """
    last = [s for s in kept.filters if s.stage == kept.filters[-1].stage]
    chosen = [last[i] for i in spread(len(last), 3)]
    layers = [kept.names[i] for i in spread(len(kept.names), _MAX_PATTERNS)]
    with figure.canvas(path, (4.9, 0.6 + 1.5 * len(layers))) as drawing:
        grid = drawing.subplots(len(layers), len(chosen), squeeze=False)
        for column, snapshot in zip(grid.T, chosen, strict=True):
            active = kept.active(snapshot)
            for ax, name in zip(column, layers, strict=True):
                _filters(ax, active[name])
                figure.whole_numbers(ax.xaxis)
                head = f"round {snapshot.done}\n" if ax is column[0] else ""
                ax.set_title(f"{head}{100 * active[name].mean():.1f} %")
        for ax, name in zip(grid[:, 0], layers, strict=True):
            ax.set_ylabel(shortened(short(name), 16), fontsize=8.5)
        drawing.supxlabel("filter", fontsize=9.5)
        drawing.supylabel("client", fontsize=9.5)


def _client_record(run: Run, kept: Kept, snapshot: Snapshot) -> dict:
    """Returns the mismatch in an observed round, and the ids of its clients."""
    position = (snapshot.stage, snapshot.round)
    ids = [r["clients"] for r in run.train if (r["stage"], r["round"]) == position]
    few = [len(snapshot.packed)] == [len(i) for i in ids if len(i) <= _MAX_NAMED]
    mismatch, by_layer = pairwise_mismatch(snapshot.packed, kept.sizes)
    means = kept_masks.mean_of_pairs(by_layer)
    return snapshot._asdict() | {
        "clients": [str(i) for i in ids[0]] if few else [],
        "mismatch": mismatch,
        "mean": kept_masks.mean_of_pairs(mismatch),
        "layer_mean": dict(zip(kept.names, means, strict=True)),
    }


def _mismatch(ax, mismatch: np.ndarray, names: Sequence[str], largest: float):
    """Draws equal cells on a scale from 0 to above the largest; names some of them."""
    top = next(step for step in _SCALES if step >= min(100 * largest, 100))
    count = len(mismatch)
    image = ax.imshow(100 * mismatch, cmap="viridis", vmin=0, vmax=top)
    ax.grid(visible=False)
    if names:
        ticks = np.arange(0, count, math.ceil(count / 6))
        labels = [names[i] for i in ticks]
        ax.set_xticks(ticks, labels, rotation=90 if max(map(len, labels)) > 3 else 0)
        ax.set_yticks(ticks, labels)
    return image


def _colorbar(drawing, image, ax, largest: float) -> None:
    label = f"mismatch [%], largest {100 * largest:.3g}"
    drawing.colorbar(image, ax=ax, label=label, shrink=0.9)


def _filters(ax, shares: np.ndarray):
    """Draws shares [rows, columns] as cells on a scale from 0 to 100 %."""
    from matplotlib.colors import LinearSegmentedColormap

    cmap = LinearSegmentedColormap.from_list("kept", _KEPT)
    image = ax.imshow(100.0 * shares, aspect="auto", cmap=cmap, vmin=0, vmax=100)
    ax.grid(visible=False)
    ax.tick_params(labelsize=7)
    figure.whole_numbers(ax.yaxis)
    return image
