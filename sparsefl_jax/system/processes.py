"""One run in several processes: each has some of the devices, and all do the same.

Every process builds the same data and programs, and takes part in everything that the
devices do together; process 0 alone writes files and draws progress. What decides how a
run goes on, such as a clock or a signal, is agreed on here, or processes would wait for
each other for ever.

In a single process all of this costs nothing and changes nothing.
"""

import json
import zlib
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from sparsefl_jax.core.types import PyTree


def several() -> bool:
    """Whether this run has more than one process."""
    return jax.process_count() > 1


def leads() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def put(tree: PyTree, sharding: PyTree) -> PyTree:
    """Puts arrays on devices, as `jax.device_put` does in a single process.

    Args:
      tree: arrays that are whole and the same in every process, or on all devices.
      sharding: one, or a tree of them that is a prefix of `tree`.
    """
    if not several():
        return jax.device_put(tree, sharding)

    def one(leaf, sharding):
        if _spread(leaf):
            return jax.device_put(leaf, sharding)
        leaf = np.asarray(leaf)
        leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda at: leaf[at])

    return jax.tree.map(one, tree, jax.tree.broadcast(sharding, tree))


def fetch(tree: PyTree) -> PyTree:
    """Arrays as NumPy has them, whole, as `jax.device_get`; all processes call it.

    Leaf by leaf: what is sharded over processes stands whole on every device for a
    moment.
    """

    def one(leaf):
        if _spread(leaf) and not leaf.is_fully_replicated:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return jax.device_get(leaf)

    return jax.tree.map(one, tree) if several() else jax.device_get(tree)


def _spread(leaf) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def most(*numbers: int) -> tuple[int, ...]:
    """The largest that any process has of each, in every process.

    Example:
      >>> most(False, 15)
      (0, 15)
    """
    mine = np.asarray(numbers, np.int32)
    if several():
        mine = np.max(multihost_utils.process_allgather(mine), 0)
    return tuple(mine.tolist())


def lead(value: Any = None) -> Any:
    """What process 0 has, in every process; values that JSON can hold.

    Example:
      >>> lead({'rounds': [1, None]})
      {'rounds': [1, None]}
    """
    if not several():
        return value
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    text = multihost_utils.broadcast_one_to_all(np.resize(text, size))
    return json.loads(np.asarray(text).tobytes())


def check_same(what: str, value: Any) -> None:
    """Refuses, in every process, what is not the same in all of them.

    Args:
      what: its name.
      value: what JSON can hold.

    Raises:
      ValueError: names a process whose value is not that of process 0.
    """
    if not several():
        return
    mine = np.uint32(zlib.crc32(json.dumps(value, sort_keys=True).encode()))
    all_of_them = multihost_utils.process_allgather(mine)
    others = np.flatnonzero(all_of_them != all_of_them[0])
    if others.size:
        raise ValueError(
            f"{what} of process {others[0]} differs from that of process 0, expected "
            "the same files and flags for all"
        )
