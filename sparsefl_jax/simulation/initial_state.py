"""Builds the state before a stage's first round."""

import functools
from collections.abc import Callable

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
from sparsefl_jax.simulation import exchange, placement, round_program
from sparsefl_jax.simulation.rows import Store, pack, working_size
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
        server = round_program.strong(algorithm.init(init_key, model))
        # jit returns unchanged inputs without a copy, but the state gets donated.
        return jax.tree.map(jnp.copy, server)

    def rows(key, server, info):
        _, client_key = keys.of_start(key)

        def one(info):
            own_key = keys.of_client(client_key, info.index)
            client = algorithm.first_state(own_key, server, info)
            return pack(round_program.strong(client))

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
    where: str = "device",
) -> placement.State:
    """Builds the state before the first round of a stage with root key `key`.

    Args:
      key: the stage's root key.
      plan: the devices and the chunk of the stage.
      model: the model before the stage.
      info: the facts of all clients, [N].
      restore: `(shapes) -> state`, which returns a saved state of these shapes and
        dtypes, with a `rows.Saved`, instead of a new one. `model` may be shapes.
      where: 'device', 'host' or 'disk', where rows live.

    Returns:
      The `State`, on the plan's devices except for rows on the host or on disk.
    """
    algorithm, info = plan.stage.algorithm, jax.device_get(info)
    num_clients, shape = len(info.index), shapes(algorithm, model, info)
    placed, replicated = placement.shardings(plan, shape), NamedSharding(plan.mesh, P())
    size = working_size(num_clients, plan.stage.cohort_size, 1, plan.mesh.size)
    open_at = functools.partial(open_store, key, algorithm, info, size, plan.mesh)
    if restore is None:
        init, rows = makers(algorithm)
        server = jax.jit(
            init, out_shardings=placed.server, compiler_options=hardware.UNOPTIMIZED
        )(key, processes.put(model, replicated))
        state = placement.State(server, (), np.full(num_clients, -1, np.int32))
        if where == "device":
            info = processes.put(info, replicated)
            clients = _jit(rows, plan.mesh)(key, server, info)
        else:  # a copy, because the state gets donated
            clients = open_at(where, jax.tree.map(np.array, server))
    else:
        state = restore(shape)
        saved, on_device = state.clients, where == "device"
        clients = saved.rows
        if not on_device or len(saved.ids) < num_clients:
            clients = open_at("disk" if on_device else where, saved.first)
            clients.load(saved)
            clients = clients.take(np.arange(num_clients)) if on_device else clients
        if on_device:
            clients = processes.put(clients, placed.clients)
    rest = processes.put(state._replace(clients=()), placed._replace(clients=()))
    return rest._replace(clients=clients)


def open_store(
    key: Key,
    algorithm: Algorithm,
    info: ClientInfo,
    size: int,
    mesh: Mesh | None,
    where: str,
    first: PyTree,
) -> Store:
    """Opens a store for the rows of all clients, none of them written.

    Args:
      key: the stage's root key.
      algorithm: the stage's algorithm.
      info: the facts of all clients, NumPy arrays [N].
      size: the number of rows that are computed at a time.
      mesh: the devices that compute rows; None: the default device.
      where: 'host' or 'disk'.
      first: the server as the stage's `init` returned it.
    """
    _, rows = makers(algorithm)
    shape = jax.eval_shape(rows, key, first, info)
    make = functools.partial(_jit(rows, mesh), key)
    return Store(shape, info, make, first, size, where)


def _jit(rows: Callable, mesh: Mesh | None) -> Callable:
    """Compiles what makes rows; each device of a mesh makes those that it holds."""
    if mesh is None:
        return jax.jit(rows)

    @jax.jit
    def divided(key, server, info):
        spec = exchange.spec(info, mesh.size)
        mapped = exchange.per_device(rows, mesh, (P(), P(), spec), spec)
        return mapped(key, server, info)

    return divided
