"""Builds the state before a stage's first round."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.types import ClientInfo, Key, PyTree, SparseModel
from sparsefl_jax.models.base import Model
from sparsefl_jax.simulation import (
    disk_store,
    exchange,
    placement,
    round_program,
    store,
)
from sparsefl_jax.sparsity import masks
from sparsefl_jax.system import hardware, processes


def initial_model(key: Key, model: Model) -> SparseModel:
    """Returns a fresh network with nothing pruned."""
    params, stats = model.init(key)
    return SparseModel(params, jax.jit(masks.full)(params), stats)


def initial_shapes(model: Model) -> SparseModel:
    """Returns the shapes of a fresh network."""
    return jax.eval_shape(lambda key: initial_model(key, model), jax.random.key(0))


def makers(algorithm: Algorithm) -> tuple[Callable, Callable]:
    """Returns the functions that make a stage's server and its clients' rows.

    A client's key depends only on the client, and what the server hands it does not
    change. So rows can be made at any time and in any groups.

    Args:
      algorithm: the stage's algorithm.

    Returns:
      `init(key, model) -> server` and `rows(key, server, info [n]) -> rows [n, ...]`,
      where `key` is the stage's root key.
    """

    def init(key, model):
        init_key, _ = keys.of_start(key)
        # jit returns unchanged inputs without a copy, but the state gets donated.
        return jax.tree.map(
            jnp.copy, round_program.strong(algorithm.init(init_key, model))
        )

    def rows(key, server, info):
        _, client_key = keys.of_start(key)

        def one(info):
            own_key = keys.of_client(client_key, info.index)
            client = algorithm.first_state(own_key, server, info)
            return store.pack(round_program.strong(client))

        return lax.map(one, info)

    return init, rows


def shapes(
    algorithm: Algorithm, model: SparseModel, info: ClientInfo
) -> placement.State:
    """Returns the shapes and dtypes of a stage's state."""
    (init, rows), key = makers(algorithm), jax.random.key(0)
    server = jax.eval_shape(init, key, model)
    last_round = jax.ShapeDtypeStruct(info.index.shape, jnp.int32)
    clients = jax.eval_shape(rows, key, server, info)
    return placement.State(server, clients, last_round)


def start(
    key: Key,
    plan: placement.Plan,
    model: SparseModel,
    info: ClientInfo,
    restore: Callable | None = None,
    working: int | None = None,
    where: str = "device",
) -> placement.State:
    """Builds the state before the first round of a stage with root key `key`.

    Args:
      key: the stage's root key.
      plan: the devices and the chunk of the stage.
      model: the model before the stage.
      info: the facts of all clients, [N].
      restore: `(shapes) -> state`, which returns a saved state of these shapes and
        dtypes, instead of a new one. Its rows may be a `disk_store.Saved`, and `model`
        may be shapes.
      working: the number of clients' rows that the device holds at a time; None where
        all rows live on the device.
      where: 'device', 'host' or 'disk', where rows live.

    Returns:
      The `State`, on the plan's devices except for rows on the host or on disk.
    """
    algorithm = plan.stage.algorithm
    info = processes.put(info, NamedSharding(plan.mesh, P()))
    shape = shapes(algorithm, model, info)
    placed = placement.shardings(plan, shape)
    size = store.working_size(
        len(info.index), plan.stage.cohort_size, 1, plan.mesh.size
    )
    init, rows = makers(algorithm)
    make = functools.partial(_jitted(rows, plan.mesh), key)
    disk = functools.partial(
        on_disk, key, algorithm, info, shape.clients, size, mesh=plan.mesh
    )
    if restore is not None:
        state = restore(shape)
        clients = _moved(state, where, disk)
        if where == "device":
            clients = processes.put(clients, placed.clients)
    else:
        model = processes.put(model, NamedSharding(plan.mesh, P()))
        server = jax.jit(
            init, out_shardings=placed.server, compiler_options=hardware.UNOPTIMIZED
        )(key, model)
        last_round = np.full(shape.last_round.shape, -1, np.int32)
        state = placement.State(server, (), last_round)
        if where == "device":
            clients = make(server, info)
        elif where == "host":
            make = functools.partial(make, server)
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
    mesh: Mesh | None = None,
) -> disk_store.Rows:
    """Returns the rows of all clients as a disk store with empty files.

    Args:
      key: the stage's root key.
      algorithm: the stage's algorithm.
      info: the facts of all clients [N].
      shapes: the shapes and dtypes of all rows [N, ...].
      size: the number of rows that are computed at a time.
      first: the server as the stage's `init` returned it.
      mesh: the devices that compute rows; None: the default device.
    """
    _, rows = makers(algorithm)
    rows, info = _jitted(rows, mesh), jax.device_get(info)

    def make(server, ids):
        return rows(key, server, store.take(info, ids))

    first = jax.tree.map(np.array, first)  # a copy, because the state gets donated
    return disk_store.Rows(shapes, first, make, size)


def _jitted(rows: Callable, mesh: Mesh | None) -> Callable:
    """Compiles what makes rows; each device of a mesh makes those that it holds."""
    if mesh is None:
        return jax.jit(rows)

    @jax.jit
    def divided(key, server, info):
        spec = exchange.spec(info, mesh.size)
        mapped = exchange.per_device(rows, mesh, (P(), P(), spec), spec)
        return mapped(key, server, info)

    return divided


def _moved(state: placement.State, where: str, disk: Callable):
    """Moves the rows of a saved state to the place where they live in this run."""
    saved = state.clients
    if where != "disk" and not isinstance(saved, disk_store.Saved):
        if where == "device":
            return saved
        return jax.tree.map(lambda v: np.require(v, requirements="W"), saved)
    if not isinstance(saved, disk_store.Saved):  # all rows: `first` is never used
        everyone = np.arange(len(state.last_round), dtype=np.int32)
        saved = disk_store.Saved(state.server, everyone, saved)
    rows = disk(saved.first)
    rows.load(saved)
    return rows if where == "disk" else rows.take(np.arange(rows.num_clients))
