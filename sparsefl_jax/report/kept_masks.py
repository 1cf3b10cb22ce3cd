"""Reads the masks that a run kept.

`layers.json`                      {"names": [L], "sizes": [L]}: the layers, in order
`server_{stage}_{round:06d}.npy`   uint8 [ceil(sum(sizes) / 8)]: `np.packbits` of the
                                   deployed mask, its layers flat and in that order

Masks stay packed on disk until they are read.
"""

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from sparsefl_jax.core.check import UserError
from sparsefl_jax.report.load import Run
from sparsefl_jax.system.files import Count, open_array, read_json

_NAME = re.compile(r"server_(\d{1,9})_(\d{1,9})\.npy")


class Layers(Struct):
    """The layers of packed masks, in order."""

    names: list[str]
    sizes: list[Count]


class Snapshot(NamedTuple):
    """The packed mask after a round; `round` counts within the stage, from 1."""

    stage: int
    round: int
    packed: np.ndarray  # uint8 [bytes], on disk


class Kept(NamedTuple):
    """All masks of a run, in the order of stages and rounds."""

    names: list[str]  # L layers
    sizes: list[int]  # [L] entries
    server: list[Snapshot]

    def active(self, snapshot: Snapshot) -> dict[str, np.ndarray]:
        """Returns which entries of each layer are alive.

        Args:
          snapshot: one of `server`.

        Returns:
          By layer, bool [size]; the entries of a kernel in the order of its `ravel`.

        Example:
          >>> kept = Kept(["a/kernel", "b/kernel"], [3, 1], [])
          >>> snapshot = Snapshot(0, 5, np.packbits([True, False, True, True]))
          >>> kept.active(snapshot)["a/kernel"].tolist()
          [True, False, True]
        """
        bits = np.unpackbits(snapshot.packed, count=sum(self.sizes)).astype(bool)
        parts = np.split(bits, np.cumsum(self.sizes)[:-1])
        return dict(zip(self.names, parts, strict=True))


def read_masks(run: Run) -> Kept | None:
    """Opens the masks that a run kept, without reading them.

    Args:
      run: the records. Masks ahead of them, which a stopped run may have left, do not
        count.

    Returns:
      The masks in order, or None if the run has kept none.

    Raises:
      ValueError: a file is damaged, or its size does not fit the layers.

    Example:
      >>> read_masks(Run(Path("no/such/run"), [], [], [0], {}, {}, None)) is None
      True
    """
    folder, server = run.path / "masks", []
    if not (folder / "layers.json").exists():
        return None
    layers = read_json(folder / "layers.json", Layers)
    if len(layers["names"]) != len(layers["sizes"]):
        raise UserError(f"{folder}/layers.json, expected as many names as sizes")
    width = math.ceil(sum(layers["sizes"]) / 8)
    for stage, round, path in mask_files(folder):
        packed = open_array(path)
        if packed.shape != (width,) or packed.dtype != np.uint8:
            raise UserError(
                f"{path}: {packed.dtype} {list(packed.shape)}, expected uint8 [{width}]"
            )
        if stage < len(run.starts):
            server.append(Snapshot(stage, round, packed))
    return Kept(layers["names"], layers["sizes"], server)


def mask_files(folder: Path) -> list[tuple[int, int, Path]]:
    """Returns the stage, the round and the path of each mask, in order.

    Files with other names do not belong to the run and are ignored.

    Example:
      >>> mask_files(Path("no/such/run/masks"))
      []
    """
    named = [(_NAME.fullmatch(path.name), path) for path in folder.glob("*.npy")]
    return sorted(
        (int(match[1]), int(match[2]), path)
        for match, path in named
        if match and path.is_file()
    )
