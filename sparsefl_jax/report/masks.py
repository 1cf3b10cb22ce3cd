"""The masks that a run kept, and how far they are from one another.

`layers.json`                      {"names": [L], "sizes": [L]}: the layers, in order
`server_{stage}_{round:06d}.npy`   uint8 [ceil(sum(sizes) / 8)]: `np.packbits` of the
                                   deployed mask, its layers flat and in that order
`clients_{stage}_{round:06d}.npy`  uint8 [K, ceil(sum(sizes) / 8)]: what the cohort of
                                   that round sent, a row for each client of the draw

The mismatch is Definition 1 of Babakniya et al., "Revisiting Sparsity Hunting in
Federated Learning" (FLASH), TMLR 2023, as in `sparsity.masks.jaccard_mismatch`. Masks
stay packed on disk; a piece of a layer is read at a time.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsefl_jax.system.files import COUNT, TEXT, open_array, read_json

_NAME = re.compile(r"([a-z]+)_(\d{1,9})_(\d{1,9})\.npy")
_PIECE = 1 << 20  # bits of a layer that are compared at a time, of every mask


class Snapshot(NamedTuple):
    """The packed masks after a round; `round` counts within the stage, from 1."""

    stage: int
    round: int
    packed: np.ndarray  # uint8 [bytes] of the server, [K, bytes] of clients; on disk


class KeptMasks(NamedTuple):
    """All masks of a run, in the order of stages and rounds."""

    names: list[str]  # L layers
    sizes: list[int]  # [L] entries
    server: list[Snapshot]
    clients: list[Snapshot]


def read_masks(run_dir: str | Path) -> KeptMasks | None:
    """Opens the masks that a run kept, without reading them.

    Args:
      run_dir: the folder of a run.

    Returns:
      The masks, or None where the run has no `masks/layers.json`.

    Raises:
      ValueError: a file is damaged, or not as long as the layers need.

    Example:
      >>> read_masks("no/such/run") is None
      True
    """
    found = open_snapshots(run_dir, "layers.json", {"server": 1, "clients": 2})
    return None if found is None else KeptMasks(*found)


def open_snapshots(run_dir: str | Path, layers: str, kinds: dict[str, int]):
    """Opens packed bits of some kinds, of which a JSON file names the layers.

    Args:
      run_dir: the folder of a run.
      layers: the file in its folder `masks`.
      kinds: of each what its files are called by, and its number of axes.

    Returns:
      Names and sizes of the layers, then by kind a list of snapshots in order; None
      where the file of the layers is absent.

    Raises:
      ValueError: a file is damaged, or not as long as the layers need.
    """
    folder = Path(run_dir) / "masks"
    if not (folder / layers).exists():
        return None
    told = read_json(folder / layers, {"names": [TEXT], "sizes": [COUNT]})
    if len(told["names"]) != len(told["sizes"]) or not told["names"]:
        raise ValueError(
            f"{folder / layers} holds {len(told['names'])} names and "
            f"{len(told['sizes'])} sizes, expected as many, and some"
        )
    width = math.ceil(sum(told["sizes"]) / 8)
    found = {kind: [] for kind in kinds}
    for path, whose, stage, round in snapshot_files(folder):
        if whose in kinds:
            packed = open_packed(path, ndim=kinds[whose], width=width)
            found[whose].append(Snapshot(stage, round, packed))
    ordered = (sorted(found[kind], key=lambda s: s[:2]) for kind in kinds)
    return told["names"], told["sizes"], *ordered


def snapshot_files(folder: Path) -> Iterator[tuple[Path, str, int, int]]:
    """The files of masks in a folder, with whose they are, stage and round.

    What is called otherwise was put there by someone else, and is left alone.

    Example:
      >>> list(snapshot_files(Path("no/such/run/masks")))
      []
    """
    for path in folder.glob("*.npy"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_file():
            yield path, match[1], int(match[2]), int(match[3])


def pairwise_mismatch(
    masks: Sequence[np.ndarray], sizes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """1 - |a & b| / |a | b| of every two masks, counted on packed bits.

    Args:
      masks: S packed masks, uint8 [ceil(sum(sizes) / 8)] each.
      sizes: [L], the number of entries of each layer.

    Returns:
      The mismatch over all layers together, float64 [S, S], and of each layer,
      [L, S, S]; 0 where both masks are empty.

    Example:
      >>> masks = [np.packbits([1, 1, 0, 1]), np.packbits([1, 0, 1, 1])]
      >>> whole, by_layer = pairwise_mismatch(masks, [3, 1])
      >>> whole.tolist()
      [[0.0, 0.5], [0.5, 0.0]]
      >>> by_layer[:, 0, 1].round(4).tolist()
      [0.6667, 0.0]
    """
    edges = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))])
    both = np.zeros((len(sizes), len(masks), len(masks)), np.int64)
    for layer, end in enumerate(edges[1:]):
        for start in range(int(edges[layer]), int(end), _PIECE):
            stop = min(start + _PIECE, int(end))
            words = np.stack([_words(mask, start, stop) for mask in masks])
            for i, row in enumerate(words):
                shared = np.bitwise_count(words[i:] & row).sum(axis=1, dtype=np.int64)
                both[layer, i, i:] += shared
    both = np.maximum(both, both.swapaxes(1, 2))  # the lower half was left at 0
    return _mismatch(both.sum(axis=0)), _mismatch(both)


def mean_of_pairs(mismatch: np.ndarray) -> np.ndarray:
    """The mean over the pairs of different masks; NaN where there is only one mask.

    Args:
      mismatch: [..., S, S], symmetric with a zero diagonal.

    Returns:
      [...] float64.

    Example:
      >>> float(mean_of_pairs(np.array([[0.0, 0.5], [0.5, 0.0]])))
      0.5
    """
    count = mismatch.shape[-1]
    pairs = count * (count - 1)
    return mismatch.sum(axis=(-2, -1)) / (pairs or math.nan)


def _mismatch(both: np.ndarray) -> np.ndarray:
    """From the sizes of intersections [..., S, S]; a mask's own is on the diagonal."""
    size = np.diagonal(both, axis1=-2, axis2=-1)
    either = size[..., :, None] + size[..., None, :] - both
    return np.where(either > 0, 1 - both / np.maximum(either, 1), 0.0)


def _words(mask: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The bits from start to stop as uint64, zeros around them."""
    first, last = start // 8, -(-stop // 8)
    words = np.zeros(-(-(last - first) // 8), np.uint64)
    piece = words.view(np.uint8)[: last - first]
    piece[:] = mask[first:last]
    # A layer begins and ends within a byte, whose other bits are its neighbours'.
    piece[0] &= 0xFF >> (start % 8)
    piece[-1] &= 0xFF << (-stop % 8) & 0xFF
    return words


def open_packed(path: Path, ndim: int, width: int) -> np.ndarray:
    """Packed masks of `width` bytes, without reading them.

    Raises:
      ValueError: the file is damaged, or not as long as the layers need.
    """
    packed = open_array(path)
    right = packed.ndim == ndim and packed.shape[-1] == width and len(packed)
    if not right or packed.dtype != np.uint8:
        raise ValueError(
            f"{path}: {packed.dtype} {list(packed.shape)}, expected uint8 with"
            f" {width} bytes a mask."
        )
    return packed
