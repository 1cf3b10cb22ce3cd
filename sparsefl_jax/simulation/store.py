"""Client rows at rest: packed, and on the device, on the host or on the disk.

Booleans take one bit, everything else its own dtype. Rows on the host are NumPy arrays
[N, ...], on the disk a `disk_store.Rows`. Of these the device holds two working sets at
most: the rows of the clients of the segment that runs, and meanwhile those of the next,
in which the rows that both share are replaced when the segment ends.
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.core.validate import one_of
from sparsefl_jax.simulation import disk_store
from sparsefl_jax.system import hardware, processes

STORES = {  # where clients' rows live
    "auto": "on the device, if they fill at most half of its memory, else on the host, "
    "on the disk if they would fill that",
    "device": "all on the device",
    "host": "on the host, on the device only those of clients that take part",
    "disk": "on the disk those of clients that ever took part, on the device as above",
}
_MOST = 0.5  # of the devices' memory, for all rows
_MOST_OF_HOST = 0.8  # of the host's
_WORKING = 0.25  # of the devices' memory, for two working sets


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
    """Restores what `pack` packed; `like` gives shapes and dtypes."""

    def restore(packed, shape):
        if shape.dtype != bool:
            return packed
        return (
            jnp.unpackbits(packed, count=shape.size).reshape(shape.shape).astype(bool)
        )

    return jax.tree.map(restore, row, like)


def check(client_store: str) -> None:
    """Refuses an unknown name of a store.

    Raises:
      ValueError: it is none of `STORES`.
    """
    one_of("client_store", client_store, STORES)


def chosen(client_store: str, rows: PyTree, memory: float, num_devices: int) -> str:
    """Chooses where rows live: 'device', 'host' or 'disk'; 'auto' decides by memory.

    On CPUs, too, half of the memory is the limit of what is on the device.

    Args:
      client_store: a name in `STORES`.
      rows: of all clients [N, ...], arrays or shapes.
      memory: bytes that the stage's devices hold together.
      num_devices: how many these are.

    Raises:
      ValueError: `client_store` is unknown.

    Example:
      >>> rows = {'weights': jax.ShapeDtypeStruct((10, 3), jnp.float32)}
      >>> chosen('auto', rows, 300, 1), chosen('auto', rows, 200, 1)  # of 120 bytes
      ('device', 'host')
    """
    check(client_store)
    if not jax.tree.leaves(rows):
        return "device"  # there is nothing to keep
    if client_store != "auto":
        return client_store
    if device_bytes(rows, num_devices) <= _MOST * memory:
        return "device"
    fits = num_bytes(rows) <= _MOST_OF_HOST * hardware.host_memory()
    return "host" if fits else "disk"


def num_bytes(tree: PyTree) -> int:
    """Returns the bytes of all leaves, arrays or shapes."""
    return sum(v.size * v.dtype.itemsize for v in jax.tree.leaves(tree))


def device_bytes(rows: PyTree, num_devices: int) -> int:
    """Returns the bytes of rows on the devices, sharded or copied.

    Example:
      >>> rows = jax.ShapeDtypeStruct((5, 2), jnp.float32)
      >>> device_bytes(rows, 5), device_bytes(rows, 2)
      (40, 80)
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0] if jax.tree.leaves(rows) else 0
    return num_bytes(rows) * (1 if num_rows % num_devices == 0 else num_devices)


def most_rounds(rows: PyTree, cohort_size: int, memory: float) -> int:
    """Returns how many rounds a segment may have for its working sets to fit."""
    num_clients = jax.tree.leaves(rows)[0].shape[0]
    fitting = int(_WORKING * memory * num_clients / (2 * num_bytes(rows)))
    return sys.maxsize if fitting >= num_clients else max(1, fitting // cohort_size)


def working_size(
    num_clients: int, cohort_size: int, length: int, num_devices: int
) -> int:
    """Returns the rows of a working set, enough for a segment's cohorts.

    Example:
      >>> working_size(100, cohort_size=10, length=3, num_devices=4)
      32
    """
    return math.ceil(min(num_clients, length * cohort_size) / num_devices) * num_devices


class Working(NamedTuple):
    """The rows that a segment works on."""

    ids: np.ndarray  # [W] int32, ascending, then N for nobody
    places: np.ndarray  # [R, K] int32: where the rows of its cohorts stand
    rows: PyTree  # [W, ...] on the device


def find(cohorts: Array, size: int, num_clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct clients of a segment, and their places among these.

    Args:
      cohorts: [R, K] int32.
      size: W, at least the number of different clients.
      num_clients: N, which fills up.

    Returns:
      `ids` [W] and `places` [R, K], int32: `ids[places]` are the cohorts.

    Example:
      >>> ids, places = find(np.array([[7, 2], [2, 5]]), size=4, num_clients=9)
      >>> ids.tolist(), places.tolist()
      ([2, 5, 7, 9], [[2, 0], [0, 1]])
    """
    ids = np.full(size, num_clients, np.int32)
    members = np.unique(np.asarray(cohorts))
    ids[: members.size] = members
    return ids, np.searchsorted(members, cohorts).astype(np.int32)


def shared(old: np.ndarray, new: np.ndarray, group: int) -> np.ndarray:
    """Returns the clients of two working sets by their places in both.

    Args:
      old, new: ids [W] of both, ascending.
      group: clients to move at a time.

    Returns:
      [ceil(W / group), 2, group] int32; the place in the new one is W for a client that
      is not in both.

    Example:
      >>> shared(np.array([2, 5, 7]), np.array([5, 6, 9]), group=2).tolist()
      [[[1, 2], [0, 3]], [[2, 0], [3, 3]]]
    """
    size = new.size
    source = np.minimum(np.searchsorted(old, new), size - 1)
    target = np.where(old[source] == new, np.arange(size), size)
    rest = -size % group
    both = np.stack(
        [np.pad(source, (0, rest)), np.pad(target, (0, rest), constant_values=size)]
    )
    return both.reshape(2, -1, group).swapaxes(0, 1).astype(np.int32)


def fill(make: Callable, shapes: PyTree, info: PyTree, size: int) -> PyTree:
    """Makes all clients' rows on the device in groups, and keeps them on the host.

    Args:
      make: `(info [size]) -> rows [size, ...]`.
      shapes: of all rows, [N, ...].
      info: [N], what `make` takes for every client.
      size: how many at a time.
    """
    rows = jax.tree.map(lambda v: np.empty(v.shape, v.dtype), shapes)
    num_clients = jax.tree.leaves(shapes)[0].shape[0]
    info = jax.device_get(info)
    for first in range(0, num_clients, size):
        ids = np.minimum(np.arange(first, first + size), num_clients)
        scatter(rows, ids, make(take(info, ids)))
    return rows


def writable(rows: PyTree) -> PyTree:
    """Returns rows as writable NumPy arrays, copied only if necessary."""
    return jax.tree.map(lambda v: np.require(v, requirements="W"), rows)


def take(rows: PyTree, ids: np.ndarray) -> PyTree:
    """Reads rows [W, ...] of these clients; any row for an empty slot."""
    if isinstance(rows, disk_store.Rows):
        return rows.take(ids)
    return jax.tree.map(lambda v: v[np.minimum(ids, len(v) - 1)], rows)


def scatter(rows: PyTree, ids: np.ndarray, new: PyTree) -> None:
    """Writes rows [W, ...] of these clients into all, in place."""
    new = processes.fetch(new)
    if isinstance(rows, disk_store.Rows):
        rows.scatter(ids, new)
        return

    def write(all_rows, some):
        real = ids < len(all_rows)
        all_rows[ids[real]] = some[real]

    jax.tree.map(write, rows, new)


def on_device(segment: Callable) -> Callable:
    """Wraps a segment for rows that are all on the device, as `on_host` does."""

    def run(key, population, state, rounds, cohorts, count, following=None, ahead=None):
        del following, ahead
        return *segment(key, population, state, rounds, cohorts, None, count), None

    return run


def on_host(segment: Callable, mesh: Mesh, size: int) -> Callable:
    """Wraps a segment for rows that live on the host or on the disk.

    Args:
      segment: from `round_program.make_segment`.
      mesh: of the devices.
      size: W, rows of a working set, as `working_size` has it.

    Returns:
      `run(key, population, state, rounds [R], cohorts [R, K], count, following,
      ahead)`, which runs `count` of these rounds and gives the new state, the log, and
      what to hand to the next call as `ahead`. `state.clients` are NumPy arrays or a
      `disk_store.Rows`, which it changes in place. `following` are the cohorts of the
      next segment, whose rows are fetched while this one runs; None if none comes.
    """
    placed = NamedSharding(mesh, P("clients"))

    @functools.partial(jax.jit, donate_argnums=1, out_shardings=placed)
    def forward(old, new, places):
        def some(new, places):  # of all at once the copies would be a third set
            source, target = places
            rows = jax.tree.map(lambda o: o[source], old)
            new = jax.tree.map(lambda n, r: n.at[target].set(r, mode="drop"), new, rows)
            return new, None

        return lax.scan(some, new, places)[0]

    def fetch(rows, cohorts, num_clients) -> Working:
        ids, places = find(cohorts, size, num_clients)
        return Working(ids, places, processes.put(take(rows, ids), placed))

    def run(key, population, state, rounds, cohorts, count, following=None, ahead=None):
        clients, num_clients = state.clients, state.last_round.shape[0]
        here = ahead or fetch(clients, cohorts, num_clients)
        state = state._replace(clients=here.rows)
        state, log = segment(
            key, population, state, rounds, cohorts, here.places, count
        )
        ahead = None
        if following is not None:
            ahead = fetch(clients, following, num_clients)
            moved = shared(here.ids, ahead.ids, cohorts.shape[1])
            rows = forward(state.clients, ahead.rows, moved)
            ahead = ahead._replace(rows=rows)
        ran = np.isin(here.ids, cohorts[:count])
        scatter(clients, np.where(ran, here.ids, num_clients), state.clients)
        return state._replace(clients=clients), log, ahead

    return run
