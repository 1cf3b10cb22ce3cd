"""The laws of what travels: messages are all that passes, and are charged correctly."""

import collections

import jax
import numpy as np

from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.testing.compare import check_bytes, fail, outside, recount, rows, same
from sparsefl_jax.testing.small_world import World
from sparsefl_jax.wire.charges import packet_bits
from sparsefl_jax.wire.packets import Packet, layout
from sparsefl_jax.wire.positions import POSITIONS


def law_wire(world: World) -> None:
    """Checks that server and clients know nothing of each other but what travels.

    The simulator computes the same as a plain loop in which only messages pass, and in
    which garbage arrives for a packet that is not sent.
    """
    states, logs = small_world.path(world)
    for round in range(2):
        after = states[round + 1]
        got = after.server, logs[round].server, after.clients
        want = plain_loop.loop_round(world, round)
        same(world, "wire", "loop with messages alone: ", got, want)


def law_known(world: World) -> None:
    """Checks that what is not charged follows from facts and keys, or is assumed.

    The world runs a second time from the same keys, with every sample negated and
    shifted and each client's labels in another order. Masks whose positions are free,
    and values of 0 bits, have to agree in both runs, except in a packet that says by
    `assumed` why they need not.
    """
    for round in range(len(world.cohorts)):
        runs = (plain_loop.passings(world, round, other) for other in (False, True))
        ids = world.cohorts[round].tolist()
        for index, first, second in zip(ids, *runs, strict=True):
            others = second.packets()
            for (way, name), packet in first.packets().items():
                where = f"{way}[{name!r}] of client {index} in round {round}"
                _same_uncharged(world, where, packet, others[way, name])


def _same_uncharged(world: World, where: str, packet: Packet, other: Packet) -> None:
    """Fails where what two packets do not charge differs between them."""
    if packet.assumed or not (packet.sent and other.sent):
        return
    positions_charged = packet.index in POSITIONS
    free = {}
    if not positions_charged:
        free["mask, which is free,"] = packet.mask, other.mask
    if packet.bits == 0:
        pair = packet.values, other.values
        if positions_charged:  # what they say is paid for
            both = jax.tree.map(np.logical_and, packet.mask, other.mask)
            pair = tuple(masks.apply(values, both) for values in pair)
        free["values of 0 bits"] = pair
    for what, (got, want) in free.items():
        same(world, "known", f"{where} with other samples: {what} ", got, want)


def law_zeros(world: World) -> None:
    """Checks that a packet is 0 outside its mask.

    A deployed model is 0 there, or holds what `init` received.
    """
    for round in range(len(world.cohorts)):
        for passing in plain_loop.passings(world, round):
            for (way, name), packet in passing.packets().items():
                if packet.mask is not None:
                    where = f"{way}[{name!r}] of round {round}"
                    outside(world, where, packet.values, packet.mask)
    state, info = small_world.path(world)[0][-1], rows(world.population.info, 0)
    row = plain_loop.inputs(world, state, 0, 0)[3]
    method, start = world.algorithm, jax.device_get(world.model)
    deployed = {"deploy": method.deploy(world.key, state.server)}
    if method.personalize is not None:
        models = method.personalize(world.key, state.server, row, info)
        deployed["personalize"] = models
    for what, models in deployed.items():
        for name, model in jax.device_get(models).items():
            where, blank = f"{what}[{name!r}]", jax.tree.map(np.zeros_like, start)
            same(world, "zeros", where, jax.tree.map(np.zeros_like, model), blank)
            outside(world, where, model.params, model.mask, start.params)


def law_bytes(world: World) -> None:
    """Checks that counted entries and bits are those of a recount and of the bytes."""
    logs = small_world.path(world)[1]
    for round in range(2):
        for place, passing in enumerate(plain_loop.passings(world, round)):
            for way in ("down", "up"):
                message, logged = getattr(passing, way), getattr(logs[round], way)
                counts = {n: recount(packet) for n, packet in message.items()}
                logged = {n: rows(count, place) for n, count in logged.items()}
                same(world, "bytes", f"log.{way} of round {round}", logged, counts)
                for name, description in layout(message).items():
                    bits = packet_bits(description, counts[name]).total
                    check_bytes(world, f"{way}[{name!r}]", message[name], int(bits))


def law_fresh(world: World) -> None:
    """Checks that positions are charged exactly where the receiver does not hold them.

    A client holds the mask that it received last; the server has to keep track of those
    clients that took part in the round before. The server holds the masks that the
    client has received in this round.
    """
    received = [{} for _ in small_world.SIZES]  # each client's last masks, by name
    before: list[int] = []  # who took part in the round before
    for round, cohort in enumerate(world.cohorts.tolist()):
        passings = plain_loop.passings(world, round)
        for index, passing in zip(cohort, passings, strict=True):
            down = {n: _mask_bytes(p) for n, p in passing.down.items() if p.sent}
            where = f"of client {index} in round {round}"
            held = list(received[index].values())
            _paid_once(world, where, "down", passing.down, held, index in before)
            _paid_once(world, where, "up", passing.up, list(down.values()), True)
            received[index] |= down
        before = cohort


def masks_stand(world: World) -> bool:
    """Tells whether there are masks, and none changed in the rounds of the world."""
    seen, sparse = collections.defaultdict(set), False
    for round, cohort in enumerate(world.cohorts.tolist()):
        passings = plain_loop.passings(world, round)
        for index, passing in zip(cohort, passings, strict=True):
            for place, packet in passing.packets().items():
                if packet.sent and packet.mask is not None:
                    seen[place, index].add(tuple(_mask_bytes(packet)))
                    sparse |= not all(m.all() for m in jax.tree.leaves(packet.mask))
    return sparse and all(len(masks) == 1 for masks in seen.values())


def _paid_once(world, where: str, way: str, message, held: list, kept: bool) -> None:
    """Fails where a message charges a mask twice, or leaves out a new one."""
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


def _mask_bytes(packet: Packet) -> list[bytes]:
    """Returns a packet's mask in a form that `==` compares."""
    return [leaf.tobytes() for leaf in jax.tree.leaves(packet.mask)]
