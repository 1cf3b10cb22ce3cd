"""The reference of the laws: a round as a plain loop over clients.

The loop shares nothing with the simulator but the names of its keys. Only messages pass
between server and clients, as the bytes that are charged, and `passings` keeps them.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core import keys
from sparsefl_jax.core.types import Context, PyTree, ServerContext
from sparsefl_jax.data.batching import batches, steps_per_pass
from sparsefl_jax.simulation import placement
from sparsefl_jax.simulation.rows import pack, unpack
from sparsefl_jax.testing.compare import fail, rows
from sparsefl_jax.testing.small_world import World, jit, once, path, population_of
from sparsefl_jax.wire.packets import Message, Packet, pack_once, settle_flags
from sparsefl_jax.wire.positions import POSITIONS
from sparsefl_jax.wire.streams import decode, encode


class Passing(NamedTuple):
    """One client's part of a round, with the messages as their senders wrote them."""

    down: Message
    up: Message
    summand: PyTree
    client: PyTree
    metrics: dict


@once
def client_by_wire(world: World, jit: Callable = jit) -> Callable:
    """Compiles one client's part of a round by `jit`, `run(*inputs) -> Passing`.

    It is three programs, between which only messages pass by `deliver_message`. A
    value that one program keeps for another is a tracer that no other program takes.
    """
    algorithm = world.algorithm

    @jit
    def broadcast(key, ctx, server):
        received = pack_once(algorithm.send_once(server), ctx.last_round)
        return settle_flags(received | algorithm.broadcast(key, ctx, server))

    @jit
    def update(key, ctx, down, row, data):
        up, row, metrics = algorithm.update(key, ctx, down, row, data)
        return settle_flags(up), row, metrics

    contribute = jit(algorithm.contribute)

    def run(
        key, round, server, row, held, last_round, info, data, decoded=True
    ) -> Passing:
        ctx = Context(round, last_round, info)
        down_key, _, update_key = keys.of_exchange(keys.of_client(key, info.index))

        def deliver(way, message, held):
            if not decoded:
                return message
            where = f"of client {info.index} in round {round}"
            return deliver_message(world, message, held, way, where)

        down = broadcast(down_key, ctx, server)
        own = {n: p for n, p in down.items() if not n.startswith("handed/")}
        received = deliver("down", own, held)
        up, row, metrics = update(update_key, ctx, received, row, data)
        known = {name: p.mask for name, p in received.items() if p.sent}
        total = contribute(ctx, deliver("up", up, known))
        return Passing(down, up, total, row, metrics)

    return run


def deliver_message(
    world: World, message: Message, held: dict[str, PyTree], way: str, where: str
) -> Message:
    """Returns what arrives of a message: what its bytes decode to, and nothing else.

    Of a packet whose mask the receiver has to hold and does not, 9s arrive, and also of
    one that is not sent unless it is all zeros, as a sender may write for nothing; a
    mask that is neither held nor sent is a random one.

    Args:
      held: the masks that the receiver holds, by the name of the packet.
      way, where: 'down' or 'up', and words for the client and the round.
    """
    shapes = partial(jax.tree.map, np.shape)

    def arrive(name: str, packet: Packet) -> Packet:
        try:
            data = encode(packet)
        except ValueError as error:
            fail(world, "wire", f"{way}[{name!r}] {where}: {error}")
        values, mask, readable = packet.values, packet.mask, bool(packet.sent)
        if packet.index in POSITIONS or not packet.sent:  # the mask is not known
            own = held.get(name)
            if packet.fresh or shapes(own) != shapes(mask):
                rng = np.random.default_rng(0)
                own = jax.tree.map(lambda m: rng.random(m.shape) < 0.5, mask)
            alike = jax.tree.map(np.array_equal, own, mask)
            readable &= bool(packet.fresh) or jax.tree.all(alike)
            mask = own
        if packet.bits or not readable:
            told = packet.sent or any(v.any() for v in jax.tree.leaves(values))
            fill = 9 if told and not readable else 0
            values = jax.tree.map(lambda v: np.full_like(v, fill), values)
        fresh = packet.fresh | (mask is None)
        like = dataclasses.replace(packet, values=values, mask=mask, fresh=fresh)
        return decode(data, like) if readable else like

    message = jax.device_get(message)
    return jax.device_put({name: arrive(name, p) for name, p in message.items()})


@once
def batches_jit(world: World) -> Callable:
    """Compiles a client's batches of a round, `(key, population, info) -> Batches`."""
    stage = world.stage

    def make(key, population, info):
        _, key, _ = keys.of_exchange(keys.of_client(key, info.index))
        x, y, index, *_ = population
        own = x, y, index[info.index], info.num_examples
        steps = steps_per_pass(stage, info.num_examples)
        return batches(key, *own, stage=stage, num_steps=steps)

    return jit(make)


def inputs(
    world: World,
    state: placement.State,
    round: int,
    index: int,
    samples: str = "own",
) -> tuple:
    """Returns the arguments of `client_by_wire` for one client in a round."""
    info = rows(world.population.info, index)
    key = keys.of_round(world.key, keys.CLIENTS, round)
    shapes = jax.eval_shape(world.algorithm.first_state, key, state.server, info)
    row = unpack(rows(state.clients, index), shapes)
    data = batches_jit(world)(key, population_of(world, samples), info)
    masks, last_round = held(world, round, index, samples), state.last_round[index]
    return key, np.int32(round), state.server, row, masks, last_round, info, data


def held(world: World, round: int, index: int, samples: str) -> dict[str, PyTree]:
    """Returns the masks that a client received last before a round, by packet."""
    masks = {}
    for cohort, earlier in zip(world.cohorts.tolist(), range(round), strict=False):
        if index in cohort:
            down = passings(world, earlier, samples)[cohort.index(index)].down
            masks |= {n: p.mask for n, p in down.items() if p.sent and p.fresh}
    return masks


@once
def passings(world: World, round: int, samples: str = "own") -> list[Passing]:
    """Returns what passes between the server and the cohort in a round."""
    return _pass(world, path(world, samples)[0][round], round, samples)


def _pass(world: World, state, round: int, samples: str, decoded=True) -> list[Passing]:
    """Runs the cohort of a round, one client after another."""
    run_client, ids = client_by_wire(world), world.cohorts[round].tolist()
    calls = [inputs(world, state, round, index, samples) for index in ids]
    return [jax.device_get(run_client(*call, decoded=decoded)) for call in calls]


def packets(world: World) -> Iterator[tuple[int, tuple[str, str], Packet]]:
    """Yields all packets: round, way ('down' or 'up') and name, and packet."""
    for round in range(len(world.cohorts)):
        for passing in passings(world, round):
            for way in ("down", "up"):
                for name, packet in getattr(passing, way).items():
                    yield round, (way, name), packet


@once
def answers(world: World, round: int, samples: str) -> list[Passing]:
    """Returns what clients with other samples make of the downlinks of a round."""
    own, other = (path(world, s)[0][round] for s in ("own", samples))
    state = other._replace(server=own.server)
    return _pass(world, state, round, samples, decoded=False)


@once
def aggregate_jit(world: World) -> Callable:
    """Compiles `aggregate` of this world."""
    return jit(world.algorithm.aggregate)


def server_inputs(world: World, round: int) -> tuple:
    """Returns the arguments of `aggregate` in a round."""
    key = keys.of_round(world.key, keys.SERVER, round)
    passed, server = passings(world, round), path(world)[0][round].server
    ctx = ServerContext(np.int32(round), np.int32(len(passed)))
    summands = (passing.summand for passing in passed)
    return key, ctx, server, jax.tree.map(lambda *v: sum(v), *summands)


def loop_round(world: World, round: int) -> tuple[PyTree, dict, PyTree]:
    """Computes a round: the server, the server's metrics, all clients' rows."""
    ids, passed = world.cohorts[round], passings(world, round)
    out = aggregate_jit(world)(*server_inputs(world, round))

    def put(rows, *new):
        return jnp.asarray(rows).at[ids].set(jnp.stack(new))

    new = (pack(passing.client) for passing in passed)
    rows = jax.tree.map(put, path(world)[0][round].clients, *new)
    return jax.device_get((*out, rows))
