"""Plots mask mismatch between rounds, and between the clients of a round.

Source: Fig. 3 and 4 of Babakniya et al. (FLASH), TMLR 2023; see `masks.py`.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sparsefl_jax.report.figure import axes, canvas
from sparsefl_jax.report.lines import draw_layers, spread
from sparsefl_jax.report.load import Run
from sparsefl_jax.report.masks import (
    Kept,
    Snapshot,
    mean_of_pairs,
    pairwise_mismatch,
    read_masks,
)
from sparsefl_jax.report.unchanged import same_masks

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
    kept = read_masks(run.path)
    if kept is None:
        return []
    # The masks of a stopped run may be ahead of its metrics.
    known = range(len(run.starts))
    server = [s for s in kept.server if s.stage in known]
    clients = [s for s in kept.clients if s.stage in known and len(s.packed) > 1]
    paths = []
    if len(server) > 1 and not same_masks([s.packed for s in server]):
        paths.append(folder / "mask_mismatch.svg")
        mismatch, _ = pairwise_mismatch([s.packed for s in server], kept.sizes)
        rounds = [run.rounds_until(s.stage, s.round) for s in server]
        mismatch_between_rounds(paths[-1], rounds, mismatch)
    if not all(same_masks(list(s.packed)) for s in clients):
        records = [_client_record(run, kept, snapshot) for snapshot in clients]
        paths.append(folder / "client_mismatch.svg")
        mismatch_between_clients(run, paths[-1], records)
        paths.append(folder / "client_mismatch_by_layer.svg")
        label = "mean mismatch of two clients [%]"
        with axes(paths[-1], "round", label) as ax:
            draw_layers(ax, run, records, "mean", "layer_mean")
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
    with canvas(path, (4.9, 4.0)) as figure:
        ax = figure.subplots()
        image = _heat_map(ax, mismatch, [str(r) for r in rounds], mismatch.max())
        ax.set(xlabel="round", ylabel="round")
        _colorbar(figure, image, ax, mismatch.max())


def mismatch_between_clients(run: Run, path: Path, records: Sequence[dict]) -> None:
    """Draws the mismatch of the masks that every two clients of a round sent.

    If many rounds were observed, it draws the first, the last and some between.

    Args:
      run: the records.
      path: the file to write.
      records: for each observed round, `stage`, `round`, `clients` ([K] names), the
        `mismatch` [K, K] and its `mean`, shares.
    """
    records = [records[i] for i in spread(len(records), _MAX_PANELS)]
    largest = max(record["mismatch"].max() for record in records)
    columns = min(len(records), 3)
    rows = math.ceil(len(records) / columns)
    with canvas(path, (4.9, 0.6 + rows * 4.2 / max(columns, 1.5))) as figure:
        for place, record in enumerate(records, start=1):
            ax = figure.add_subplot(rows, columns, place)
            image = _heat_map(ax, record["mismatch"], record["clients"], largest)
            done = run.rounds_until(record["stage"], record["round"])
            ax.set_title(f"round {done}\n{100 * record['mean']:.1f} %")
            ax.tick_params(labelsize=7)
        label = "client" if records[0]["clients"] else "client, in the order drawn"
        figure.supxlabel(label, fontsize=9.5)
        figure.supylabel(label, fontsize=9.5)
        _colorbar(figure, image, figure.axes, largest)


def _client_record(run: Run, kept: Kept, snapshot: Snapshot) -> dict:
    """Returns the mismatch in an observed round, and the ids of its clients."""
    position = (snapshot.stage, snapshot.round)
    ids = [r["clients"] for r in run.train if (r["stage"], r["round"]) == position]
    few = [len(snapshot.packed)] == [len(i) for i in ids if len(i) <= _MAX_NAMED]
    mismatch, by_layer = pairwise_mismatch(snapshot.packed, kept.sizes)
    return {
        "stage": snapshot.stage,
        "round": snapshot.round,
        "clients": [str(i) for i in ids[0]] if few else [],
        "mismatch": mismatch,
        "mean": mean_of_pairs(mismatch),
        "layer_mean": dict(zip(kept.names, mean_of_pairs(by_layer), strict=True)),
    }


def _heat_map(ax, mismatch: np.ndarray, names: Sequence[str], largest: float):
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


def _colorbar(figure, image, ax, largest: float) -> None:
    label = f"mismatch [%], largest {100 * largest:.3g}"
    figure.colorbar(image, ax=ax, label=label, shrink=0.9)
