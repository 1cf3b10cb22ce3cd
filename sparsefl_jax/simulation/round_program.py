"""The program of a round, which maps over clients in chunks, and the loop of rounds.

Training is vmapped, sharded and scanned here, for every method alike; `runs.programs`
compiles it.
`placement` says which device runs which clients. The scan carries one partial sum of
summands per device, so memory is that of a chunk, not of a cohort.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import target
from sparsefl_jax.core.types import Array, Context, PyTree, ServerContext
from sparsefl_jax.data.batching import batches, steps_per_pass
from sparsefl_jax.models.convolution import lowering
from sparsefl_jax.models.forms import fast
from sparsefl_jax.simulation import clock, exchange, placement
from sparsefl_jax.simulation.rows import pack, unpack
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.wire import ledger, packets
from sparsefl_jax.wire.packets import pack_once


class PerClient(NamedTuple):
    """What is logged of each client, in the order in which the cohort was drawn.

    In a place without a client the id is N, and the other entries are undefined.
    """

    ids: Array  # [K] int32
    metrics: PyTree  # of `update`, [K]
    down: PyTree  # packets.Count per packet, [K, leaves]
    up: PyTree  # packets.Count per packet, [K, leaves]
    time: clock.Time | tuple  # [K], or () without a clock


class RoundLog(NamedTuple):
    """The log of a round."""

    clients: PerClient
    server: PyTree  # metrics of `aggregate`
    executed_steps: Array  # shape=(), int32: padded minibatches run on all devices
    density: Array  # shape=(), float32, of the deployed mask over its layers
    layer_density: Array  # [L] float32
    mismatch: Array  # shape=(), float32: 1 - Jaccard index with the previous round
    layer_mismatch: Array  # [L] float32
    finite: Array  # shape=(), bool: the deployed model holds no NaN and no infinity


def without_empty_places(log: RoundLog, num_clients: int) -> RoundLog:
    """Returns the log of one round without the places that hold no client, NumPy."""
    there = log.clients.ids < num_clients
    return log._replace(clients=trees.rows(log.clients, there))


def pack_log(log: PyTree) -> Array:
    """Returns a log as one array, uint8 [bytes]: it leaves the device in one piece."""
    leaves = [jnp.uint8(v) if v.dtype == bool else v for v in jax.tree.leaves(log)]
    parts = [lax.bitcast_convert_type(v, jnp.uint8).reshape(-1) for v in leaves]
    return jnp.concatenate(parts)


def unpack_log(packed: np.ndarray, like: PyTree) -> PyTree:
    """Undoes `pack_log` on the host; `like` gives the shapes and dtypes.

    Example:
      >>> log = {"loss": jnp.float32([1.5, 2.0]), "seen": jnp.array([True])}
      >>> unpack_log(np.asarray(pack_log(log)), log)
      {'loss': array([1.5, 2. ], dtype=float32), 'seen': array([ True])}
    """
    leaves, treedef = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size * leaf.dtype.itemsize for leaf in leaves])
    parts = zip(np.split(packed, ends[:-1]), leaves, strict=True)
    shaped = [part.view(leaf.dtype).reshape(leaf.shape) for part, leaf in parts]
    return jax.tree.unflatten(treedef, shaped)


def strong(tree: PyTree) -> PyTree:
    """Removes weak types, which would change a scan's carry or make jit trace twice."""
    return jax.tree.map(
        lambda v: lax.convert_element_type(v, jnp.asarray(v).dtype), tree
    )


def make_client_fn(plan: placement.Plan) -> Callable:
    """Returns one client's part of a round, from the server's state to its summand.

    Returns:
      `client_fn(key, round, rate, num_steps, server, population, row, last_round, info)
      -> (summand, row, log)`. The log is `(metrics, down, up, time)`, as in
      `PerClient`. Of a late client the summand is 0.
    """
    stage, macs, frozen = plan.stage, plan.macs, plan.frozen
    algorithm = stage.algorithm

    @partial(fast, lowering=lowering(plan.mesh.devices.flat[0].platform, plan.chunk))
    def client_fn(
        key, round, rate, num_steps, server, population, row, last_round, info
    ):
        update = algorithm.at_rate(round, rate).update
        ctx = Context(round, last_round, info)
        client_key = keys.of_client(key, info.index)
        down_key, data_key, update_key = keys.of_exchange(client_key)
        downlink = algorithm.broadcast(down_key, ctx, server)
        received = pack_once(algorithm.send_once(server), last_round, frozen) | downlink
        rows = population.index[info.index]
        own = population.x, population.y, rows, info.num_examples
        steps = num_steps if plan.steps is None else plan.steps
        data = batches(data_key, *own, stage=stage, num_steps=steps)
        before = row
        uplink, row, metrics = update(update_key, ctx, downlink, row, data)
        ledger.check_metrics(metrics)
        metrics = ledger.with_frozen(metrics, frozen)
        summand, time = algorithm.contribute(ctx, uplink), ()
        if population.clock is not None:  # static branch
            time = clock.measure(
                population.clock, info.index, macs, metrics["work"], received, uplink
            )
            late = partial(jnp.where, time.late)  # the other value may hold NaN
            nothing = jax.tree.map(jnp.zeros_like, summand)
            summand = jax.tree.map(late, nothing, summand)
            row = jax.tree.map(late, algorithm.drop_uplink(ctx, before, row), row)
        counts = packets.count(received), packets.count(uplink)
        log = metrics, *counts, time
        return strong(summand), strong(row), log

    return client_fn


def make_chunk_fn(plan: placement.Plan) -> Callable:
    """Returns the program that runs one chunk of clients on each device.

    Returns:
      `chunk_fn(key, round, rate, server, population, way, clients, num_steps [D],
      last_round, ids)`, with last_round and ids [D, chunk], and `way` from
      `exchange.routes`. It returns the sum of summands per device [D, ...], logs
      [D, chunk, ...], and all rows.
    """
    mesh, chunk = plan.mesh, plan.chunk
    client_fn = make_client_fn(plan)

    def on_one_device(
        key, round, rate, server, population, way, clients, num_steps, last_round, ids
    ):
        num_clients = population.info.index.shape[0]
        one_info = trees.rows(population.info, 0)
        like = jax.eval_shape(plan.stage.algorithm.first_state, key, server, one_info)

        def run_client(row, last_round, index):
            info = trees.rows(population.info, index)
            row = unpack(row, like)
            given = key, round, rate, num_steps[0], server, population
            summand, row, log = client_fn(*given, row, last_round, info)
            return summand, pack(row), log

        ids, last_round = ids[0], last_round[0]
        index = jnp.minimum(ids, num_clients - 1)
        inputs = exchange.read(clients, way), last_round, index
        if chunk == 1:  # a batch axis of 1 would turn convolutions into grouped ones
            out = run_client(*trees.rows(inputs, 0))
            summand, rows, log = jax.tree.map(lambda v: v[None], out)
        else:
            summand, rows, log = jax.vmap(run_client)(*inputs)

        def add(leaf):
            real = (ids < num_clients).reshape((-1,) + (1,) * (leaf.ndim - 1))
            return jnp.sum(jnp.where(real, leaf, 0), 0)

        out = jax.tree.map(add, summand), log
        out = jax.tree.map(lambda v: v[None], out)
        return *out, exchange.write(clients, rows, way)

    def chunk_fn(key, round, rate, server, population, way, clients, *dealt):
        rows, divided = exchange.spec(clients, mesh.size), P("clients")
        in_specs = *(P(),) * 6, rows, *(divided,) * 3
        out_specs = divided, divided, rows
        mapped = exchange.per_device(on_one_device, mesh, in_specs, out_specs)
        return mapped(key, round, rate, server, population, way, clients, *dealt)

    return chunk_fn


def make_round(plan: placement.Plan) -> Callable:
    """Returns one round as a pure function.

    Returns:
      `round_fn(key, population, state, round, ids [K], places, rate) ->
      (state, RoundLog)`. `key` is the stage's root key. An id of N is a place without a
      client. If `state.clients` is a working set, `places` [K] int32 are the places of
      the cohort's rows in it, N for a place without a client. `rate` is the clients'
      learning rate; None for that of the method.
    """
    stage, mesh, chunk, layers = plan.stage, plan.mesh, plan.chunk, plan.layers
    algorithm, chunk_fn = stage.algorithm, make_chunk_fn(plan)

    def map_cohort(key, population, state, round, rate, *dealt):
        """Maps over the groups [G, D, chunk] of a cohort; rows change in place."""

        def call(clients, num_steps, ids, places):
            way = exchange.routes(places, clients)
            last_round = jnp.take(state.last_round, ids, axis=0, mode="clip")
            given = key, round, rate, state.server, population, way, clients
            return chunk_fn(*given, num_steps, last_round, ids)

        def group(carry, inputs):
            clients, total = carry
            summand, log, clients = call(clients, *inputs)
            return (clients, jax.tree.map(jnp.add, total, summand)), log

        like, *_ = jax.eval_shape(call, state.clients, *(v[0] for v in dealt))
        zeros = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), like)
        zeros = lax.with_sharding_constraint(zeros, NamedSharding(mesh, P("clients")))
        (clients, total), log = lax.scan(group, (state.clients, zeros), dealt)
        return clients, jax.tree.map(lambda v: jnp.sum(v, 0), total), log

    def describe(key, old, new):
        """Returns the deployed mask's density and mismatch, and if all is finite.

        Both servers deploy with one key: the mismatch is not that of two draws.
        """
        before, after = (target(algorithm.deploy(key, server)) for server in (old, new))
        leaves = jax.tree.leaves((masks.apply(after.params, after.mask), after.stats))
        mask = after.mask
        mismatch, layer_mismatch = masks.jaccard_mismatch(before.mask, mask, layers)
        return {
            "density": masks.density(mask, layers),
            "layer_density": masks.layer_densities(mask, layers),
            "mismatch": mismatch,
            "layer_mismatch": layer_mismatch,
            "finite": jnp.all(jnp.array([jnp.all(jnp.isfinite(v)) for v in leaves])),
        }

    def round_fn(key, population, state, round, ids, places=None, rate=None):
        client_key = keys.of_round(key, keys.CLIENTS, round)
        server_key = keys.of_round(key, keys.SERVER, round)
        deploy_key = keys.of_round(key, keys.DEPLOY, round + 1)
        sizes = population.info.num_examples
        own = jnp.take(sizes, ids, mode="fill", fill_value=0)
        order, place = placement.deal(ids, own, mesh.size, chunk)
        dealt, places = (  # [G, D, chunk], N for an empty slot
            jnp.append(v, sizes.shape[0])[order]
            for v in (ids, ids if places is None else places)
        )
        sizes = jnp.take(sizes, dealt, mode="fill", fill_value=0)
        steps = steps_per_pass(stage, sizes)
        steps = jnp.max(steps, -1).astype(jnp.int32)  # [G, D]
        clients, total, log = map_cohort(
            client_key, population, state, round, rate, steps, dealt, places
        )
        metrics, down, up, time = jax.tree.map(
            lambda v: v.reshape(order.size, *v.shape[3:])[place], log
        )
        heard = jnp.int32(ids.size)
        if population.clock is not None:  # static branch: nobody may be in time
            there = ids < population.info.index.shape[0]
            heard = jnp.sum(there & ~time.late, dtype=jnp.int32)
        ctx = ServerContext(round, heard)
        server, of_server = algorithm.aggregate(server_key, ctx, state.server, total)
        server = strong(server)
        executed = jnp.sum(steps, dtype=jnp.int32) * (chunk * stage.epochs)
        round_log = RoundLog(
            clients=PerClient(ids, metrics, down, up, time),
            server=of_server,
            executed_steps=executed,
            **describe(deploy_key, state.server, server),
        )
        last_round = state.last_round.at[ids].set(round, mode="drop")
        return placement.State(server, clients, last_round), round_log

    return round_fn


def make_segment(plan: placement.Plan) -> Callable:
    """Returns a loop over rounds as a pure function, to be jitted with donation.

    It can be mapped over seeds, see `docs/how_to/seeds.md`.

    Args:
      plan: the devices and the chunk of the stage.

    Returns:
      `segment(key, population, state, rounds [R], ids [R, K], places, count, rates) ->
      (state, log)`. The log is a `RoundLog` stacked [R]. `places` [R, K] are as in
      `make_round`. Only the first `count` rounds run, from 1 to R, or all if it is
      None; the log of the others is zeros. `rates` [R] float32 are the clients'
      learning rates, so that runs that differ in them share a program; with None they
      are those of the method and part of the program.
    """
    round_fn = make_round(plan)

    def segment(
        key, population, state, rounds, ids, places=None, count=None, rates=None
    ):
        length = rounds.shape[0]

        @jax.jit  # so that it is traced only once
        def run(state, i):
            inputs = trees.rows((rounds, ids, places, rates), i)
            return round_fn(key, population, state, *inputs)

        def body(i, carry):
            state, logs = carry
            state, log = run(state, i)
            return state, jax.tree.map(lambda v, new: v.at[i].set(new), logs, log)

        _, log = jax.eval_shape(run, state, 0)
        logs = jax.tree.map(lambda v: jnp.zeros((length, *v.shape), v.dtype), log)
        most = length if count is None or length == 1 else count
        state, logs = lax.fori_loop(0, most, body, (state, logs))
        state = lax.with_sharding_constraint(state, placement.shardings(plan, state))
        return state, logs

    return segment
