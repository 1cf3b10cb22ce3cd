"""The state before a stage's first round."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import ClientInfo, Key, PyTree, SparseModel
from sparsefl_jax.simulation import disk_store, placement, round_program, store
from sparsefl_jax.system import processes


def makers(key: Key, algorithm: Algorithm) -> tuple[Callable, Callable]:
    """Returns `init(model) -> server` and `rows(server, info [n]) -> rows [n, ...]`.

    `key` is the stage's root key.

    Every client's key depends on the client alone and `init_client` sees the server as
    `init` returned it, so it does not matter when or in what chunks rows are made.
    """
    init_key, client_key = keys.of_start(key)

    def init(model):
        # Copies: jit hands untouched inputs on, and the state gets donated.
        return jax.tree.map(
            jnp.copy, round_program.strong(algorithm.init(init_key, model))
        )

    def rows(server, info):
        def one(info):
            own = keys.of_client(client_key, info.index)
            return store.pack(
                round_program.strong(algorithm.init_client(own, server, info))
            )

        return lax.map(one, info)

    return init, rows


def shapes(
    algorithm: Algorithm, model: SparseModel, info: ClientInfo
) -> placement.State:
    """Returns the state of a stage by shape."""
    init, rows = makers(jax.random.key(0), algorithm)
    server = jax.eval_shape(init, model)
    last_round = jax.ShapeDtypeStruct(info.index.shape, jnp.int32)
    return placement.State(server, jax.eval_shape(rows, server, info), last_round)


def start(
    key: Key,
    plan: placement.Plan,
    model: SparseModel,
    population: placement.Population,
    restore: Callable | None = None,
    working: int | None = None,
    where: str = "host",
) -> placement.State:
    """Builds the state before the first round of a stage with root key `key`.

    Args:
      key, plan, model, population: of the stage.
      restore: `(shapes) -> state`, which replaces the computation: a saved state in the
        structure, shapes and dtypes that it is given; its rows may be a
        `disk_store.Saved`. `model` may be shapes then.
      working: if clients' rows do not live on the device, how many it holds at a time.
      where: 'host' or 'disk', where they live then.
    """
    algorithm, info = plan.stage.algorithm, population.info
    shape = shapes(algorithm, model, info)
    placed = placement.shardings(plan, shape)
    some = NamedSharding(plan.mesh, P("clients"))
    size = len(info.index), plan.stage.cohort_size, 1, plan.mesh.size
    size = store.working_size(*size)
    disk = functools.partial(
        on_disk, key, algorithm, info, shape.clients, size, sharding=some
    )
    if working is None:
        where = "device"
    if restore is not None:
        state = restore(shape)
        clients = _moved(state, where, disk)
        if where == "device":
            clients = processes.put(clients, placed.clients)
    else:
        init, rows = makers(key, algorithm)
        model = processes.put(model, NamedSharding(plan.mesh, P()))
        server = jax.jit(init, out_shardings=placed.server)(model)
        last_round = np.full(shape.last_round.shape, -1, np.int32)
        state = placement.State(server, (), last_round)
        if where == "device":
            clients = jax.jit(rows, out_shardings=placed.clients)(server, info)
        elif where == "host":
            make = functools.partial(jax.jit(rows, out_shardings=some), server)
            clients = store.fill(make, shape.clients, info, working)
        else:
            clients = disk(server)
    rest = processes.put(state._replace(clients=()), placed._replace(clients=()))
    return rest._replace(clients=clients)


def on_disk(
    key: Key,
    algorithm: Algorithm,
    info: ClientInfo,
    shapes: PyTree,
    size: int,
    first: Any,
    sharding: Any = None,
) -> disk_store.Rows:
    """Returns all clients' rows as a disk store with empty files.

    Args:
      key: the stage's root key.
      algorithm, info: of the stage and of all clients.
      shapes: of all rows [N, ...].
      size: rows that are made at a time.
      first: the server as the stage's `init` returned it.
      sharding: of the rows that are made.
    """
    _, rows = makers(key, algorithm)
    rows, info = jax.jit(rows, out_shardings=sharding), jax.device_get(info)

    def make(server, ids):
        return rows(server, store.take(info, ids))

    first = jax.tree.map(np.array, first)  # the state's gets donated
    return disk_store.Rows(shapes, first, make, size)


def _moved(state: placement.State, where: str, disk: Callable):
    """Moves all clients' rows of a saved state to where they are to live."""
    saved = state.clients
    if where != "disk" and not isinstance(saved, disk_store.Saved):
        return store.writable(saved) if where == "host" else saved
    if not isinstance(saved, disk_store.Saved):  # everybody's: `first` makes none
        everyone = np.arange(len(state.last_round), dtype=np.int32)
        saved = disk_store.Saved(state.server, everyone, saved)
    rows = disk(saved.first)
    rows.load(saved)
    return rows if where == "disk" else rows.take(np.arange(rows.num_clients))
