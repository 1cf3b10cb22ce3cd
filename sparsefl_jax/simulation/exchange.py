"""Moves clients' rows between the devices that hold them and those that train them.

Row i of N lives on device i // (N / D). A client is trained wherever `placement.deal`
puts it, so its row travels there, and back afterwards. In a trip each device sends the
same small number of rows to each other one; a chunk takes as many trips as the busiest
pair of devices needs. No device ever receives the rows of a whole cohort, and rows are
read and written one by one: a gather or scatter copies the whole store on TPU.

If N is not a multiple of D, every device holds all rows, and only new ones travel.

`read` and `write` run under `jax.shard_map` over the axis 'clients'.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.types import Array, PyTree

_AXIS = "clients"


class Routes(NamedTuple):
    """The rows of a chunk, and how they travel; the same on every device.

    The last two axes are the trainers D and the rows that a trip moves between two
    devices. There are no trips if every device holds all rows, or clients keep nothing.
    """

    places: Array  # [D, chunk] int32: rows in the store, N for an empty slot
    rows: Array | None = None  # [trips, D, D, c] int32: in the holder; N / D for none
    slots: Array | None = None  # [trips, D, D, c] int32: of the chunk; chunk for none
    trips: Array | None = None  # shape=(), int32: that have a row to move


def per_device(function: Callable, mesh: Mesh, in_specs: Any, out_specs: Any):
    """Returns a function that every device of a mesh runs, as `jax.shard_map` does.

    What the devices hold in common follows from the specs alone and is not checked.
    """
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def spec(rows: PyTree, num_devices: int) -> P:
    """Returns how rows [N, ...] are divided among devices: evenly, or not at all."""
    even = all(v.shape[0] % num_devices == 0 for v in jax.tree.leaves(rows))
    return P(_AXIS) if even else P()


def routes(places: Array, rows: PyTree) -> Routes:
    """Plans how the rows of a chunk travel.

    Args:
      places: [D, chunk] int32, the rows that each device trains; N for an empty slot.
      rows: all rows [N, ...].

    Example:
      >>> places = jnp.array([[3, 0], [1, 4]], jnp.int32)
      >>> way = routes(places, jnp.zeros((4, 9)))
      >>> way.rows[0, ..., 0].tolist()  # device 0, which holds rows 0 and 1, sends both
      [[0, 1], [1, 2]]
      >>> way.slots[0, ..., 0].tolist()
      [[1, 0], [0, 2]]
    """
    devices, chunk = places.shape
    leaves = jax.tree.leaves(rows)
    if devices == 1 or not leaves or spec(rows, devices) == P():
        return Routes(places)
    held, size = leaves[0].shape[0] // devices, -(-chunk // devices)
    holder = places // held  # D, which is dropped below, for an empty slot
    alike = holder[:, :, None] == holder[:, None, :]
    before = jnp.sum(jnp.tril(alike, -1), -1, dtype=jnp.int32)
    trainer = jnp.arange(devices, dtype=jnp.int32)[:, None]
    place = before // size, holder, trainer, before % size
    shape = -(-chunk // size), devices, devices, size

    def table(values, blank):
        return jnp.full(shape, blank, jnp.int32).at[place].set(values, mode="drop")

    slot = jnp.broadcast_to(jnp.arange(chunk, dtype=jnp.int32), places.shape)
    return Routes(
        places,
        table(places % held, held),
        table(slot, chunk),
        jnp.max(jnp.where(holder < devices, before // size + 1, 0)),
    )


def read(rows: PyTree, way: Routes) -> PyTree:
    """Returns the rows [chunk, ...] that this device trains; any row for no client.

    Args:
      rows: the rows that this device holds.
      way: from `routes`.
    """
    me, chunk = lax.axis_index(_AXIS), way.places.shape[1]
    if way.rows is None:  # static branch
        return _take(rows, way.places[me])

    def trip(i, chunk_rows):
        sent = _take(rows, way.rows[i, me])
        return _put(chunk_rows, way.slots[i, :, me], _swap(sent))

    blank = jax.tree.map(lambda v: jnp.zeros((chunk, *v.shape[1:]), v.dtype), rows)
    return _loop(len(way.rows), way.trips, trip, blank)


def write(rows: PyTree, new: PyTree, way: Routes) -> PyTree:
    """Returns the rows that this device holds after training.

    Args:
      rows: the rows before.
      new: the rows [chunk, ...] that this device has trained.
      way: from `routes`.
    """
    me = lax.axis_index(_AXIS)
    if way.rows is None:  # static branch
        if len(way.places) > 1:  # static branch
            new = jax.tree.map(lambda v: lax.all_gather(v, _AXIS), new)
        return _put(rows, way.places, new)

    def trip(i, rows):
        sent = _take(new, way.slots[i, :, me])
        return _put(rows, way.rows[i, me], _swap(sent))

    return _loop(len(way.rows), way.trips, trip, rows)


def _loop(most: int, trips: PyTree, trip: Callable, carry: PyTree) -> PyTree:
    if most == 1:  # static branch: an unknown length costs GPUs a wait
        return trip(0, carry)
    return lax.fori_loop(0, trips, trip, carry)


def _take(rows: PyTree, ids: Array) -> PyTree:
    """Reads rows one by one, [*ids.shape, ...]; any row for an id that is too large."""

    def one(i):
        return jax.tree.map(
            lambda v: lax.dynamic_index_in_dim(v, i, keepdims=False), rows
        )

    taken = lax.map(one, ids.reshape(-1))
    return jax.tree.map(lambda v: v.reshape(*ids.shape, *v.shape[1:]), taken)


def _put(rows: PyTree, ids: Array, new: PyTree) -> PyTree:
    """Writes rows [*ids.shape, ...] one by one; skips ids that are too large."""
    flat = ids.reshape(-1)

    def one(i, rows):
        def put(old, new):
            place = flat[i]
            new = new.reshape(-1, *old.shape[1:])[i]
            same = lax.dynamic_index_in_dim(old, place, keepdims=False)
            new = jnp.where(place < old.shape[0], new, same)
            return lax.dynamic_update_index_in_dim(old, new, place, 0)

        return jax.tree.map(put, rows, new)

    return lax.fori_loop(0, flat.size, one, rows)


def _swap(sent: PyTree) -> PyTree:
    """Sends the i-th of the leading axis to device i; returns what they all sent."""
    return jax.tree.map(lambda v: lax.all_to_all(v, _AXIS, 0, 0), sent)
