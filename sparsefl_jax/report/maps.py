"""Draws the masks and filters that a run kept, as maps of cells.

Sources: Fig. 3 and 4 of Babakniya et al., "Revisiting Sparsity Hunting in Federated
Learning" (FLASH), TMLR 2023, for the mismatch of masks; Fig. 4 of Kim et al.,
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
_SCALES = (1, 2, 5, 10, 20, 50, 100)  # ends of colour scales, in percent


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
    """Plots the share of clients that keep each filter of a layer, by round.

    Args:
      run: the records.
      folder: the folder of the file.

    Returns:
      The file written, `filter_activity.svg`; none if no filter was ever pruned.

    Raises:
      ValueError: a file of filters is damaged, see `read_masks`.
    """
    if (kept := kept_masks.read_masks(run, "filters")) is None:
        return []
    names, active = kept.names, [kept.active(s) for s in kept.filters]
    if all(alive.all() for layers in active for alive in layers.values()):
        return []
    path = folder / "filter_activity.svg"
    columns = min(len(names), 2 if len(names) <= 4 else 3)
    rounds = [str(snapshot.done) for snapshot in kept.filters]
    ticks = spread(len(rounds), 5)
    style = {"cmap": "Blues", "vmax": 100, "aspect": "auto"}
    with figure.panels(path, len(names), columns, 1.6, "round", "filter") as panels:
        for ax, name in zip(panels, names, strict=True):
            shares = np.stack([layers[name].mean(0) for layers in active], axis=1)
            image = figure.draw_cells(ax, shares, **style)
            figure.whole_numbers(ax.yaxis)
            ax.set_xticks(ticks, [rounds[i] for i in ticks])
            ax.set_title(shortened(short(name), 42 // columns))
        clients = max(len(s.packed) for s in kept.filters)
        label = "clients that keep the filter" if clients > 1 else "kept by the server"
        ax.figure.colorbar(image, ax=panels, label=f"{label} [%]", aspect=30)
    return [path]


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
