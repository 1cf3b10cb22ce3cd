"""The laws of a round: how it is cut, ordered, padded or stored changes no result."""

import itertools
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core import keys
from sparsefl_jax.core.types import Batches, PyTree
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.runs.checkpoint import Snapshot
from sparsefl_jax.simulation import round_program
from sparsefl_jax.simulation.rows import pack
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.testing.compare import fail, finite, leaves, rows, same
from sparsefl_jax.testing.small_world import World


def law_types(world: World) -> None:
    """Checks that a round keeps structure, shapes and types."""
    state = small_world.start(world)
    round_fn = round_program.make_round(small_world.plan(world))
    before = jax.eval_shape(lambda s: s, state)
    try:
        after, _ = jax.eval_shape(
            round_fn, world.key, world.population, state, np.int32(0), world.cohorts[0]
        )
    except (TypeError, ValueError, AttributeError) as error:
        fail(world, "types", str(error).splitlines()[0])
    if jax.tree.structure(after) != jax.tree.structure(before):
        fail(world, "types", f"after a round the state is {jax.tree.structure(after)}")
    for (path, a), b in zip(leaves(after), jax.tree.leaves(before), strict=True):
        if (a.shape, a.dtype, a.weak_type) != (b.shape, b.dtype, b.weak_type):
            fail(world, "types", f"state{path} is {b}, after a round {a}")


def law_start(world: World) -> None:
    """Checks that `init` and `init_client` depend on nothing but their arguments.

    A client's first state follows from the handed message as it arrives, and the server
    hands the same in every round.
    """
    init_key, client_key = keys.of_start(world.key)
    method, jit = world.algorithm, small_world.jit
    server = jit(method.init)(init_key, world.model)
    init_client, send_once = jit(method.init_client), jit(method.send_once)
    same(world, "start", "server", server, small_world.start(world).server)
    message = plain_loop.deliver_message(
        world, send_once(server), {}, "handed", "to all"
    )
    for index in world.population.info.index.tolist():
        info = rows(world.population.info, index)
        key = keys.of_client(client_key, index)
        row = pack(init_client(key, message, info))
        want = rows(small_world.start(world).clients, index)
        same(world, "start", f"client {index}", row, want)
    for round, state in enumerate(small_world.path(world)[0]):
        what, now = f"handed before round {round}: ", send_once(state.server)
        same(world, "start", what, now, message, tolerance=0.0)


def law_chunks(world: World) -> None:
    """Checks that chunks of any size, on one device or two, compute the same."""
    states, _ = small_world.path(world)
    for round in range(len(world.cohorts)):
        got = small_world.run(world, states[round], round, split=True)
        _same_rounds(world, "chunks", "chunks of two clients", got, round)


def law_segments(world: World) -> None:
    """Checks that a loop over rounds computes the same as several loops."""
    states, _ = small_world.path(world)
    got = small_world.run(world, states[1], 1, 3)
    _same_rounds(world, "segments", "rounds 1 to 3 in one scan", got, 1, 3)


def law_jit(world: World) -> None:
    """Checks that a client's two steps and `aggregate` need no compilation.

    They are called as a notebook would, in the last round alone: each call compiles its
    loops anew.
    """
    run_client = plain_loop.client_by_wire(world, lambda function: function)
    last = len(world.cohorts) - 1
    total = plain_loop.server_inputs(world, last)
    client = plain_loop.inputs(world, small_world.path(world)[0][last], last, 4)
    server, passing = world.algorithm.aggregate(*total), run_client(*client)
    wanted = plain_loop.aggregate_jit(world)(*total)
    same(world, "jit", "aggregate: ", server, wanted)
    wanted = plain_loop.client_by_wire(world)(*client)
    same(world, "jit", "client: ", passing, wanted)


def law_order(world: World) -> None:
    """Checks that the order of a cohort changes nothing but the log's order."""
    states, logs = small_world.path(world)
    turned = world._replace(cohorts=world.cohorts[:, ::-1])
    for round in range(len(world.cohorts)):
        state, log = small_world.run(turned, states[round], round)
        same(world, "order", "state", state, states[round + 1])
        clients = jax.tree.map(lambda v: v[0, ::-1], log.clients)
        same(world, "order", "log", clients, logs[round].clients)


def law_padding(world: World) -> None:
    """Checks that padded steps and samples change nothing, whatever they hold."""
    states = small_world.path(world)[0][:-1]
    for (round, state), index in itertools.product(enumerate(states), (1, 4)):
        *others, data = plain_loop.inputs(world, state, round, index)
        want = plain_loop.client_by_wire(world)(*others, data)
        finite(world, "padding", f"client {index}: summand", want.summand)
        longer = data._replace(num_steps=jnp.int32(data.order.shape[1]))
        for what, changed in {
            "more steps": longer,
            "other padding": _soil(data),
            "more steps, other padding": _soil(longer),
        }.items():
            got = plain_loop.client_by_wire(world)(*others, changed)
            same(world, "padding", f"client {index}, {what}: ", got, want)


def _soil(data: Batches) -> Batches:
    """Puts NaN into steps without samples, and 9 into padding beside samples.

    Integers are the largest of their type, and at most the largest sample.
    """
    x, valid = np.array(data.x), np.asarray(data.weight) > 0
    rows = len(x)
    x[rows - 2], x[rows - 1] = min(9, x.max()), small_world.strange(x)
    alone = ~valid.any(-1, keepdims=True)
    order = np.where(alone, rows - 1, np.where(valid, data.order, rows - 2))
    return data._replace(x=x, order=order.astype(np.int32))


def law_bystanders(world: World) -> None:
    """Checks that clients that are not drawn neither change nor change others."""
    states, _ = small_world.path(world)
    for round in range(len(world.cohorts)):
        ids, old, new = world.cohorts[round], states[round], states[round + 1]
        last_round = old.last_round.copy()
        last_round[ids] = round
        same(world, "bystanders", "last_round", new.last_round, last_round)
        away = np.setdiff1d(world.population.info.index, ids)
        pair = rows(new.clients, away), rows(old.clients, away)
        same(world, "bystanders", "unsampled row", *pair, tolerance=0.0)
        x = _spoil(world.population.x, world.population.index[away])
        spoilt = world._replace(population=world.population._replace(x=x))
        clients = jax.tree.map(partial(_spoil, index=away), old.clients)
        old = old._replace(clients=clients)
        got, _ = small_world.run(spoilt, old, round, split=True)
        pair = ((s.server, rows(s.clients, ids)) for s in (got, new))
        same(world, "bystanders", "NaN in unsampled clients: ", *pair)


def _spoil(rows: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Returns rows of which some hold NaN, or the largest integer."""
    rows = rows.copy()
    rows[index] = small_world.strange(rows)
    return rows


def law_late(world: World) -> None:
    """Checks that a round in which nobody is heard moves no weight.

    A clock loses every other round. The deployed weights stay, or leave with the mask;
    any other real number that the server keeps stays or becomes 0. Integers and masks
    may change, but nothing in a state of optax.
    """
    deploy = small_world.jit(world.algorithm.deploy)
    for samples, first in small_world.LOST.items():
        states, logs = small_world.path(world, samples)
        for round in range(first, len(world.cohorts), 2):
            old, new = (states[i].server for i in (round, round + 1))
            where = f"nobody is heard in round {round}, see `means.if_heard`: "
            finite(world, "late", f"{where}metrics", logs[round].server)
            same(world, "late", f"{where}server", new, jax.tree.map(_stays, new, old))
            held = _of_optax(new), _of_optax(old)
            same(world, "late", f"{where}optimizer", *held, tolerance=0.0)
            models = (deploy(world.key, server) for server in (old, new))
            for before, after in zip(*map(dict.values, models), strict=True):
                kept = jax.tree.map(_stays, after.params, before.params, after.mask)
                want = after._replace(params=kept, stats=before.stats)
                same(world, "late", f"{where}deployed ", after, want)


def _of_optax(server: PyTree) -> list:
    """Returns the states of optax that a server holds."""

    def is_optax(node):
        return type(node).__module__.partition(".")[0] == "optax"

    return list(filter(is_optax, jax.tree.leaves(server, is_leaf=is_optax)))


def _stays(new, old, alive=False):
    """Returns the old real numbers, and 0 for those that are gone."""
    if not jnp.issubdtype(new.dtype, jnp.floating):
        return new
    return np.where((new == 0) & ~alive, new, old)


def law_seeds(world: World) -> None:
    """Checks that two seeds in one program compute the same as two runs."""
    states, _ = small_world.path(world)
    keys = jnp.stack([world.key, jax.random.key(4)])
    round_fn = round_program.make_round(small_world.plan(world))
    both = small_world.jit(jax.vmap(round_fn, in_axes=(0, None, 0, None, 0)))
    second = world._replace(key=keys[1], cohorts=np.roll(world.cohorts, 1, 0))
    for round in range(len(world.cohorts)):
        other = round - 1  # whose state and cohort the second seed has
        pair = jax.tree.map(lambda *v: np.stack(v), states[round], states[other])
        ids = world.cohorts[[round, other]]
        out = both(keys, world.population, pair, np.int32(round), ids)
        state, log = jax.device_get(out)
        first = jax.tree.map(lambda v: v[None], rows(log, 0))
        _same_rounds(world, "seeds", "first seed", (rows(state, 0), first), round)
        want, _ = small_world.run(second, states[other], round)
        same(world, "seeds", "second seed", rows(state, 1), want)


def law_resume(world: World) -> None:
    """Checks that a state that was saved and read continues bit for bit."""
    states, _ = small_world.path(world)
    models = world.algorithm.deploy(world.key, states[1].server)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        snapshot = Snapshot(0, 1, states[1], 0, 0.0)
        checkpoint.save(folder, snapshot, models, {})
        saved = checkpoint.read(folder)
        state = saved.snapshot.state(jax.eval_shape(lambda s: s, states[1]))
        state = state._replace(clients=state.clients.rows)
    same(world, "resume", "models", saved.models, models, tolerance=0.0)
    got, _ = small_world.run(world, state, 1, 3)
    same(world, "resume", "state", got, states[4], tolerance=0.0)


def _same_rounds(world, law: str, what: str, got, first: int, count: int = 1) -> None:
    """Compares (state, log) with the path; only executed steps may differ."""
    (states, logs), (state, log) = small_world.path(world), got
    same(world, law, f"{what}: state", state, states[first + count])
    want = jax.tree.map(lambda *v: np.stack(v), *logs[first : first + count])
    log = log._replace(executed_steps=want.executed_steps)
    same(world, law, f"{what}: log", log, want)
