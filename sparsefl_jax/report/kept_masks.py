"""Reads the masks and the filters that a run kept.

`layers.json`                      {"names": [L], "sizes": [L]}: the layers, in order
`server_{stage}_{round:06d}.npy`   uint8 [ceil(sum(sizes) / 8)]: `np.packbits` of the
                                   deployed mask, its layers flat and in that order
`clients_{stage}_{round:06d}.npy`  uint8 [K, ceil(sum(sizes) / 8)]: the masks that the
                                   cohort of that round sent, in the order of the draw
`filters.json`                     as `layers.json`, with the filters of each layer
`filters_{stage}_{round:06d}.npy`  uint8 [N or 1, ceil(sum(sizes) / 8)]: a row for every
                                   client's own model, or one for the server's

Masks stay packed on disk until they are read.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from sparsefl_jax.core.check import UserError
from sparsefl_jax.report.load import Run
from sparsefl_jax.system.files import Count, open_array, read_json

_NAME = re.compile(r"([a-z]+)_(\d{1,9})_(\d{1,9})\.npy")
_AXES = {"layers": {"server": 1, "clients": 2}, "filters": {"filters": 2}}


class Layers(Struct):
    """The layers of packed masks, in order."""

    names: list[str]
    sizes: list[Count]


class Snapshot(NamedTuple):
    """The packed masks after a round; `round` counts within the stage, from 1."""

    stage: int
    round: int
    done: int  # rounds of all stages
    packed: np.ndarray  # uint8 [bytes] of the server, [K, bytes] of clients; on disk


class Kept(NamedTuple):
    """All masks or filters of a run, in the order of stages and rounds."""

    names: list[str]  # L layers
    sizes: list[int]  # [L] entries, or filters
    server: list[Snapshot] = []  # noqa: RUF012  never changed
    clients: list[Snapshot] = []  # noqa: RUF012
    filters: list[Snapshot] = []  # noqa: RUF012  packed: uint8 [N or 1, bytes]

    def active(self, snapshot: Snapshot) -> dict[str, np.ndarray]:
        """Returns which entries, or filters, of each layer are alive.

        Args:
          snapshot: one of `server`, `clients` or `filters`.

        Returns:
          By layer, bool [size] of the server, else [K, size] or [N or 1, filters]; the
          entries of a kernel in the order of its `ravel`.

        Example:
          >>> kept = Kept(["a/kernel", "b/kernel"], [3, 1])
          >>> snapshot = Snapshot(0, 5, 5, np.packbits([True, False, True, True]))
          >>> kept.active(snapshot)["a/kernel"].tolist()
          [True, False, True]
        """
        count = sum(self.sizes)
        bits = np.unpackbits(snapshot.packed, axis=-1, count=count).astype(bool)
        parts = np.split(bits, np.cumsum(self.sizes)[:-1], axis=-1)
        return dict(zip(self.names, parts, strict=True))


def read_masks(run: Run, layers: str = "layers") -> Kept | None:
    """Opens the masks that a run kept, without reading them.

    Args:
      run: the records. Masks ahead of them, which a stopped run may have left, do not
        count.
      layers: the file in its folder `masks` that names the layers: "layers" for masks
        of weights, "filters" for filters.

    Returns:
      The masks in order, or None if the run has no such file.

    Raises:
      ValueError: a file is damaged, or its size does not fit the layers.

    Example:
      >>> read_masks(Run(Path("no/such/run"), [], [], [0], {}, {}, None)) is None
      True
    """
    folder = run.path / "masks"
    if not (file := folder / f"{layers}.json").exists():
        return None
    content, axes = read_json(file, Layers), _AXES[layers]
    names, sizes = content["names"], content["sizes"]
    if len(names) != len(sizes) or not names:
        raise UserError(
            f"{file} holds {len(names)} names and {len(sizes)} sizes, "
            "expected equally many, and at least one"
        )
    width = math.ceil(sum(sizes) / 8)
    found = {kind: [] for kind in axes}
    for path, kind, stage, round in sorted(snapshot_files(folder), key=lambda s: s[1:]):
        if kind in axes:
            packed = open_array(path)
            fits = packed.ndim == axes[kind] and packed.shape[-1] == width
            if not (fits and len(packed) and packed.dtype == np.uint8):
                raise UserError(
                    f"{path}: {packed.dtype} {list(packed.shape)}, expected uint8 with"
                    f" {width} bytes a mask"
                )
            if stage < len(run.starts):
                done = run.starts[stage] + round
                found[kind].append(Snapshot(stage, round, done, packed))
    return Kept(names, sizes, **found)


def snapshot_files(folder: Path) -> Iterator[tuple[Path, str, int, int]]:
    """Yields the mask files of a folder, each with its kind, stage and round.

    Files with other names do not belong to the run and are ignored.

    Example:
      >>> list(snapshot_files(Path("no/such/run/masks")))
      []
    """
    for path in folder.glob("*.npy"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_file():
            yield path, match[1], int(match[2]), int(match[3])
