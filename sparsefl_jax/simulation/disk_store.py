"""Client rows on disk: memory-mapped files that hold the clients that took part.

A row gets a place in the files when it is first written. Before that, each read
computes it again from the server's initial state, which always gives the same row.

A checkpoint stores rows, wherever they live, as plain files in C order, one per leaf.
It writes them block by block, so memory never holds a copy of all. Limits: the working
files lie in the cache directory (`SPARSEFL_CACHE_DIR`), which must be on a disk, and
need space in addition to the checkpoint; the index takes 4 bytes of memory per client.
"""

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax import lax

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import PyTree
from sparsefl_jax.system import hardware, processes
from sparsefl_jax.system.files import naming

_BLOCK = 2**26  # bytes read or written at a time
_IDS = "ids.bin"


class Saved(NamedTuple):
    """Rows of some clients, as a checkpoint holds them."""

    first: PyTree  # the initial server, from which all other rows are computed
    ids: np.ndarray  # [T] int32, the clients of these rows
    rows: PyTree  # [T, ...], read from the files on use

    def only(self, clients: Sequence[int]) -> "Saved":
        """Returns the rows of the given clients."""
        selected = np.isin(self.ids, clients)
        rows = jax.tree.map(lambda v: v[selected], self.rows)
        return Saved(self.first, self.ids[selected], rows)


class Rows:
    """The rows of all clients, of which only those ever written take space in files.

    Attributes:
      first: the initial server, from which all other rows are computed, NumPy.
      num_clients: N.
    """

    def __init__(self, shapes: PyTree, first: PyTree, make: Callable, size: int):
        """Opens files that vanish with the process.

        Args:
          shapes: the shapes and dtypes of all rows [N, ...].
          first: the server as the stage's `init` returned it.
          make: `(first, ids [size]) -> rows [size, ...]`.
          size: the number of clients that `make` takes.
        """
        shapes, self._treedef = jax.tree.flatten(shapes)
        self.num_clients, self.first = shapes[0].shape[0], first
        self._make, self._size = make, size
        # The place of each client, -1 for none; the last entry stands for no client.
        self._slots = np.full(self.num_clients + 1, -1, np.int32)
        self._columns = [_Column(v.shape[1:], v.dtype) for v in shapes]

    @property
    def ids(self) -> np.ndarray:
        """Returns the clients in the files by place, [T] int32."""
        members = np.flatnonzero(self._slots >= 0)
        return members[np.argsort(self._slots[members])].astype(np.int32)

    @property
    def written(self) -> PyTree:
        """Returns the rows [T, ...] of `ids`: views of the files, not to be changed."""
        count = np.count_nonzero(self._slots >= 0)
        return self._treedef.unflatten([c.rows[:count] for c in self._columns])

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of the files."""
        return sum(column.rows.nbytes for column in self._columns)

    def take(self, ids: np.ndarray) -> PyTree:
        """Reads the rows [n, ...] of clients [n]; an id of N gives zeros."""
        places = self._slots[np.minimum(ids, self.num_clients)]
        stored = np.flatnonzero(places >= 0)
        leaves = []
        for column in self._columns:
            leaves.append(np.zeros((len(ids), *column.shape), column.dtype))
            leaves[-1][stored] = column.rows[places[stored]]
        missing = np.flatnonzero((places < 0) & (ids < self.num_clients))
        for first in range(0, len(missing), self._size):
            group = missing[first : first + self._size]
            rows = self._make(self.first, np.resize(ids[group], self._size))
            rows = jax.tree.leaves(processes.fetch(rows))
            for leaf, new in zip(leaves, rows, strict=True):
                leaf[group] = new[: len(group)]
        return self._treedef.unflatten(leaves)

    def scatter(self, ids: np.ndarray, new: PyTree) -> None:
        """Writes the rows [n, ...] of distinct clients [n]; skips ids of N."""
        real = ids < self.num_clients
        ids, new = ids[real], [v[real] for v in jax.tree.leaves(new)]
        fresh = ids[self._slots[ids] < 0]
        count = np.count_nonzero(self._slots >= 0)
        for column in self._columns:
            column.reserve(count + fresh.size, self.num_clients)
        self._slots[fresh] = count + np.arange(fresh.size)
        places = self._slots[ids]
        for column, leaf in zip(self._columns, new, strict=True):
            column.rows[places] = leaf

    def load(self, saved: Saved) -> None:
        """Writes the rows of a checkpoint, block by block."""
        leaves = jax.tree.leaves(saved.rows)
        size = sum(v.nbytes for v in leaves) // max(1, len(saved.ids))
        step = max(1, _BLOCK // max(1, size))
        for first in range(0, len(saved.ids), step):
            block = slice(first, first + step)
            self.scatter(saved.ids[block], [v[block] for v in leaves])


class _Column:
    """One leaf of all rows, in an anonymous file that grows."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.rows = np.empty((0, *shape), dtype)
        folder = hardware.cache_directory()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def reserve(self, count: int, most: int) -> None:
        """Reserves space for `count` rows, in steps of a quarter, up to `most`."""
        if count <= len(self.rows):
            return
        count = min(most, max(count, len(self.rows) * 5 // 4))
        size = count * int(np.prod(self.shape)) * self.dtype.itemsize
        if not size:
            self.rows = np.empty((count, *self.shape), self.dtype)
            return
        # A full disk is an error here; writing to a mapped page would kill the process.
        with naming(hardware.cache_directory()):
            os.posix_fallocate(self._file.fileno(), 0, size)
        self.rows = np.memmap(self._file, self.dtype, "r+", shape=(count, *self.shape))


def save(folder: Path, rows: PyTree) -> dict:
    """Writes rows to a new folder in blocks.

    Args:
      folder: the folder to write; files that a killed process left are overwritten.
      rows: `Rows`, or a tree [N, ...] of NumPy or JAX arrays.

    Returns:
      A manifest for `load`, of JSON values.

    Raises:
      OSError: a file cannot be written; names the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial = isinstance(rows, Rows)
    leaves = jax.tree.leaves(rows.written if partial else rows)
    checksums = [_write(folder / f"{i}.bin", leaf) for i, leaf in enumerate(leaves)]
    if partial:
        checksums.append(_write(folder / _IDS, rows.ids))
    return {
        "count": len(leaves[0]),
        "some": partial,
        "kinds": _kinds(leaves),
        "checksums": checksums,
    }


def load(
    folder: Path, manifest: dict, shapes: PyTree
) -> tuple[np.ndarray | None, PyTree]:
    """Opens the files that `save` wrote.

    Args:
      folder: the folder of the files.
      manifest: as `save` returned it.
      shapes: the shapes and dtypes of all rows [N, ...].

    Returns:
      The clients of the rows, [T] int32, or None for all; and the rows [T, ...], which
      are read from the files on use.

    Raises:
      ValueError: the files do not fit the shapes.
    """
    leaves, treedef = jax.tree.flatten(shapes)
    count, num_clients = manifest["count"], leaves[0].shape[0]
    kinds = _kinds(leaves)
    if manifest["kinds"] != kinds or not (manifest["some"] or count == num_clients):
        raise UserError(
            f"the checkpoint does not fit this run: it has rows of {count} clients, "
            f"{manifest['kinds']}, expected {num_clients}, {kinds}"
        )
    opened = [
        _open(folder / f"{i}.bin", (count, *v.shape[1:]), v.dtype)
        for i, v in enumerate(leaves)
    ]
    ids = _open(folder / _IDS, (count,), np.int32) if manifest["some"] else None
    return ids, treedef.unflatten(opened)


def intact(folder: Path, manifest: dict) -> bool:
    """Returns whether the files have the checksums of the manifest from `save`."""
    checksums = manifest["checksums"]
    names = [f"{i}.bin" for i in range(len(checksums) - manifest["some"])]
    names += [_IDS] if manifest["some"] else []
    return [_checksum(folder / name) for name in names] == checksums


def _kinds(leaves) -> list[str]:
    return [f"{v.dtype}{list(v.shape[1:])}" for v in leaves]


def _blocks(leaf) -> Iterator[np.ndarray]:
    """Splits a leaf [n, ...] into blocks that a device copies one at a time."""
    step = max(1, _BLOCK * len(leaf) // max(1, leaf.size * leaf.dtype.itemsize))
    for first in range(0, len(leaf), step):
        size = min(step, len(leaf) - first)
        if isinstance(leaf, np.ndarray) or size == len(leaf):
            yield np.asarray(leaf)[first : first + size]
        else:
            yield np.asarray(lax.dynamic_slice_in_dim(leaf, first, size))


def _write(path: Path, leaf) -> int:
    total = 0
    with naming(path), open(path, "wb") as file:
        for block in _blocks(leaf):
            block = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
            total = zlib.crc32(block, total)
            file.write(block)
    return total


def _checksum(path: Path) -> int:
    total = 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            total = zlib.crc32(block, total)
    return total


def _open(path: Path, shape, dtype) -> np.ndarray:
    if not np.prod(shape):  # an empty file cannot be mapped
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", shape=shape)
