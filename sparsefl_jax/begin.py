"""The state before a stage's first round."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax import simulate, store
from sparsefl_jax.types import ClientInfo, Key, SparseModel


def _makers(key: Key, algorithm) -> tuple[Callable, Callable]:
    """`init(model) -> server` and `rows(server, info [n]) -> rows [n, ...]`, packed.

    Every client's key depends on the client alone and `init_client` sees the server as
    `init` returned it, so it does not matter when or in what chunks rows are made.
    """
    init_key, client_key = jax.random.split(jax.random.fold_in(key, 1))

    def init(model):
        # Copies: jit hands untouched inputs on, and the state gets donated.
        return jax.tree.map(jnp.copy, simulate.strong(algorithm.init(init_key, model)))

    def rows(server, info):
        def one(info):
            own = jax.random.fold_in(client_key, info.index)
            return store.pack(simulate.strong(algorithm.init_client(own, server, info)))

        return lax.map(one, info)

    return init, rows


def shapes(algorithm, model: SparseModel, info: ClientInfo) -> simulate.State:
    """The state of a stage by shape; model and info are arrays or shapes."""
    init, rows = _makers(jax.random.key(0), algorithm)
    server = jax.eval_shape(init, model)
    last_round = jax.ShapeDtypeStruct(info.index.shape, jnp.int32)
    return simulate.State(server, jax.eval_shape(rows, server, info), last_round)


def start(
    key: Key,
    plan: simulate.Plan,
    model: SparseModel,
    population: simulate.Population,
    restore=None,
    working: int | None = None,
) -> simulate.State:
    """The state before the first round of a stage with root key `key`.

    Args:
      key, plan, model, population: of the stage.
      restore: `(shapes) -> state`, which replaces the computation: a saved state in the
        structure, shapes and dtypes that it is given. `model` may be shapes then.
      working: if clients' rows live on the host, how many the device holds at a time.
    """
    algorithm, info = plan.stage.algorithm, population.info
    shape = shapes(algorithm, model, info)
    placed = simulate.shardings(plan, shape)
    if working is not None:
        placed = placed._replace(clients=NamedSharding(plan.mesh, P("clients")))
    if restore is not None:
        state = restore(shape)
        if working is None:
            return jax.device_put(state, placed)
        clients = store.writable(state.clients)
    else:
        init, rows = _makers(key, algorithm)
        model = jax.device_put(model, NamedSharding(plan.mesh, P()))
        server = jax.jit(init, out_shardings=placed.server)(model)
        make = functools.partial(jax.jit(rows, out_shardings=placed.clients), server)
        state = simulate.State(
            server, (), np.full(shape.last_round.shape, -1, np.int32)
        )
        if working is None:
            clients = make(info)
        else:
            clients = store.fill(make, shape.clients, info, working)
    rest = jax.device_put(state._replace(clients=()), placed._replace(clients=()))
    return rest._replace(clients=clients)
