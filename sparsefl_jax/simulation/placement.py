"""Places a stage on devices: its mesh, its shards, and the clients of each device.

A cohort is ordered by size and cut into chunks, which the devices get in snake order. A
device runs a chunk for as many steps as the longest client of that chunk needs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import AnyArray, Array, ClientInfo, Frozen, PyTree
from sparsefl_jax.data import flat
from sparsefl_jax.data.batching import steps_per_pass
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.simulation import exchange
from sparsefl_jax.simulation.clock import Clock
from sparsefl_jax.system import processes


class State(NamedTuple):
    """The state that a round changes."""

    server: PyTree
    clients: PyTree  # rows [N, ...], booleans packed to bits; [W, ...] in a working set
    last_round: AnyArray  # [N] int32, -1 for a client that never took part


class Population(NamedTuple):
    """The data that a round reads: samples, and each client's rows and facts."""

    x: AnyArray | flat.Flat  # [n, ...]
    y: AnyArray  # [n] or [n, T] int32
    index: AnyArray  # [N, M] int32
    info: ClientInfo  # [N]
    clock: Clock | None = None  # of the clients' devices, if they have any


class Plan(NamedTuple):
    """A stage laid out on devices, and what its rounds log and charge."""

    stage: Stage
    mesh: Mesh
    chunk: int  # the number of clients that one device runs at a time
    layers: PyTree  # Python bools like params: the leaves whose masks are logged
    macs: PyTree = None  # as `Model.macs`, by which a clock measures training
    frozen: Frozen | None = None  # as `Model.frozen`
    steps: np.int32 | None = None  # of an epoch, if all clients have as many


def stage_devices(stage: Stage, devices: Sequence | None = None) -> list:
    """Returns the devices of a stage, at most one for each client of a cohort.

    With several processes it returns all devices, because every process has to take
    part.
    """
    devices = list(devices or jax.devices())
    return devices if processes.are_several() else devices[: stage.cohort_size]


def make_plan(
    stage: Stage,
    layers: PyTree,
    devices: Sequence | None = None,
    chunk: int = 1,
    macs: PyTree = None,
    frozen: Frozen | None = None,
    sizes: np.ndarray | None = None,
) -> Plan:
    """Lays a stage out on devices.

    Args:
      stage: the stage.
      layers: Python bools like params, the leaves whose masks are logged.
      devices: the devices to choose from; None for all.
      chunk: the number of clients that one device runs at a time, at most its share of
        the cohort.
      macs: as `Model.macs`; needed where there is a clock.
      frozen: as `Model.frozen`.
      sizes: [N], the clients' training samples, if no place of a cohort is ever empty.
        Where all fill as many steps, these are known when the program is compiled.
    """
    devices = stage_devices(stage, devices)
    share = -(-stage.cohort_size // len(devices))
    mesh, chunk = Mesh(np.array(devices), ("clients",)), min(chunk, share)
    steps = ()
    if sizes is not None and stage.cohort_size % (chunk * len(devices)) == 0:
        steps = np.unique(steps_per_pass(stage, sizes))
    alike = np.int32(steps[0]) if len(steps) == 1 else None
    return Plan(stage, mesh, chunk, layers, macs, frozen, alike)


def make_population(plan: Plan, *given: Any) -> Population:
    """Puts the training data, `given` as to `on_host`, on devices, replicated."""
    return processes.put(on_host(*given), NamedSharding(plan.mesh, P()))


def on_host(
    data: FederatedData,
    budgets: np.ndarray | None = None,
    clock: Clock | None = None,
) -> Population:
    """Returns the training data as NumPy arrays, images as `flat.Flat` rows."""
    info = client_info(data, budgets)
    return Population(flat.flat(data.x), data.y, data.train.index, info, clock)


def client_info(data: FederatedData, budgets: np.ndarray | None = None) -> ClientInfo:
    """Returns the facts of all clients, NumPy arrays [N]; the default budget is 1."""
    num_clients = data.train.size.shape[0]
    budgets = np.ones(num_clients) if budgets is None else budgets
    return ClientInfo(
        np.arange(num_clients, dtype=np.int32),
        np.asarray(data.train.size, np.int32),
        np.asarray(budgets, np.float32),
    )


def shardings(plan: Plan, state: State) -> State:
    """Returns the shardings of a state.

    Clients' rows are sharded over the mesh if their number divides evenly. Everything
    else is replicated.
    """
    rows = exchange.spec(state.clients, plan.mesh.size)
    specs = State(P(), rows, P())
    placed = State(*(NamedSharding(plan.mesh, spec) for spec in specs))
    return jax.tree.broadcast(placed, state)


def deal(ids: Array, sizes: Array, devices: int, chunk: int) -> tuple[Array, Array]:
    """Orders a cohort by size and divides it among devices in snake order.

    Args:
      ids: [K] int32.
      sizes: [K] int32, the clients' training samples; 0 for an empty place.
      devices: D, the number of devices.
      chunk: the number of clients that one device runs at a time.

    Returns:
      Positions in `ids` as [G, D, chunk] int32, K for an empty slot, and the place of
      each sampled client in that array, flattened, as [K] int32.

    Example:
      >>> order, _ = deal(jnp.arange(4), jnp.array([1, 9, 5, 7]), devices=2, chunk=1)
      >>> order[..., 0].tolist()
      [[1, 3], [0, 2]]
    """
    cohort = ids.shape[0]
    groups = -(-cohort // (devices * chunk))
    order = jnp.argsort(-sizes, stable=True).astype(jnp.int32)
    empty = jnp.full((groups * devices * chunk - cohort,), cohort, jnp.int32)
    order = jnp.concatenate([order, empty]).reshape(groups, devices, chunk)
    order = order.at[1::2].set(order[1::2, ::-1])
    place = jnp.argsort(order.reshape(-1), stable=True)[:cohort]
    return order, place.astype(jnp.int32)
