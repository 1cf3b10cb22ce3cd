"""The reference of the laws: a round as a plain loop over clients.

The loop shares nothing with the simulator but the names of its keys. Only messages pass
between server and clients, and `passings` keeps them; garbage arrives for a packet that
is not sent.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core import keys
from sparsefl_jax.core.types import Context, PyTree
from sparsefl_jax.data.batching import batches, steps_per_epoch
from sparsefl_jax.simulation import placement, store
from sparsefl_jax.testing.small_world import World, once, path, population_of
from sparsefl_jax.wire.messages import once as handed_once
from sparsefl_jax.wire.packets import Message, Packet, stable


class Passing(NamedTuple):
    """One client's part of a round, with the messages, which the simulator drops."""

    down: Message
    up: Message
    summand: PyTree
    client: PyTree
    metrics: dict

    def packets(self) -> dict[tuple[str, str], Packet]:
        """Returns all packets by their way, 'down' or 'up', and their name."""
        ways = {"down": self.down, "up": self.up}
        return {(way, name): ways[way][name] for way in ways for name in ways[way]}


@once
def client_by_wire(world: World) -> Callable:
    """Compiles one client's part of a round, `run(*inputs) -> Passing`.

    It is three programs, between which only messages pass. A value that one program
    keeps for another is a tracer that no other program takes, and garbage arrives for a
    packet that is not sent.
    """
    return by_wire(world, jax.jit)


def by_wire(world: World, jit: Callable) -> Callable:
    """Returns one client's part of a round, each of its programs as `jit` makes it."""
    algorithm = world.algorithm

    @jit
    def broadcast(key, ctx, server):
        handed = handed_once(algorithm.handed(server), ctx.last_round)
        return stable(handed | algorithm.broadcast(key, ctx, server))

    @jit
    def update(key, ctx, down, row, data):
        up, row, metrics = algorithm.update(key, ctx, down, row, data)
        return stable(up), row, metrics

    contribute = jit(algorithm.contribute)

    def run(key, round, server, row, last_round, info, data) -> Passing:
        ctx = Context(round, last_round, info)
        down_key, _, update_key = keys.of_exchange(keys.of_client(key, info.index))
        down = broadcast(down_key, ctx, server)
        received = {n: p for n, p in delivered(down).items() if n[:7] != "handed/"}
        up, row, metrics = update(update_key, ctx, received, row, data)
        return Passing(down, up, contribute(ctx, delivered(up)), row, metrics)

    return run


def delivered(message: Message) -> Message:
    """Returns what arrives of a message: 9s on another mask for a packet not sent."""

    def arrive(packet: Packet) -> Packet:
        if packet.sent:
            return packet
        values = jax.tree.map(lambda v: np.full_like(v, 9), packet.values)
        mask = packet.mask
        if packet.fresh:
            mask = jax.tree.map(np.logical_not, mask)
        return dataclasses.replace(packet, values=values, mask=mask)

    message = jax.device_get(message)
    return jax.device_put({name: arrive(packet) for name, packet in message.items()})


@once
def batches_jit(world: World) -> Callable:
    """Compiles a client's batches of a round, `(key, population, info) -> Batches`."""
    stage = world.stage

    def make(key, population, info):
        _, key, _ = keys.of_exchange(keys.of_client(key, info.index))
        x, y, index, *_ = population
        size, count = stage.batch_size, info.num_examples
        return batches(
            key,
            x,
            y,
            index[info.index],
            count,
            batch_size=size,
            epochs=stage.epochs,
            num_steps=steps_per_epoch(count, size),
        )

    return jax.jit(make)


def inputs(
    world: World,
    state: placement.State,
    round: int,
    index: int,
    other: bool = False,
) -> tuple:
    """Returns the arguments of `client_by_wire` for one client in a round."""
    info = jax.tree.map(lambda v: v[index], world.population.info)
    key = keys.of_round(world.key, keys.CLIENTS, round)
    shapes = jax.eval_shape(world.algorithm.first_state, key, state.server, info)
    row = store.unpack(jax.tree.map(lambda v: v[index], state.clients), shapes)
    data = batches_jit(world)(key, population_of(world, other), info)
    return key, np.int32(round), state.server, row, state.last_round[index], info, data


@once
def passings(world: World, round: int, other: bool = False) -> list[Passing]:
    """Returns what passes between the server and the cohort in a round."""
    state = path(world, other)[0][round]
    run_client = client_by_wire(world)
    return [
        jax.device_get(run_client(*inputs(world, state, round, index, other)))
        for index in world.cohorts[round].tolist()
    ]


def total(passings: list[Passing]) -> PyTree:
    """Returns the sum that the server sees."""
    return jax.tree.map(lambda *v: sum(v), *(p.summand for p in passings))


@once
def aggregate_jit(world: World) -> Callable:
    """Compiles `aggregate` of this world."""
    return jax.jit(world.algorithm.aggregate)


def server_inputs(world: World, round: int) -> tuple:
    """Returns the arguments of `aggregate` in a round."""
    key = keys.of_round(world.key, keys.SERVER, round)
    server = path(world)[0][round].server
    return key, np.int32(round), server, total(passings(world, round))


def loop_round(world: World, round: int) -> tuple[PyTree, dict, PyTree]:
    """Computes a round: the server, the server's metrics, all clients' rows."""
    rows, ids = path(world)[0][round].clients, world.cohorts[round]
    out = aggregate_jit(world)(*server_inputs(world, round))
    for index, passing in zip(ids, passings(world, round), strict=True):
        row = store.pack(passing.client)
        rows = jax.tree.map(
            lambda v, r, i=index: jnp.asarray(v).at[i].set(r), rows, row
        )
    return *jax.device_get(out), rows
