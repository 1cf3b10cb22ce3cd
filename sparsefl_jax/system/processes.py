"""Runs in several processes that all do the same, each with some of the devices.

Every process builds the same data and programs and takes part in every computation.
Only process 0 writes files and draws progress. Values that decide how a run continues,
such as a clock or a signal, are agreed on with the functions of this module; otherwise
the processes would wait for each other forever.

In a single process these functions cost nothing and change nothing.
"""

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import PyTree


def are_several() -> bool:
    """Returns whether this run has more than one process."""
    return jax.process_count() > 1


def leads() -> bool:
    """Returns whether this is process 0, which writes the files."""
    return jax.process_index() == 0


def put(tree: PyTree, sharding: PyTree) -> PyTree:
    """Puts arrays on devices, as `jax.device_put` does in a single process.

    Args:
      tree: arrays that are equal in every process, or that are already on all devices.
      sharding: a sharding, or a tree of shardings that is a prefix of `tree`.

    Returns:
      The tree with arrays on the devices.
    """
    if not are_several():
        return jax.device_put(tree, sharding)

    def put_leaf(leaf, sharding):
        if _is_global(leaf):
            return jax.device_put(leaf, sharding)
        leaf = np.asarray(leaf)
        leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
        return jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__)

    return jax.tree.map(put_leaf, tree, jax.tree.broadcast(sharding, tree))


def fetch(tree: PyTree) -> PyTree:
    """Returns the whole arrays as NumPy, in every process; all processes must call it.

    It works leaf by leaf, because every device briefly holds the whole of a leaf that
    is sharded over processes.
    """

    def fetch_leaf(leaf):
        if _is_global(leaf) and not leaf.is_fully_replicated:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return jax.device_get(leaf)

    return jax.tree.map(fetch_leaf, tree) if are_several() else jax.device_get(tree)


def _is_global(leaf) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def most(*numbers: int) -> tuple[int, ...]:
    """Returns, in every process, the largest value of each number in any process.

    Example:
      >>> most(False, 15)
      (0, 15)
    """
    values = np.asarray(numbers, np.int32)
    if are_several():
        values = np.max(multihost_utils.process_allgather(values), 0)
    return tuple(values.tolist())


def lead(value: Any = None) -> Any:
    """Broadcasts process 0's value, which must be JSON, to all processes.

    Example:
      >>> lead({'rounds': [1, None]})
      {'rounds': [1, None]}
    """
    if not are_several():
        return value
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    text = multihost_utils.broadcast_one_to_all(np.resize(text, size))
    return json.loads(np.asarray(text).tobytes())


def check_same(name: str, value: Any) -> None:
    """Checks that a value is the same in all processes.

    Args:
      name: the name of the value, for the error.
      value: a JSON value.

    Raises:
      ValueError: in every process, if the value of a process differs from process 0's.
    """
    value = json.loads(json.dumps(value))
    (other,) = most(jax.process_index() * (lead(value) != value))
    if other:
        raise UserError(
            f"{name} of process {other} differs from that of process 0, expected "
            "the same files and flags for all"
        )
