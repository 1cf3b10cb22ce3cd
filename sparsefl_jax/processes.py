"""One run in several processes: each has some of the devices, and all do the same.

Every process builds the same data and programs, and takes part in everything that the
devices do together; process 0 alone writes files and draws progress. What decides how a
run goes on, such as a clock or a signal, is agreed on here, or processes would wait for
each other for ever.

In a single process all of this costs nothing and changes nothing.
"""

import json
import os
import re
import sys
import zlib

import jax
import numpy as np
from jax.experimental import multihost_utils

from sparsefl_jax.types import PyTree

# Seconds after which a process that tells nothing, or does not end with the others,
# counts as lost, and the others end.
HEARTBEAT, SHUTDOWN = 100, 60


def start(
    coordinator: str | None = None, count: int | None = None, index: int | None = None
) -> None:
    """Joins this process to the others of its run; call it before JAX does anything.

    Without arguments the launcher tells: SLURM, Open MPI, Kubernetes or a TPU pod, as
    `jax.distributed.initialize` finds them.

    Args:
      coordinator: 'host:port' of process 0.
      count: number of processes.
      index: of this process, from 0.

    Raises:
      ValueError: some of the arguments are missing or out of range, or nobody tells.
      RuntimeError: JAX has started already, or the others do not come.

    Example:
      >>> start("10.0.0.1:4321", 2, 0)  # doctest: +SKIP
      >>> start("10.0.0.1:4321", 2, 2)
      Traceback (most recent call last):
        ...
      ValueError: coordinator='10.0.0.1:4321', processes=2, process_id=2, expected all
      three: host:port, P, and an integer from 0 to P - 1
    """
    told = coordinator, count, index
    if told != (None, None, None) and not _whole(*told):
        raise ValueError(
            f"coordinator={coordinator!r}, processes={count}, process_id={index}, "
            "expected all three: host:port, P, and an integer from 0 to P - 1"
        )
    try:
        jax.distributed.initialize(
            *told,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=SHUTDOWN,
        )
    except ValueError as error:
        if coordinator is not None:
            raise
        raise ValueError(
            "no launcher of several processes is found, expected SLURM, Open MPI or "
            "Kubernetes, or --coordinator=host:port --processes=P --process_id=I"
        ) from error
    # Gloo waits 30 s for others at the first meeting, and as long as it takes later.
    most(0)


def _whole(coordinator: str | None, count: int | None, index: int | None) -> bool:
    if None in (coordinator, count, index):
        return False
    return bool(re.fullmatch(r".+:\d+", coordinator)) and 0 <= index < count


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


def lead(value=None):
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


def check_same(what: str, value) -> None:
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


def lost(error: Exception) -> bool:
    """Whether an error may come of another process that has ended."""
    joined = jax.distributed.is_initialized()
    return joined and isinstance(error, jax.errors.JaxRuntimeError)


def leave(code: int | str) -> None:
    """Ends this process as `sys.exit` does.

    One of several does not wait for the others, who find its connections closed.
    """
    if not jax.distributed.is_initialized():
        sys.exit(code)
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
