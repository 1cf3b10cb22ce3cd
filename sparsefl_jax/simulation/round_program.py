"""Rounds: sample, map over clients in chunks, sum, aggregate; scan per segment; stages.

The only place that vmaps, shards, scans and jits. It knows no method by name.

A cohort is ordered by size, dealt to the devices in snake order and cut into chunks;
each device runs each of its chunks for that chunk's own longest client. Summands are
carried as one partial sum per device, so memory is that of a chunk, not of a cohort.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Stage, target
from sparsefl_jax.core.types import Array, Context, PyTree
from sparsefl_jax.data.batching import batches, steps_per_epoch
from sparsefl_jax.simulation import observed_masks, placement, store
from sparsefl_jax.sparsity import masks
from sparsefl_jax.wire import packets


class RoundLog(NamedTuple):
    """The log of a round, in the order in which the cohort was drawn."""

    ids: Array  # [K] int32
    clients: PyTree  # metrics of `update`, [K]
    down: PyTree  # packets.Count per packet, [K, leaves]
    up: PyTree  # packets.Count per packet, [K, leaves]
    server: PyTree  # metrics of `aggregate`
    executed_steps: Array  # shape=(), int32: padded minibatches run, all devices
    density: Array  # shape=(), float32, of the deployed mask over its layers
    layer_density: Array  # [L] float32
    mismatch: Array  # shape=(), float32: 1 - Jaccard, against the round before
    layer_mismatch: Array  # [L] float32
    finite: Array  # shape=(), bool: the deployed model holds no NaN and no infinity
    masks: Array | tuple  # [K, bytes] uint8: kept of the uplinks, or ()


def strong(tree: PyTree) -> PyTree:
    """Removes weak types: a scan's carry must not change type, nor jit trace twice."""
    return jax.tree.map(
        lambda v: lax.convert_element_type(v, jnp.asarray(v).dtype), tree
    )


def make_client_fn(stage: Stage, layers: PyTree = None) -> Callable:
    """Returns one client's part of a round, from the server's state to its summand.

    With `layers` the log ends in the uplink's masks, packed.
    """
    algorithm = stage.algorithm

    def client_fn(key, round, num_steps, server, population, row, last_round, info):
        ctx = Context(round, last_round, info)
        down_key, data_key, update_key = keys.of_exchange(
            keys.of_client(key, info.index)
        )
        downlink = algorithm.broadcast(down_key, ctx, server)
        data = batches(
            data_key,
            population.x,
            population.y,
            population.index[info.index],
            info.num_examples,
            epochs=stage.epochs,
            batch_size=stage.batch_size,
            num_steps=num_steps,
            drop_last=stage.drop_last,
        )
        uplink, row, metrics = algorithm.update(update_key, ctx, downlink, row, data)
        summand = algorithm.contribute(ctx, uplink)
        kept = ()
        if layers is not None:
            kept = observed_masks.uplink_masks(
                uplink, _deployed(algorithm, server), layers
            )
        log = metrics, packets.count(downlink), packets.count(uplink), kept
        return strong(summand), strong(row), log

    return client_fn


def _deployed(algorithm, server) -> PyTree:
    """Returns the shapes of the parameters that a server deploys."""
    key = jax.random.key(0)
    models = jax.eval_shape(lambda: algorithm.deploy(key, server))
    return target(models).params


def make_chunk_fn(plan: placement.Plan) -> Callable:
    """Returns the program of one chunk of clients on every device at once.

    Returns:
      `chunk_fn(key, round, server, population, num_steps [D], rows, last_round, ids)`
      with rows, last_round and ids [D, chunk, ...]; it returns the sum of summands per
      device [D, ...], and rows and logs [D, chunk, ...].
    """
    stage, mesh, chunk, layers, observed = plan
    client_fn = make_client_fn(stage, layers if observed else None)

    def on_device(key, round, server, population, num_steps, rows, last_round, ids):
        num_clients = population.info.index.shape[0]
        someone = jax.tree.map(lambda v: v[0], population.info)
        like = jax.eval_shape(stage.algorithm.init_client, key, server, someone)

        def one(row, last_round, index):
            info = jax.tree.map(lambda v: v[index], population.info)
            row = store.unpack(row, like)
            summand, row, log = client_fn(
                key, round, num_steps[0], server, population, row, last_round, info
            )
            return summand, store.pack(row), log

        ids = ids[0]
        index = jnp.minimum(ids, num_clients - 1)
        inputs = jax.tree.map(lambda v: v[0], (rows, last_round)) + (index,)
        if chunk == 1:  # a batch axis of 1 would turn convolutions into grouped ones
            out = one(*jax.tree.map(lambda v: v[0], inputs))
            summand, rows, log = jax.tree.map(lambda v: v[None], out)
        else:
            summand, rows, log = jax.vmap(one)(*inputs)

        def add(leaf):
            real = (ids < num_clients).reshape((-1,) + (1,) * (leaf.ndim - 1))
            return jnp.sum(jnp.where(real, leaf, 0), 0)

        out = jax.tree.map(add, summand), rows, log
        return jax.tree.map(lambda v: v[None], out)

    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(P(), P(), P(), P(), *(P("clients"),) * 4),
        out_specs=P("clients"),
        check_vma=False,
    )


def make_round(plan: placement.Plan) -> Callable:
    """Returns one round as a pure function.

    Returns:
      `round_fn(key, population, state, round, ids [K], places) -> (state, RoundLog)`,
      with `key` the stage's root key. Where `state.clients` are not the rows of all
      clients, `places` [K] int32 are those of the cohort in it.
    """
    stage, mesh, chunk, layers, _ = plan
    algorithm, chunk_fn = stage.algorithm, make_chunk_fn(plan)

    def map_cohort(key, population, state, round, *dealt):
        """Maps over the groups [G, D, chunk] of a cohort; rows change in place."""

        def call(clients, num_steps, ids, places):
            rows = jax.tree.map(
                lambda v: jnp.take(v, places, axis=0, mode="clip"), clients
            )
            last_round = jnp.take(state.last_round, ids, axis=0, mode="clip")
            return chunk_fn(
                key, round, state.server, population, num_steps, rows, last_round, ids
            )

        def group(carry, inputs):
            (clients, total), (*_, places) = carry, inputs
            summand, rows, log = call(clients, *inputs)
            clients = jax.tree.map(
                lambda old, new: old.at[places].set(new, mode="drop"), clients, rows
            )
            return (clients, jax.tree.map(jnp.add, total, summand)), log

        like, _, _ = jax.eval_shape(call, state.clients, *(v[0] for v in dealt))
        zeros = jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), like)
        zeros = lax.with_sharding_constraint(zeros, NamedSharding(mesh, P("clients")))
        (clients, total), log = lax.scan(group, (state.clients, zeros), dealt)
        return clients, jax.tree.map(lambda v: jnp.sum(v, 0), total), log

    def describe(key, old, new):
        """Density of the deployed mask, how far it moved, and whether all is finite."""
        before, after = (target(algorithm.deploy(key, server)) for server in (old, new))
        kept = jax.tree.leaves((masks.apply(after.params, after.mask), after.stats))
        mask = after.mask
        return (
            masks.density(mask, layers),
            masks.layer_densities(mask, layers),
            *masks.jaccard_mismatch(before.mask, mask, layers),
            jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in kept])),
        )

    def round_fn(key, population, state, round, ids, places=None):
        client_key = keys.of_round(key, keys.CLIENTS, round)
        server_key = keys.of_round(key, keys.SERVER, round)
        sizes = population.info.num_examples
        order, place = placement.deal(ids, sizes[ids], mesh.size, chunk)
        dealt, places = (  # [G, D, chunk], N for a dummy
            jnp.append(v, sizes.shape[0])[order]
            for v in (ids, ids if places is None else places)
        )
        sizes = jnp.take(sizes, dealt, mode="fill", fill_value=0)
        steps = steps_per_epoch(sizes, stage.batch_size, stage.drop_last)
        steps = jnp.max(steps, -1).astype(jnp.int32)  # [G, D]
        clients, total, log = map_cohort(
            client_key, population, state, round, steps, dealt, places
        )
        server, server_metrics = algorithm.aggregate(
            server_key, round, state.server, total
        )
        server = strong(server)
        *in_order, observed = jax.tree.map(
            lambda v: v.reshape(order.size, *v.shape[3:])[place], log
        )
        executed = jnp.sum(steps, dtype=jnp.int32) * (chunk * stage.epochs)
        told = RoundLog(
            ids,
            *in_order,
            server_metrics,
            executed,
            *describe(server_key, state.server, server),
            observed,
        )
        return placement.State(
            server, clients, state.last_round.at[ids].set(round)
        ), told

    return round_fn


def make_segment(plan: placement.Plan) -> Callable:
    """Returns a jitted scan over rounds; the state is donated.

    Returns:
      `segment(key, population, state, rounds [R], ids [R, K], places, count) ->
      (state, log)`, a `RoundLog` stacked [R], but of `masks` the last round's; `places`
      [R, K] as `make_round` has it. Only the first `count` rounds run, from 1 to R, all
      if it is None; the log holds zeros for the others.
    """
    round_fn = make_round(plan)

    def segment(key, population, state, rounds, ids, places=None, count=None):
        @jax.jit  # is traced only once
        def run(carry, inputs):
            state, log = round_fn(key, population, carry[0], *inputs)
            return (state, log.masks), log._replace(masks=())

        def leave_out(carry, inputs):
            _, log = jax.eval_shape(run, carry, inputs)
            return carry, jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), log)

        def body(carry, inputs):
            runs, *inputs = inputs
            return lax.cond(runs, run, leave_out, carry, inputs)

        kept = ()
        if plan.observed:
            shapes = _deployed(plan.stage.algorithm, state.server)
            size = observed_masks.num_bytes(shapes, plan.layers)
            kept = jnp.zeros((plan.stage.cohort_size, size), jnp.uint8)
        length = rounds.shape[0]
        runs = jnp.arange(length) < (length if count is None else count)
        (state, kept), log = lax.scan(body, (state, kept), (runs, rounds, ids, places))
        state = lax.with_sharding_constraint(state, placement.shardings(plan, state))
        return state, log._replace(masks=kept)

    return jax.jit(segment, donate_argnums=2)
