"""Draws the masks and filters that a run kept, as maps of cells.

Sources: Fig. 3 and 4 of Babakniya et al., "Revisiting Sparsity Hunting in Federated
Learning" (FLASH), TMLR 2023, for the mismatch of masks; Fig. 4 and 5 of Kim et al.,
"SpaFL: Communication-Efficient Federated Learning with Sparse Models and Low
Computational Overhead", NeurIPS 2024, for filters.
"""

import itertools
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
        rounds = [str(snapshot.done) for snapshot in kept.server]
        map_mismatch(paths[-1], "round", [{"mismatch": mismatch, "names": rounds}])
    clients = [s for s in kept.clients if len(s.packed) > 1]
    if not all(kept_masks.same_masks(s.packed) for s in clients):
        records = [_client_record(run, kept, snapshot) for snapshot in clients]
        paths.append(folder / "client_mismatch.svg")
        label = "client" if records[0]["names"] else "client, in the order drawn"
        map_mismatch(paths[-1], label, records)
        paths.append(folder / "client_mismatch_by_layer.svg")
        with figure.axes(paths[-1], "round", "mean mismatch of two clients [%]") as ax:
            figure.draw_layers(ax, run, records, "mean")
    return paths


def map_mismatch(path: Path, label: str, maps: Sequence[dict]) -> None:
    """Draws the mismatch of every two masks over all layers, for each map a panel.

    Of many maps it draws the first, the last and some between. The scale ends at a
    round number above the largest mismatch.

    Args:
      path: the file to write.
      label: what the masks are of.
      maps: the `mismatch` [K, K], shares, the `names` [K], of which some are shown, or
        [], and perhaps a `title`.
    """
    maps = [maps[i] for i in spread(len(maps), _MAX_PANELS)]
    largest = 100 * max(each["mismatch"].max() for each in maps)
    top = next(step for step in _SCALES if step >= min(largest, 100))
    columns = min(len(maps), 3)
    height = 4.2 / max(columns, 1.5)
    with figure.panels(path, len(maps), columns, height, label, label) as panels:
        for ax, each in zip(panels, maps, strict=True):
            image = figure.draw_cells(ax, each["mismatch"], cmap="viridis", vmax=top)
            ax.set_title(each.get("title", ""))
            if names := each["names"]:
                ticks = range(0, len(names), math.ceil(len(names) / 6))
                shown = [names[i] for i in ticks]
                upright = max(map(len, shown)) <= 3
                ax.set_xticks(ticks, shown, rotation=0 if upright else 90)
                ax.set_yticks(ticks, shown)
        text = f"mismatch [%], largest {largest:.3g}"
        ax.figure.colorbar(image, ax=panels, label=text, shrink=0.9)


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
    rounds = [str(snapshot.done) for snapshot in kept.filters]
    ticks = spread(len(rounds), 5)
    with figure.panels(path, len(names), columns, 1.6, "round", "filter") as panels:
        for ax, name in zip(panels, names, strict=True):
            image = _filters(ax, np.stack([found[name].mean(0) for found in active], 1))
            ax.set_xticks(ticks, [rounds[i] for i in ticks])
            ax.set_title(shortened(short(name), 42 // columns))
        clients = max(len(s.packed) for s in kept.filters)
        label = "clients that keep the filter" if clients > 1 else "kept by the server"
        ax.figure.colorbar(image, ax=panels, label=f"{label} [%]", aspect=30)


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
    shown = list(itertools.product(layers, chosen))
    size = len(shown), len(chosen), 1.5
    with figure.panels(path, *size, "filter", "client") as panels:
        for ax, (name, snapshot) in zip(panels, shown, strict=True):
            active = kept.active(snapshot)[name]
            _filters(ax, active)
            figure.whole_numbers(ax.xaxis)
            head = f"round {snapshot.done}\n" if name == layers[0] else ""
            ax.set_title(f"{head}{100 * active.mean():.1f} %")
            if snapshot is chosen[0]:
                ax.set_ylabel(shortened(short(name), 16), fontsize=8.5)


def _client_record(run: Run, kept: Kept, snapshot: Snapshot) -> dict:
    """Returns the mismatch in an observed round, and the ids of its clients."""
    position = (snapshot.stage, snapshot.round)
    ids = [r["clients"] for r in run.train if (r["stage"], r["round"]) == position]
    few = [len(snapshot.packed)] == [len(i) for i in ids if len(i) <= _MAX_NAMED]
    mismatch, by_layer = pairwise_mismatch(snapshot.packed, kept.sizes)
    means = kept_masks.mean_of_pairs(by_layer)
    mean = kept_masks.mean_of_pairs(mismatch)
    return snapshot._asdict() | {
        "names": [str(i) for i in ids[0]] if few else [],
        "mismatch": mismatch,
        "mean": mean,
        "title": f"round {snapshot.done}\n{100 * mean:.1f} %",
        "layer_mean": dict(zip(kept.names, means, strict=True)),
    }


def _filters(ax, shares: np.ndarray):
    """Draws shares [rows, columns] as cells on a scale from 0 to 100 %."""
    from matplotlib.colors import LinearSegmentedColormap

    cmap = LinearSegmentedColormap.from_list("kept", _KEPT)
    figure.whole_numbers(ax.yaxis)
    return figure.draw_cells(ax, shares, cmap=cmap, vmax=100, aspect="auto")
