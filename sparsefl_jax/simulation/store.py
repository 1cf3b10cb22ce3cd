"""Stores the rows of clients: packed, and on the device, on the host or on disk.

Booleans take one bit, everything else its own dtype. Rows on the host are NumPy arrays
[N, ...], rows on disk a `disk_store.Rows`. The device then holds a working set: the
rows of the clients in the running segment.
"""

import math
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.simulation import disk_store
from sparsefl_jax.system import hardware, processes

STORES = ("auto", "device", "host", "disk")
_DEVICE_SHARE = 0.5  # of the devices' memory, for all rows
_HOST_SHARE = 0.8  # of the host's memory, for all rows
_WORKING_SHARE = 0.125  # of the devices' memory, for a working set


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
        return (
            jnp.unpackbits(packed, count=shape.size).reshape(shape.shape).astype(bool)
        )

    return jax.tree.map(restore, row, like)


def chosen(client_store: str, rows: PyTree, memory: float, num_devices: int) -> str:
    """Chooses where rows live: 'device', 'host' or 'disk'; 'auto' decides by memory.

    On CPUs the limit of the device store is half of the memory, too.

    Args:
      client_store: a name in `STORES`. 'device' has all rows on the device, 'host' on
        the host, and 'disk' those of clients that ever took part on disk; with the
        last two, only the rows of clients that take part are on the device.
      rows: the rows of all clients [N, ...], arrays or shapes.
      memory: the memory of all devices of the stage together, in bytes.
      num_devices: the number of these devices.

    Example:
      >>> rows = {'weights': jax.ShapeDtypeStruct((10, 3), jnp.float32)}
      >>> chosen('auto', rows, 300, 1), chosen('auto', rows, 200, 1)  # of 120 bytes
      ('device', 'host')
    """
    if not jax.tree.leaves(rows):
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
    num_rows = jax.tree.leaves(rows)[0].shape[0] if jax.tree.leaves(rows) else 0
    return num_bytes(rows) * (1 if num_rows % num_devices == 0 else num_devices)


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
    ids = np.full(size, num_clients, np.int32)
    drawn = np.asarray(cohorts)
    real = drawn < num_clients
    members = np.unique(drawn[real])
    ids[: members.size] = members
    places = np.where(real, np.searchsorted(members, drawn), num_clients)
    return ids, places.astype(np.int32)


def fill(make: Callable, shapes: PyTree, info: PyTree, size: int) -> PyTree:
    """Computes the rows of all clients on the device, in groups, for the host store.

    Args:
      make: `(info [size]) -> rows [size, ...]`.
      shapes: the shapes and dtypes of all rows, [N, ...].
      info: the facts of all clients, [N].
      size: the number of clients that `make` takes.

    Returns:
      The rows [N, ...], NumPy.
    """
    rows = jax.tree.map(lambda v: np.empty(v.shape, v.dtype), shapes)
    num_clients = jax.tree.leaves(shapes)[0].shape[0]
    info = jax.device_get(info)
    for first in range(0, num_clients, size):
        ids = np.minimum(np.arange(first, first + size), num_clients)
        scatter(rows, ids, make(take(info, ids)))
    return rows


def take(rows: PyTree, ids: np.ndarray) -> PyTree:
    """Reads the rows [W, ...] of clients `ids` [W]; empty slots get any row."""
    if isinstance(rows, disk_store.Rows):
        return rows.take(ids)
    return jax.tree.map(lambda v: v[np.minimum(ids, len(v) - 1)], rows)


def scatter(rows: PyTree, ids: np.ndarray, new: PyTree) -> None:
    """Writes the rows `new` [W, ...] of clients `ids` [W] in place."""
    new = processes.fetch(new)
    if isinstance(rows, disk_store.Rows):
        rows.scatter(ids, new)
        return

    def write(leaf, new):
        real = ids < len(leaf)
        leaf[ids[real]] = new[real]

    jax.tree.map(write, rows, new)


def on_device(segment: Callable) -> Callable:
    """Wraps a segment for rows that live on the device, with the calls of `on_host`."""

    def run(key, population, state, rounds, cohorts, count):
        return segment(key, population, state, rounds, cohorts, None, count)

    return run


def on_host(segment: Callable, mesh: Mesh, size: int) -> Callable:
    """Wraps a segment for rows that live on the host or on disk.

    Args:
      segment: from `round_program.make_segment`.
      mesh: the mesh of the devices.
      size: W, the rows of a working set, from `working_size`.

    Returns:
      `run(key, population, state, rounds [R], cohorts [R, K], count) -> (state, log)`,
      which runs the first `count` rounds. `state.clients` is NumPy arrays or a
      `disk_store.Rows`, changed in place.
    """
    placed = NamedSharding(mesh, P("clients"))

    def run(key, population, state, rounds, cohorts, count):
        clients, num_clients = state.clients, state.last_round.shape[0]
        ids, places = find(cohorts, size, num_clients)
        working = processes.put(take(clients, ids), placed)
        state = state._replace(clients=working)
        state, log = segment(key, population, state, rounds, cohorts, places, count)
        ran = np.isin(ids, cohorts[:count])
        scatter(clients, np.where(ran, ids, num_clients), state.clients)
        return state._replace(clients=clients), log

    return run
