"""The laws of what travels: messages are all that passes, and are charged correctly."""

import collections
import itertools

import jax
import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.testing.compare import fail, leaves, outside, rows, same
from sparsefl_jax.testing.small_world import World
from sparsefl_jax.wire.charges import packet_bits
from sparsefl_jax.wire.packets import Packet, count
from sparsefl_jax.wire.positions import POSITIONS
from sparsefl_jax.wire.streams import encode, slack


def law_wire(world: World) -> None:
    """Checks that server and clients know nothing of each other but what travels.

    The simulator computes the same as a plain loop in which only bytes pass, as
    `plain_loop.deliver_message` decodes them. A client computes the same to the bit
    where packets are handed over as they are.
    """
    states, logs = small_world.path(world)
    for round in range(len(world.cohorts)):
        after = states[round + 1]
        got = after.server, logs[round].server, after.clients
        want = plain_loop.loop_round(world, round)
        same(world, "wire", "loop with messages alone: ", got, want)
        ids, run = world.cohorts[round].tolist(), plain_loop.client_by_wire(world)
        for index, passing in zip(ids, plain_loop.passings(world, round), strict=True):
            inputs = plain_loop.inputs(world, states[round], round, index)
            what = f"client {index} in round {round}, packets as they are: "
            results = (p[2:] for p in (run(*inputs, decoded=False), passing))
            same(world, "wire", what, *results, tolerance=0.0)


def law_known(world: World) -> None:
    """Checks that what is not charged follows from facts and keys, or is assumed.

    The world runs again from the same keys with the other samples of `population_of`,
    and from another model of `start`, as an earlier stage may hand it on. Uplinks may
    also follow from what the server has just sent: they are compared where the clients
    of all runs answer the same downlink. `sent` and `fresh` have to agree, as far as no
    optional bit says them, and masks whose positions are free and values of 0 bits, bit
    for bit, except in a packet that says by `assumed` why they need not. Where the
    packet's mask or its being sent may follow from data, values of 0 bits are one
    constant in all runs.
    """
    for round in range(len(world.cohorts)):
        ids = world.cohorts[round].tolist()
        for way, run in (("down", plain_loop.passings), ("up", plain_loop.answers)):
            runs = [run(world, round, samples) for samples in small_world.SAMPLES]
            for index, *passings in zip(ids, *runs, strict=True):
                messages = (getattr(passing, way) for passing in passings)
                for message, other in itertools.combinations(messages, 2):
                    for name, packet in message.items():
                        where = f"{way}[{name!r}] of client {index} in round {round}"
                        _same_uncharged(world, where, packet, other[name])


def _same_uncharged(world: World, where: str, packet: Packet, other: Packet) -> None:
    """Fails where what two packets do not charge differs between them."""
    where = f"{where} with other samples:"
    flags, others = (
        (bool(p.sent), p.mask is None or bool(p.fresh)) for p in (packet, other)
    )
    announced = packet.optional and all(flags) != all(others)
    if flags != others and not announced:
        expected = f"expected {others} as in other runs, or a bit by `optional`"
        fail(world, "known", f"{where} (sent, fresh) are {flags}, {expected}")
    if packet.assumed or not (packet.sent and other.sent):
        return
    pair, free = (packet.values, other.values), {}
    if packet.mask is not None:  # what is in one mask only does not arrive, or is paid
        both = jax.tree.map(np.logical_and, packet.mask, other.mask)
        pair = [jax.tree.map(lambda m, v: v[m], both, values) for values in pair]
    if packet.index not in POSITIONS:
        free["mask, which is free,"] = packet.mask, other.mask
    if packet.bits == 0:
        free["values of 0 bits"] = pair
    for what, (got, want) in free.items():
        same(world, "known", f"{where} {what} ", got, want, tolerance=0.0)
    if packet.bits == 0 and (packet.optional or packet.index in POSITIONS):
        every = [...] * len(leaves(packet.values))
        inside = (jax.tree.leaves(p.mask) or every for p in (packet, other))
        values = leaves(packet.values), jax.tree.leaves(other.values)
        for (path, ours), theirs, *held in zip(*values, *inside, strict=True):
            both = zip((ours, theirs), held, strict=True)
            if len({v.tobytes() for leaf, mask in both for v in leaf[mask].flat}) > 1:
                what = f"0 bits{path} are not one constant in all runs"
                fail(world, "known", f"{where} {what}")


def law_zeros(world: World) -> None:
    """Checks that a packet is 0 outside its mask.

    A deployed model is 0 there, or holds what `init` received.
    """
    for round, (way, name), packet in plain_loop.packets(world):
        if packet.mask is not None:
            where = f"{way}[{name!r}] of round {round}"
            outside(world, where, packet.values, packet.mask)
    state, info = small_world.path(world)[0][-1], rows(world.population.info, 0)
    row = plain_loop.inputs(world, state, 0, 0)[3]
    method, start = world.algorithm, jax.device_get(world.model)
    deployed = {"deploy": method.deploy(world.key, state.server)}
    if method.personalize is not None:
        deployed["personalize"] = method.personalize(world.key, state.server, row, info)
    for what, models in deployed.items():
        for name, model in jax.device_get(models).items():
            where, blank = f"{what}[{name!r}]", jax.tree.map(np.zeros_like, start)
            same(world, "zeros", where, jax.tree.map(np.zeros_like, model), blank)
            outside(world, where, model.params, model.mask, start.params)


def law_bytes(world: World) -> None:
    """Checks that counted entries and bits are those of a recount and of the bytes."""
    logs, recount = small_world.path(world)[1], small_world.jit(count)
    for round in range(len(world.cohorts)):
        for place, passing in enumerate(plain_loop.passings(world, round)):
            for way in ("down", "up"):
                message = getattr(passing, way)
                logged = getattr(logs[round].clients, way)
                logged = {n: rows(counts, place) for n, counts in logged.items()}
                what = f"log.clients.{way} of round {round}"
                same(world, "bytes", what, logged, jax.device_get(recount(message)))
                for name, packet in message.items():
                    bits = int(packet_bits(packet, logged[name]).total)
                    size, most = len(encode(packet)), bits + slack(packet)
                    if not -(-bits // 8) <= size <= -(-most // 8):
                        what = f"{way}[{name!r}] takes {size} bytes, counted are {bits}"
                        fail(world, "bytes", f"{what} bits")


def law_fresh(world: World) -> None:
    """Checks that positions are charged wherever the receiver does not hold them.

    A client holds the mask that it received last in a packet of the same name; the
    server has to keep track of those clients that took part in the round before. The
    server holds the masks that the client has received in this round, by name too. A
    packet may charge positions always; one that leaves them out somewhere must not
    charge a mask that is held. A round in which nobody is heard changes
    nothing of this.
    """
    for samples in ("own", *small_world.LOST):
        _fresh(world, samples)


def _fresh(world: World, samples: str) -> None:
    sparing = {p for *_, p, packet in plain_loop.packets(world) if not packet.fresh}
    received = collections.defaultdict(dict)  # each client's last masks, by name
    before: list[int] = []  # who took part in the round before
    for round, cohort in enumerate(world.cohorts.tolist()):
        passings = plain_loop.passings(world, round, samples)
        for index, passing in zip(cohort, passings, strict=True):
            down = {n: _mask_bytes(p) for n, p in passing.down.items() if p.sent}
            where, held = f"of client {index} in round {round}", received[index]
            for way, known, kept in ("down", held, index in before), ("up", down, True):
                names = {name for side, name in sparing if kept and side == way}
                _paid_once(world, where, way, getattr(passing, way), known, names)
            held |= down
        before = cohort


def _paid_once(world, where: str, way: str, message, held: dict, sparing) -> None:
    """Fails where a packet leaves out a new mask, or a sparing one charges it twice."""
    for name, packet in message.items():
        if packet.sent and packet.index in POSITIONS and packet.mask is not None:
            what = f"{way}[{name!r}] {where}"
            is_held = held.get(name) == _mask_bytes(packet)
            if not packet.fresh and not is_held:
                fail(world, "fresh", f"{what} has a new mask and fresh=False")
            if packet.fresh and name in sparing and is_held:
                fail(world, "fresh", f"{what} charges a mask that is held")


def _mask_bytes(packet: Packet) -> list[bytes]:
    """Returns a packet's mask in a form that `==` compares."""
    return [leaf.tobytes() for leaf in jax.tree.leaves(packet.mask)]
