"""The laws that every algorithm obeys, checked on anyone's method.

    check_algorithm(my_method, strength=0.1)

All laws look at the same method in the same small world, see `contract_world`. States
are compared round by round from equal starts, so that a difference in the last bit has
no rounds to grow in. "Equal" is 1e-6 of the largest entry, or of 1 if that is more, and
exact for integers and masks.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core import keys
from sparsefl_jax.core.types import Batches, PyTree
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.runs.loop import Snapshot
from sparsefl_jax.simulation import round_program, store
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from sparsefl_jax.testing.compare import (
    ContractError,
    check_bytes,
    fail,
    finite,
    leaves,
    outside,
    recount,
    rows,
    same,
)
from sparsefl_jax.testing.signature import law_signature
from sparsefl_jax.testing.small_world import World, make_world
from sparsefl_jax.wire import packets
from sparsefl_jax.wire.charges import packet_bits
from sparsefl_jax.wire.positions import POSITIONS


def check_algorithm(factory: Callable, **kwargs) -> None:
    """Checks a method against all laws; takes seconds, most of it compilation.

    Args:
      factory: `factory(model, optimizer, **kwargs) -> Algorithm`.
      **kwargs: of the factory.

    Raises:
      ContractError: names the first law that the method breaks, and where.

    Example:
      >>> from sparsefl_jax.algorithms import fedavg
      >>> def silent(model, optimizer):
      ...     whole = fedavg(model, optimizer)
      ...     return whole._replace(update=lambda *args: (*whole.update(*args)[:2], {}))
      >>> check_algorithm(silent)
      Traceback (most recent call last):
      sparsefl_jax.testing.compare.ContractError: law 'types', silent: the metrics of
      `update` lack 'correct'
    """
    world = make_world(factory, kwargs)
    for name, law in LAWS.items():
        try:
            law(world)
        except jax.errors.UnexpectedTracerError as error:
            what = "a function uses what another one computed and did not return"
            raise ContractError(f"law '{name}', {world.name}: {what}") from error


def law_types(world: World) -> None:
    """A round changes no structure, shape, dtype or weak type, and is traced once."""
    state = small_world.start(world)
    round_fn = round_program.make_round(small_world.plan(world))
    before = jax.eval_shape(lambda s: s, state)
    try:
        after, log = jax.eval_shape(
            round_fn, world.key, world.population, state, np.int32(0), world.cohorts[0]
        )
    except TypeError as error:
        what = str(error).splitlines()[0]
        raise ContractError(f"law 'types', {world.name}: {what}") from error
    if jax.tree.structure(after) != jax.tree.structure(before):
        fail(world, "types", f"after a round the state is {jax.tree.structure(after)}")
    for (path, a), b in zip(leaves(after), jax.tree.leaves(before), strict=True):
        if (a.shape, a.dtype, a.weak_type) != (b.shape, b.dtype, b.weak_type):
            fail(world, "types", f"state{path} is {b}, after a round {a}")
    for name in sorted({"loss", "correct", "count", "work"} - set(log.clients)):
        fail(world, "types", f"the metrics of `update` lack {name!r}")
    passing = jax.eval_shape(
        partial(small_world.client, world), *small_world.inputs(world, state, 0, 0)
    )
    for path, leaf in leaves(passing.summand):
        if leaf.dtype != jnp.float32:
            fail(world, "types", f"summand{path} is {leaf.dtype}, expected float32")
    traces = [small_world.through(world, state, rounds)[1] for rounds in ((0,), (0, 1))]
    if traces[0] != traces[1]:
        fail(world, "types", "the second call of a program traces it again")


def law_wire(world: World) -> None:
    """Server and clients know of each other what travels: the simulator = a plain loop.

    In the loop messages alone pass, and what is not sent is garbage.
    """
    states, logs = small_world.path(world)
    for round in range(2):
        new = states[round + 1]
        got = new.server, logs[round].server, new.clients
        want = small_world.loop_round(world, round)
        same(world, "wire", "loop with messages alone: ", got, want)


def law_known(world: World) -> None:
    """What is not charged follows from facts and keys, or the packet says why.

    The world runs a second time from the same keys, with every sample negated and
    shifted and each client's labels in another order. Masks whose positions are free,
    and values of 0 bits, are the same in both runs, except in a packet that is
    `assumed`.
    """
    for round in range(len(world.cohorts)):
        runs = (small_world.passings(world, round, other) for other in (False, True))
        ids = world.cohorts[round].tolist()
        for index, *both in zip(ids, *runs, strict=True):
            for way in ("down", "up"):
                here, there = (getattr(passing, way) for passing in both)
                for name, packet in here.items():
                    where = f"{way}[{name!r}] of client {index} in round {round}"
                    _same_uncharged(world, where, packet, there[name])


def _same_uncharged(world: World, where: str, packet, other) -> None:
    """Fails where what two packets do not charge differs between them."""
    if packet.assumed or not (packet.sent and other.sent):
        return
    told = packet.index in POSITIONS  # these are charged
    free = {}
    if not told:
        free["mask, which is free,"] = packet.mask, other.mask
    if packet.bits == 0:
        pair = packet.values, other.values
        if told:  # what the positions say is paid for
            both = jax.tree.map(np.logical_and, packet.mask, other.mask)
            pair = tuple(masks.apply(values, both) for values in pair)
        free["values of 0 bits"] = pair
    for what, (got, want) in free.items():
        same(world, "known", f"{where} with other samples: {what} ", got, want)


def law_chunks(world: World) -> None:
    """One by one on one device = in chunks of any size, on one device or on two."""
    states, _ = small_world.path(world)
    most = min(2, len(jax.devices()))  # a cohort of three does not divide
    thorough = {(c, d) for c in (2, 3, 5) for d in (1, most)} | {(1, most)} - {(1, 1)}
    for chunk, devices in sorted(thorough) if world.thorough else ((2, most),):
        for round in range(2):
            got = small_world.run(
                world, states[round], round, chunk=chunk, devices=devices
            )
            what = f"chunk={chunk}, {devices} devices"
            _same_rounds(world, "chunks", what, got, round)


def law_segments(world: World) -> None:
    """A scan of rounds = the same rounds in several scans."""
    programs = ((0, 4), (0, 2), (2, 2)) if world.thorough else ()
    for first, count, length in (
        (1, 3, None),
        *((*more, more[1]) for more in programs),
    ):
        got = small_world.run(
            world, small_world.path(world)[0][first], first, count, length=length
        )
        what = f"rounds {first} to {first + count - 1} in one scan"
        _same_rounds(world, "segments", what, got, first, count)


def law_jit(world: World) -> None:
    """Compiled = not compiled: two local steps of a client, and `aggregate`."""
    place = world.cohorts[1].tolist().index(4)
    mine = small_world.inputs(world, small_world.path(world)[0][1], 1, 4)
    total = small_world.server_inputs(world, 1)
    with jax.disable_jit():
        passing = small_world.client(world, *mine)
        server = small_world.aggregate(world, *total)
    same(world, "jit", "client: ", passing, small_world.passings(world, 1)[place])
    same(world, "jit", "aggregate: ", server, small_world.aggregate_jit(world)(*total))


def law_order(world: World) -> None:
    """The order in which a cohort is drawn changes nothing but the log's order."""
    states, logs = small_world.path(world)
    for round in range(2):
        ids = world.cohorts[round : round + 1, ::-1]
        state, log = small_world.run(world, states[round], round, ids=ids)
        same(world, "order", "state", state, states[round + 1])
        turned = jax.tree.map(lambda v: v[0, ::-1], _by_client(log))
        same(world, "order", "log", turned, _by_client(logs[round]))


def law_padding(world: World) -> None:
    """A padded step and a padded sample change nothing, whatever they hold."""
    state = small_world.path(world)[0][1]
    for index in (1, 4):
        *mine, data = small_world.inputs(world, state, 1, index)
        want = small_world.client_by_wire(world)(*mine, data)
        finite(world, "padding", f"client {index}: summand", want.summand)
        longer = data._replace(num_steps=jnp.int32(data.order.shape[1]))
        for what, changed in {
            "more steps": longer,
            "other padding": _soil(data),
            "more steps, other padding": _soil(longer),
        }.items():
            got = small_world.client_by_wire(world)(*mine, changed)
            same(world, "padding", f"client {index}, {what}: ", got, want)


def law_bystanders(world: World) -> None:
    """Who is not drawn, dummies included, stays as it is and changes nobody else."""
    states, _ = small_world.path(world)
    for round in range(2):
        ids, old, new = world.cohorts[round], states[round], states[round + 1]
        last_round = old.last_round.copy()
        last_round[ids] = round
        same(world, "bystanders", "last_round", new.last_round, last_round)
        away = np.setdiff1d(np.arange(len(small_world.SIZES)), ids)
        pair = rows(new.clients, away), rows(old.clients, away)
        same(world, "bystanders", "unsampled row", *pair, tolerance=0.0)
        x = world.population.x.copy()
        x[world.population.index[away]] = np.nan
        population = world.population._replace(x=x)
        old = old._replace(clients=_spoil(old.clients, away))
        got, _ = small_world.run(world, old, round, chunk=2, population=population)
        pair = ((s.server, rows(s.clients, ids)) for s in (got, new))
        same(world, "bystanders", "NaN in unsampled clients: ", *pair)


def law_zeros(world: World) -> None:
    """Outside its mask a packet is 0, and a deployed model 0 or as `init` got it."""
    for round, way, name, packet in _packets(world):
        if packet.mask is not None:
            where = f"{way}[{name!r}] of round {round}"
            outside(world, where, packet.values, packet.mask)
    state, info = small_world.path(world)[0][-1], rows(world.population.info, 0)
    row = small_world.inputs(world, state, 0, 0)[3]
    method, like = world.algorithm, jax.device_get(world.model)
    deployed = {"deploy": method.deploy(world.key, state.server)}
    if method.personalize is not None:
        models = method.personalize(world.key, state.server, row, info)
        deployed["personalize"] = models
    for what, models in deployed.items():
        for name, model in jax.device_get(models).items():
            where, blank = f"{what}[{name!r}]", jax.tree.map(np.zeros_like, like)
            same(world, "zeros", where, jax.tree.map(np.zeros_like, model), blank)
            outside(world, where, model.params, model.mask, like.params)


def law_bytes(world: World) -> None:
    """Counted entries and bits are those of a recount and of decoded bytes."""
    logs = small_world.path(world)[1]
    for round in range(2):
        for place, passing in enumerate(small_world.passings(world, round)):
            for way in ("down", "up"):
                message, told = getattr(passing, way), getattr(logs[round], way)
                counts = {n: recount(packet) for n, packet in message.items()}
                told = {n: rows(count, place) for n, count in told.items()}
                same(world, "bytes", f"log.{way} of round {round}", told, counts)
                for name, layout in packets.layout(message).items():
                    bits = packet_bits(layout, counts[name]).total
                    check_bytes(world, f"{way}[{name!r}]", message[name], int(bits))


def law_fresh(world: World) -> None:
    """Positions are paid for once: they are free where the receiver holds them.

    Going down, a client holds the mask that it received last; the server keeps track of
    clients that took part in the round before. Going up, the server holds the masks
    that the client has received in this round.
    """
    received = {
        index: {} for index in range(len(small_world.SIZES))
    }  # the last masks, by name
    before: list[int] = []  # who took part in the round before
    for round in range(len(world.cohorts)):
        ids, passings = (
            world.cohorts[round].tolist(),
            small_world.passings(world, round),
        )
        for index, passing in zip(ids, passings, strict=True):
            down = {n: _mask_bytes(p) for n, p in passing.down.items() if p.sent}
            where = f"of client {index} in round {round}"
            held = list(received[index].values())
            _paid_once(world, where, "down", passing.down, held, index in before)
            _paid_once(world, where, "up", passing.up, list(down.values()), True)
            received[index] |= down
        before = ids


def _paid_once(world, where: str, way: str, message, held: list, kept: bool) -> None:
    """Fails where a message charges a mask again, or one that is new not at all."""
    masked = {
        name: (_mask_bytes(packet), packet)
        for name, packet in message.items()
        if packet.sent and packet.index in POSITIONS and packet.mask is not None
    }
    charged = [mask for mask, packet in masked.values() if packet.fresh]
    for name, (mask, packet) in masked.items():
        what = f"{way}[{name!r}] {where}"
        if not packet.fresh and mask not in held + charged:
            fail(world, "fresh", f"{what} has a new mask and fresh=False")
        if packet.fresh and kept and mask in held:
            fail(world, "fresh", f"{what} charges a mask that is held")


def _mask_bytes(packet) -> list[bytes]:
    return [leaf.tobytes() for leaf in jax.tree.leaves(packet.mask)]


def law_seeds(world: World) -> None:
    """Two seeds in one program = two runs; their cohorts and states differ."""
    states, _ = small_world.path(world)
    keys = jnp.stack([world.key, jax.random.key(4)])
    both = jax.jit(
        jax.vmap(
            round_program.make_round(small_world.plan(world)),
            in_axes=(0, None, 0, None, 0),
        )
    )
    pair = jax.tree.map(lambda *v: np.stack(v), *states[1:3])
    out = jax.device_get(
        both(keys, world.population, pair, np.int32(1), world.cohorts[1:3])
    )
    first = rows(out[0], 0), _lead(rows(out[1], 0))
    _same_rounds(world, "seeds", "first seed", first, 1)
    ids = world.cohorts[2:3]
    want, _ = small_world.run(world, states[2], 1, key=keys[1], ids=ids)
    same(world, "seeds", "second seed", rows(out[0], 1), want)


def law_resume(world: World) -> None:
    """A state that is saved to disk and read again continues bit for bit."""
    states, _ = small_world.path(world)
    models = world.algorithm.deploy(world.key, states[1].server)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        checkpoint.save(
            folder, Snapshot(0, 1, states[1], 0, 0.0), models, world.key, {}
        )
        saved = checkpoint.read(folder, world.key)
        state = saved.snapshot.state(jax.eval_shape(lambda s: s, states[1]))
    same(world, "resume", "models", saved.models, models, tolerance=0.0)
    got, _ = small_world.through(world, state, (1, 2, 3))
    same(world, "resume", "state", got, states[4], tolerance=0.0)


def law_start(world: World) -> None:
    """`init` and `init_client` depend on key, model and first server alone."""
    init_key, client_key = keys.of_start(world.key)
    server = world.algorithm.init(init_key, world.model)
    same(world, "start", "server", server, small_world.start(world).server)
    for index in range(len(small_world.SIZES)):
        info = rows(world.population.info, index)
        key = keys.of_client(client_key, index)
        row = store.pack(world.algorithm.init_client(key, server, info))
        want = rows(small_world.start(world).clients, index)
        same(world, "start", f"client {index}", row, want)


LAWS: dict[str, Callable[[World], None]] = {
    "signature": law_signature,
    "types": law_types,
    "start": law_start,
    "wire": law_wire,
    "known": law_known,
    "chunks": law_chunks,
    "segments": law_segments,
    "jit": law_jit,
    "order": law_order,
    "padding": law_padding,
    "bystanders": law_bystanders,
    "zeros": law_zeros,
    "bytes": law_bytes,
    "fresh": law_fresh,
    "seeds": law_seeds,
    "resume": law_resume,
}


def _lead(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda v: v[None], tree)


def _by_client(log: round_program.RoundLog) -> tuple:
    return log.ids, log.clients, log.down, log.up


def _same_rounds(world, law: str, what: str, got, first: int, count: int = 1) -> None:
    """Compares (state, log) with the path, but for what padding costs."""
    (states, logs), (state, log) = small_world.path(world), got
    same(world, law, f"{what}: state", state, states[first + count])
    told = jax.tree.map(lambda *v: np.stack(v), *logs[first : first + count])
    log = log._replace(executed_steps=told.executed_steps)
    same(world, law, f"{what}: log", log, told)


def _soil(data: Batches) -> Batches:
    """Other rows behind padding: NaN in steps without a sample, 9 beside samples."""
    rows = data.x.shape[0]
    x = data.x.at[rows - 2].set(9.0).at[rows - 1].set(jnp.nan)
    alone = ~jnp.any(data.weight > 0, -1, keepdims=True)
    order = jnp.where(alone, rows - 1, jnp.where(data.weight > 0, data.order, rows - 2))
    return data._replace(x=x, order=order.astype(jnp.int32))


def _spoil(clients: PyTree, index: np.ndarray) -> PyTree:
    """All clients' rows, with NaN in the place of some clients' floats."""

    def spoil(rows):
        if not jnp.issubdtype(rows.dtype, jnp.floating):
            return rows
        rows = rows.copy()
        rows[index] = np.nan
        return rows

    return jax.tree.map(spoil, clients)


def _packets(world: World):
    for round in range(len(world.cohorts)):
        for passing in small_world.passings(world, round):
            for way in ("down", "up"):
                for name, packet in getattr(passing, way).items():
                    yield round, way, name, packet
