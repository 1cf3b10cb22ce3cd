"""The rows of clients' state: packed, and on the device, on the host or in files.

Booleans take one bit, everything else its own dtype. On the device rows are arrays
[N, ...]. Elsewhere they are a `Store`, and the device holds a working set: the rows of
the clients in the running segment.

A store holds the rows that were ever written, and computes the others from the server's
initial state, which always gives the same row. On the host they are NumPy arrays, on
disk memory-mapped files without a name in the cache directory (`SPARSEFL_CACHE_DIR`),
whose unwritten parts take no space.

A checkpoint stores rows, wherever they live, as plain files in C order, one per leaf.
It writes them block by block, so memory never holds a copy of all.
"""

import math
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array, ClientInfo, PyTree
from sparsefl_jax.simulation import exchange
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import hardware, processes
from sparsefl_jax.system.files import name_file

STORES = ("auto", "device", "host", "disk")
_DEVICE_SHARE = 0.5  # of the devices' memory, for all rows
_HOST_SHARE = 0.8  # of the host's memory, for all rows
_WORKING_SHARE = 0.125  # of the devices' memory, for a working set
_BLOCK = 2**26  # bytes of a checkpoint read or written at a time
_IDS = "ids.bin"


def pack(row: PyTree) -> PyTree:
    """Packs the boolean leaves of one client's state to bits, uint8 [ceil(size / 8)].

    Example:
      >>> pack({'mask': jnp.ones((3, 3), bool)})['mask'].shape
      (2,)
    """
    return jax.tree.map(
        lambda v: jnp.packbits(v.reshape(-1)) if v.dtype == bool else v, row
    )


def unpack(row: PyTree, like: PyTree) -> PyTree:
    """Undoes `pack`; `like` gives the shapes and dtypes."""

    def restore(packed, shape):
        if shape.dtype != bool:
            return packed
        bits = jnp.unpackbits(packed, count=shape.size)
        return bits.reshape(shape.shape).astype(bool)

    return jax.tree.map(restore, row, like)


def choose(client_store: str, rows: PyTree, memory: float, num_devices: int) -> str:
    """Chooses where rows live: 'device', 'host' or 'disk'; 'auto' decides by memory.

    On CPUs the limit of the device store is half of the memory, too.

    Args:
      client_store: a name in `STORES`. 'device' has all rows on the device. 'host' has
        those of clients that ever took part on the host, and 'disk' on disk; with these
        two, only the rows of clients that take part are on the device.
      rows: the rows of all clients [N, ...], arrays or shapes.
      memory: the memory of all devices of the stage together, in bytes.
      num_devices: the number of these devices.

    Example:
      >>> rows = {'weights': jax.ShapeDtypeStruct((10, 3), jnp.float32)}
      >>> choose('auto', rows, 300, 1), choose('auto', rows, 200, 1)  # of 120 bytes
      ('device', 'host')
    """
    if not num_bytes(rows):
        return "device"  # there is nothing to store
    if client_store != "auto":
        return client_store
    if device_bytes(rows, num_devices) <= _DEVICE_SHARE * memory:
        return "device"
    fits = num_bytes(rows) <= _HOST_SHARE * hardware.host_memory()
    return "host" if fits else "disk"


def num_bytes(tree: PyTree) -> int:
    """Returns the size of all leaves, arrays or shapes, in bytes."""
    return sum(v.size * v.dtype.itemsize for v in jax.tree.leaves(tree))


def device_bytes(rows: PyTree, num_devices: int) -> int:
    """Returns the bytes that rows take on all devices, sharded or replicated.

    Example:
      >>> rows = jax.ShapeDtypeStruct((5, 2), jnp.float32)
      >>> device_bytes(rows, 5), device_bytes(rows, 2)
      (40, 80)
    """
    replicated = exchange.spec(rows, num_devices) == P()
    return num_bytes(rows) * (num_devices if replicated else 1)


def most_rounds(rows: PyTree, cohort_size: int, memory: float) -> int:
    """Returns the largest number of rounds of a segment whose working set fits.

    Args:
      rows: the rows of all clients [N, ...], arrays or shapes.
      cohort_size: K.
      memory: the memory of all devices of the stage together, in bytes.
    """
    num_clients = jax.tree.leaves(rows)[0].shape[0]
    fitting = int(_WORKING_SHARE * memory * num_clients / num_bytes(rows))
    return sys.maxsize if fitting >= num_clients else max(1, fitting // cohort_size)


def working_size(
    num_clients: int, cohort_size: int, length: int, num_devices: int
) -> int:
    """Returns the number of rows of a working set, enough for a segment's cohorts.

    Args:
      num_clients: N.
      cohort_size: K.
      length: the rounds of the segment.
      num_devices: the number of devices, which divides the result.

    Example:
      >>> working_size(100, cohort_size=10, length=3, num_devices=4)
      32
    """
    return math.ceil(min(num_clients, length * cohort_size) / num_devices) * num_devices


def find(cohorts: Array, size: int, num_clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct clients of a segment, and the places of its cohorts there.

    Args:
      cohorts: [R, K] int32; an id of N is a place without a client.
      size: W, at least the number of distinct clients.
      num_clients: N, the id of empty slots.

    Returns:
      `ids` [W] and `places` [R, K], int32: `ids[places]` are the cohorts. The place of
      no client is N.

    Example:
      >>> ids, places = find(np.array([[7, 2], [2, 5]]), size=4, num_clients=9)
      >>> ids.tolist(), places.tolist()
      ([2, 5, 7, 9], [[2, 0], [0, 1]])
    """
    drawn = np.asarray(cohorts)
    members = np.setdiff1d(drawn, [num_clients])
    ids = np.append(members, np.full(size - members.size, num_clients))
    places = np.where(drawn < num_clients, np.searchsorted(members, drawn), num_clients)
    return ids.astype(np.int32), places.astype(np.int32)


def make_runner(segment: Callable, mesh: Mesh, size: int | None) -> Callable:
    """Lets a segment run on rows that live anywhere.

    Args:
      segment: as from `round_program.make_segment`; its log may be packed.
      mesh: the mesh of the devices.
      size: W, the rows of a working set; None if all rows live on the device.

    Returns:
      `run(key, population, state, rounds [R], cohorts [R, K], count, rates [R]) ->
      (state, log)`, which runs the first `count` rounds. A `Store` in `state` is
      changed in place.
    """

    def run(key, population, state, rounds, cohorts, count, rates):
        if size is None:
            return segment(key, population, state, rounds, cohorts, None, count, rates)
        store, num_clients = state.clients, state.last_round.shape[0]
        ids, places = find(cohorts, size, num_clients)
        working = processes.put(store.take(ids), NamedSharding(mesh, P("clients")))
        state = state._replace(clients=working)
        given = rounds, cohorts, places, count, rates
        state, log = segment(key, population, state, *given)
        ran = np.isin(ids, cohorts[:count]) & (ids < num_clients)
        new = trees.rows(processes.fetch(state.clients), ran)
        store.scatter(ids[ran], new)
        return state._replace(clients=store), log

    return run


class Saved(NamedTuple):
    """Rows of some clients, as a checkpoint holds them."""

    first: PyTree  # the initial server, from which all other rows are computed
    ids: np.ndarray  # [T] int32, the clients of these rows
    rows: PyTree  # [T, ...], read from the files on use


class Store:
    """The rows of all clients, of which only those ever written take space.

    Attributes:
      first: the initial server, from which all other rows are computed, NumPy.
      columns: the leaves of all rows [N, ...], each with undefined rows of clients that
        were never written.
    """

    def __init__(
        self,
        shapes: PyTree,
        info: ClientInfo,
        make: Callable,
        first: PyTree,
        size: int,
        where: str,
    ):
        """Opens a store in which no row is written.

        Args:
          shapes: the shapes and dtypes of all rows [N, ...].
          info: the facts of all clients, NumPy arrays [N].
          make: `(first, info [size]) -> rows [size, ...]`.
          first: the server as the stage's `init` returned it.
          size: the number of clients that `make` takes.
          where: 'host', or 'disk' for files that vanish with the process.
        """
        self.first, self._info, self._make, self._size = first, info, make, size
        self._written = np.zeros(len(info.index), bool)
        shapes, self._treedef = jax.tree.flatten(shapes)
        opened = [_column(v.shape, v.dtype, where) for v in shapes]
        self.columns, self._files = zip(*opened, strict=True) if opened else ((), ())

    @property
    def ids(self) -> np.ndarray:
        """Returns the clients whose rows are written, [T] int32."""
        return np.flatnonzero(self._written).astype(np.int32)

    def take(self, ids: np.ndarray) -> PyTree:
        """Reads the rows [n, ...] of clients [n]; an id of N gives zeros."""
        leaves = [np.zeros((len(ids), *v.shape[1:]), v.dtype) for v in self.columns]
        written = np.append(self._written, False)[ids]
        for leaf, column in zip(leaves, self.columns, strict=True):
            leaf[written] = column[ids[written]]  # reading a hole in a file is slow
        missing = np.flatnonzero(~written & (ids < len(self._written)))
        for first in range(0, len(missing), self._size):
            group = missing[first : first + self._size]
            members = np.resize(ids[group], self._size)
            info = trees.rows(self._info, members)
            rows = processes.fetch(self._make(self.first, info))
            for leaf, new in zip(leaves, jax.tree.leaves(rows), strict=True):
                leaf[group] = new[: len(group)]
        return self._treedef.unflatten(leaves)

    def scatter(self, ids: np.ndarray, new: PyTree) -> None:
        """Writes the rows [n, ...] of distinct clients [n].

        Raises:
          OSError: the disk is full.
        """
        news = jax.tree.leaves(new)
        for column, file, leaf in zip(self.columns, self._files, news, strict=True):
            if file is None:
                column[ids] = leaf
            else:
                _write_rows(file, ids, leaf)
        self._written[ids] = True

    def load(self, saved: Saved, clients: Sequence[int] | None = None) -> None:
        """Writes the rows of a checkpoint, or of some clients, block by block."""
        chosen = saved.ids if clients is None else clients
        places = np.flatnonzero(np.isin(saved.ids, chosen))
        size = num_bytes(saved.rows) // max(1, len(saved.ids))
        for part in _blocks(places, size):
            rows = trees.rows(saved.rows, part)
            self.scatter(saved.ids[part], rows)


def _column(shape: tuple[int, ...], dtype: np.dtype, where: str):
    """Returns rows of zeros [N, ...], and the file that holds them if they are mapped.

    The file has no name, and no space on disk where nothing is written.
    """
    if where == "host" or not math.prod(shape):  # an empty file cannot be mapped
        return np.zeros(shape, dtype), None
    folder = hardware.cache_directory()
    folder.mkdir(parents=True, exist_ok=True)
    with name_file(folder):
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        file.truncate(math.prod(shape) * dtype.itemsize)
    return np.memmap(file, dtype, "r", shape=shape).view(np.ndarray), file


def _write_rows(file, ids: np.ndarray, new: np.ndarray) -> None:
    """Writes the rows [n, ...] of clients [n] to a file.

    A full disk is an error here; writing to a mapped page would kill the process.
    """
    new = np.ascontiguousarray(new).reshape(len(new), -1).view(np.uint8)
    with name_file(hardware.cache_directory()):
        for index, row in zip(ids.tolist(), new, strict=True):
            file.seek(index * row.nbytes)
            file.write(row)
        file.flush()


def save(folder: Path, rows: PyTree) -> dict:
    """Writes rows to a new folder in blocks.

    Args:
      folder: the folder to write; files that a killed process left are overwritten.
      rows: a `Store`, or a tree [N, ...] of NumPy or JAX arrays.

    Returns:
      A manifest for `load`, of JSON values.

    Raises:
      OSError: a file cannot be written; names the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    some = isinstance(rows, Store)
    leaves = list(rows.columns if some else jax.tree.leaves(rows))
    ids = rows.ids if some else np.arange(len(leaves[0]), dtype=np.int32)
    checksums = [_write(folder / f"{i}.bin", v, ids) for i, v in enumerate(leaves)]
    if some:
        checksums.append(_write(folder / _IDS, ids, np.arange(len(ids))))
    return {
        "count": len(ids),
        "some": some,
        "kinds": _kinds(leaves),
        "checksums": checksums,
    }


def load(folder: Path, manifest: dict, shapes: PyTree) -> tuple[np.ndarray, PyTree]:
    """Opens the files that `save` wrote.

    Args:
      folder: the folder of the files.
      manifest: as `save` returned it.
      shapes: the shapes and dtypes of all rows [N, ...].

    Returns:
      The clients of the rows, [T] int32, and the rows [T, ...], which are read from the
      files on use.

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
        _open_file(folder / f"{i}.bin", (count, *v.shape[1:]), v.dtype)
        for i, v in enumerate(leaves)
    ]
    ids = np.arange(num_clients, dtype=np.int32)
    if manifest["some"]:
        ids = _open_file(folder / _IDS, (count,), np.int32)
    return ids, treedef.unflatten(opened)


def is_intact(folder: Path, manifest: dict) -> bool:
    """Returns whether the files have the checksums of the manifest from `save`."""
    names = [f"{i}.bin" for i, _ in enumerate(manifest["kinds"])]
    names += [_IDS] if manifest["some"] else []
    paths = [folder / name for name in names]
    files = [_open_file(path, (path.stat().st_size,), np.uint8) for path in paths]
    return [zlib.crc32(file.data) for file in files] == manifest["checksums"]


def _kinds(leaves) -> list[str]:
    return [f"{v.dtype}{list(v.shape[1:])}" for v in leaves]


def _blocks(places: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Splits the places of rows of `size` bytes into blocks."""
    step = max(1, _BLOCK // max(1, size))
    for first in range(0, len(places), step):
        yield places[first : first + step]


def _write(path: Path, leaf, places: np.ndarray) -> int:
    """Writes the rows of a leaf [N, ...] at `places`, which are all if it is JAX's."""
    total = 0
    with name_file(path), open(path, "wb") as file:
        for part in _blocks(places, num_bytes(leaf) // max(1, len(leaf))):
            if isinstance(leaf, np.ndarray):
                block = leaf[part]
            else:  # neighbours, without a program for each block
                block = lax.dynamic_slice_in_dim(leaf, part[0], len(part))
            block = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
            total = zlib.crc32(block.data, total)
            file.write(block.data)
    return total


def _open_file(path: Path, shape, dtype) -> np.ndarray:
    if not np.prod(shape):  # an empty file cannot be mapped
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", shape=shape)
