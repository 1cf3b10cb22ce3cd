"""The small world in which `contract` checks a method, and its reference round.

Five clients of uneven size, a network of two dense layers with a running statistic, an
initial mask as an earlier stage would hand it on. The reference, `loop_round`, is one
round as a plain loop over clients, with nothing of `simulate` but the keys' discipline.
What a world compiles and runs is kept in it, so that all laws share it.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Algorithm, Stage
from sparsefl_jax.core.types import ClientInfo, Context, PyTree, SparseModel
from sparsefl_jax.data.batching import batches, steps_per_epoch
from sparsefl_jax.models import Model
from sparsefl_jax.simulation import initial_state, placement, round_program, store
from sparsefl_jax.sparsity import masks
from sparsefl_jax.training import local
from sparsefl_jax.wire import packets

SIZES = (9, 3, 27, 9, 5)  # one below a batch of 4, one three times the others, a tie
BUDGETS = (0.5, 0.3, 0.5, 0.4, 0.3)
FEATURES, HIDDEN, CLASSES = 8, 16, 4
# Every client is drawn and comes back after a pause; the largest stands beside others.
COHORTS = ((3, 2, 0), (1, 4, 2), (0, 1, 3), (2, 0, 4))
EVERYONE = ((3, 2, 0, 1, 4), (1, 4, 2, 0, 3), (0, 1, 3, 4, 2), (2, 0, 4, 3, 1))


class World(NamedTuple):
    """A method among its clients, and what the laws compile and run only once."""

    name: str
    algorithm: Algorithm
    stage: Stage
    model: SparseModel  # what `init` receives
    layers: PyTree  # Python bools: the kernels
    population: placement.Population
    cohorts: np.ndarray  # [4, K] int32
    key: jax.Array
    thorough: bool
    shared: dict  # programs and results by name; 'traces': how often a round was traced


class Passing(NamedTuple):
    """One client's part of a round, with the messages that `simulate` does not keep."""

    down: packets.Message
    up: packets.Message
    summand: PyTree
    client: PyTree
    metrics: dict


def tiny_model() -> Model:
    """Two dense layers and a running mean of the hidden layer, as statistics."""
    shapes = {"fc1": (FEATURES, HIDDEN), "fc2": (HIDDEN, CLASSES)}

    def init(key):
        keys = jax.random.split(key, len(shapes))
        params = {
            name: {
                "kernel": jax.random.normal(k, shape) / jnp.sqrt(float(shape[0])),
                "bias": jnp.zeros(shape[-1:], jnp.float32),
            }
            for k, (name, shape) in zip(keys, shapes.items(), strict=True)
        }
        return params, {"mean": jnp.zeros((HIDDEN,), jnp.float32)}

    def dense(layer, x):
        return x @ layer["kernel"] + layer["bias"][None]

    def apply(params, stats, x, *, train, weight=None, key=None):
        del key
        hidden, mean = dense(params["fc1"], x), stats["mean"]
        if train:  # static branch
            valid = jnp.ones(x.shape[:1], bool) if weight is None else weight > 0
            total = jnp.sum(jnp.where(valid[:, None], hidden, 0.0), 0)
            mean = total / jnp.maximum(jnp.sum(valid, dtype=jnp.float32), 1.0)
            stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean}
        # Half the mean: a whole one would leave the bias without a gradient.
        hidden = jax.nn.tanh(hidden - 0.5 * mean[None])
        return dense(params["fc2"], hidden), stats

    macs = {n: {"kernel": s[0] * s[1], "bias": 0} for n, s in shapes.items()}
    return Model(init, apply, macs)


def make_world(factory: Callable, kwargs: dict, *, thorough: bool = False) -> World:
    """A method among five clients.

    Args:
      factory: `factory(model, optimizer, **kwargs) -> Algorithm`.
      kwargs: of the factory.
      thorough: all clients and two local epochs, not three clients and one; the laws
        then also try more chunks and cuts.
    """
    model = tiny_model()
    optimizer = local.make_optimizer(
        "sgd", momentum=0.9, schedule=lambda round: 0.1 * 0.9**round
    )
    algorithm = factory(model, optimizer, **kwargs)
    shared = {"traces": 0}

    def counted(*args):
        shared["traces"] += 1
        return algorithm.aggregate(*args)

    cohorts = np.array(EVERYONE if thorough else COHORTS, np.int32)
    watched = algorithm._replace(aggregate=counted)
    stage = Stage(watched, *cohorts.shape, epochs=2 if thorough else 1, batch_size=4)
    params, stats = model.init(jax.random.key(1))
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    mask = masks.bernoulli(jax.random.key(2), params, jnp.float32(0.5), layers)
    plain = (k for k, v in kwargs.items() if type(v) in (bool, int, float, str, tuple))
    arguments = "".join(f", {k}={kwargs[k]}" for k in plain)
    return World(
        getattr(factory, "__name__", str(factory)) + arguments,
        algorithm,
        stage,
        SparseModel(params, mask, stats),
        layers,
        _population(),
        cohorts,
        jax.random.key(3),
        thorough,
        shared,
    )


def _population() -> placement.Population:
    """Clients with clouds of their own; padding points to a row that nobody owns."""
    rng, total = np.random.default_rng(0), sum(SIZES)
    y = rng.integers(CLASSES, size=total + 1).astype(np.int32)
    x = rng.normal(size=(total + 1, FEATURES)) + 0.5 * y[:, None]
    index = np.full((len(SIZES), max(SIZES)), total, np.int32)
    for client, (size, end) in enumerate(zip(SIZES, np.cumsum(SIZES), strict=True)):
        index[client, :size] = np.arange(end - size, end)
    info = ClientInfo(
        np.arange(len(SIZES), dtype=np.int32),
        np.array(SIZES, np.int32),
        np.array(BUDGETS, np.float32),
    )
    return placement.Population(x.astype(np.float32), y, index, info)


def once(make: Callable) -> Callable:
    """Keeps what `make(world, *args)` returned in the world."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def kept(world, *args):
        bound = signature.bind(world, *args)
        bound.apply_defaults()
        name = (make.__name__, *bound.args[1:])
        if name not in world.shared:
            world.shared[name] = make(world, *args)
        return world.shared[name]

    return kept


def plan(world: World, chunk: int = 1, devices: int = 1) -> placement.Plan:
    """How the simulator runs this world on the first devices."""
    return placement.make_plan(
        world.stage, world.layers, jax.devices()[:devices], chunk
    )


@once
def segment(world: World, chunk: int, devices: int) -> Callable:
    """The simulator's program: `round_program.make_segment`."""
    return round_program.make_segment(plan(world, chunk, devices))


@once
def start(world: World) -> placement.State:
    """The state before round 0, as NumPy arrays."""
    state = initial_state.start(world.key, plan(world), world.model, world.population)
    return jax.device_get(state)


def run(
    world: World,
    state: placement.State,
    first: int,
    count: int = 1,
    *,
    chunk: int = 1,
    devices: int = 1,
    key=None,
    ids=None,
    population=None,
    length: int | None = None,
) -> tuple[placement.State, round_program.RoundLog]:
    """Rounds `first` to `first + count - 1` through the simulator; NumPy in and out.

    One program of `length` rounds, by default of all cohorts, serves every `count`.
    """
    here = plan(world, chunk, devices)
    ids = world.cohorts[first : first + count] if ids is None else ids
    state, log = segment(world, chunk, devices)(
        world.key if key is None else key,
        world.population if population is None else population,
        jax.device_put(state, placement.shardings(here, state)),
        *_scanned(world, first, ids, length),
        count=np.int32(count),
    )
    return jax.device_get((state, jax.tree.map(lambda v: v[:count], log)))


def _scanned(world: World, first: int, ids, length: int | None) -> tuple:
    """Rounds and their cohorts, with the last repeated up to `length`."""
    length = length or len(world.cohorts)
    at = np.minimum(np.arange(length), len(ids) - 1)
    return (first + at).astype(np.int32), ids[at]


def through(world: World, state, rounds) -> tuple[placement.State, int]:
    """These rounds with the state left on the device; also the traces so far."""
    state = jax.device_put(state, placement.shardings(plan(world), state))
    for round in rounds:
        ids = world.cohorts[round : round + 1]
        state, _ = segment(world, 1, 1)(
            world.key,
            world.population,
            state,
            *_scanned(world, round, ids, None),
            count=np.int32(1),
        )
    return jax.device_get(state), world.shared["traces"]


@once
def other_population(world: World) -> placement.Population:
    """The same clients with every sample negated and their labels in another order.

    Samples are shifted too, or their magnitudes would stay. A client keeps its set of
    labels, not how many samples it has of each.
    """
    population, y = world.population, world.population.y.copy()
    for rows, size in zip(population.index, SIZES, strict=True):
        held, place = np.unique(np.roll(y[rows[:size]], 1), return_inverse=True)
        y[rows[:size]] = np.roll(held, 1)[place]
    return population._replace(x=1 - population.x, y=y)


def data_of(world: World, other: bool) -> placement.Population:
    """The world's population, or the one with other samples."""
    return other_population(world) if other else world.population


@once
def path(world: World, other: bool = False) -> tuple[list, list]:
    """The states before rounds 0 to 4 and the logs of these rounds, one by one."""
    states, logs = [start(world)], []
    for round in range(len(world.cohorts)):
        population = data_of(world, other)
        state, log = run(world, states[-1], round, population=population)
        states.append(state)
        logs.append(jax.tree.map(lambda v: v[0], log))
    return states, logs


def client(world: World, key, round, server, row, last_round, info, data) -> Passing:
    """One client's part, as `algorithm.py` tells it."""
    algorithm = world.algorithm
    ctx = Context(round, last_round, info)
    own = keys.of_client(key, info.index)
    down_key, _, update_key = keys.of_exchange(own)
    down = algorithm.broadcast(down_key, ctx, server)
    up, row, metrics = algorithm.update(update_key, ctx, down, row, data)
    summand = algorithm.contribute(ctx, up)
    return Passing(packets.stable(down), packets.stable(up), summand, row, metrics)


@once
def client_by_wire(world: World) -> Callable:
    """`client` as three programs, between which messages alone pass.

    A value that one of them keeps for another is a tracer of its own program, and what
    is not sent is garbage where it would arrive.
    """
    algorithm = world.algorithm

    @jax.jit
    def broadcast(key, ctx, server):
        return packets.stable(algorithm.broadcast(key, ctx, server))

    @jax.jit
    def update(key, ctx, down, row, data):
        up, row, metrics = algorithm.update(key, ctx, down, row, data)
        return packets.stable(up), row, metrics

    contribute = jax.jit(algorithm.contribute)

    def run(key, round, server, row, last_round, info, data) -> Passing:
        ctx = Context(round, last_round, info)
        down_key, _, update_key = keys.of_exchange(keys.of_client(key, info.index))
        down = broadcast(down_key, ctx, server)
        up, row, metrics = update(update_key, ctx, delivered(down), row, data)
        return Passing(down, up, contribute(ctx, delivered(up)), row, metrics)

    return run


def delivered(message: packets.Message) -> packets.Message:
    """What arrives of a message, NumPy: of a packet not sent 9s, on another mask."""

    def one(packet):
        if packet.sent:
            return packet
        values = jax.tree.map(lambda v: np.full_like(v, 9), packet.values)
        mask = packet.mask
        if packet.fresh:
            mask = jax.tree.map(np.logical_not, mask)
        return dataclasses.replace(packet, values=values, mask=mask)

    return {name: one(packet) for name, packet in jax.device_get(message).items()}


@once
def batches_jit(world: World) -> Callable:
    """A client's batches of a round: `(key, population, info) -> Batches`."""
    stage = world.stage

    def make(key, population, info):
        _, key, _ = keys.of_exchange(keys.of_client(key, info.index))
        return batches(
            key,
            population.x,
            population.y,
            population.index[info.index],
            info.num_examples,
            epochs=stage.epochs,
            batch_size=stage.batch_size,
            num_steps=steps_per_epoch(info.num_examples, stage.batch_size),
        )

    return jax.jit(make)


def inputs(
    world: World,
    state: placement.State,
    round: int,
    index: int,
    other: bool = False,
) -> tuple:
    """The arguments of `client` for one client in a round."""
    info = jax.tree.map(lambda v: v[index], world.population.info)
    key = keys.of_round(world.key, keys.CLIENTS, round)
    shapes = jax.eval_shape(world.algorithm.init_client, key, state.server, info)
    row = store.unpack(jax.tree.map(lambda v: v[index], state.clients), shapes)
    data = batches_jit(world)(key, data_of(world, other), info)
    return key, np.int32(round), state.server, row, state.last_round[index], info, data


@once
def passings(world: World, round: int, other: bool = False) -> list[Passing]:
    """What passes between the server and the cohort in a round, by the plain loop."""
    state = path(world, other)[0][round]
    run_client = client_by_wire(world)
    return [
        jax.device_get(run_client(*inputs(world, state, round, index, other)))
        for index in world.cohorts[round].tolist()
    ]


def total(passings: list[Passing]) -> PyTree:
    """The sum that the server sees."""
    return jax.tree.map(lambda *v: sum(v), *(p.summand for p in passings))


def aggregate(world: World, key, round, server, total) -> tuple[PyTree, dict]:
    """The server's part of a round."""
    return world.algorithm.aggregate(key, round, server, total)


@once
def aggregate_jit(world: World) -> Callable:
    """`aggregate` of this world, compiled."""
    return jax.jit(functools.partial(aggregate, world))


def server_inputs(world: World, round: int) -> tuple:
    """The arguments of `aggregate` in a round."""
    key = keys.of_round(world.key, keys.SERVER, round)
    server = path(world)[0][round].server
    return key, np.int32(round), server, total(passings(world, round))


def loop_round(world: World, round: int) -> tuple[PyTree, dict, PyTree]:
    """A round as a plain loop: server, metrics of the server, clients' rows."""
    rows = path(world)[0][round].clients
    out = aggregate_jit(world)(*server_inputs(world, round))
    for index, passing in zip(
        world.cohorts[round], passings(world, round), strict=True
    ):
        row = jax.device_get(store.pack(passing.client))
        rows = jax.tree.map(
            lambda old, new, i=index: np.concatenate(
                [old[:i], new[None], old[i + 1 :]]
            ),
            rows,
            row,
        )
    return *jax.device_get(out), rows
