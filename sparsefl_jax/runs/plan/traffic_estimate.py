"""The bits of a stage before it runs: at least and at most, by the masks that travel.

The server is started and its first messages are counted. What they tell of later ones,
and of the uplinks, follows from the program, see `structure`; `Algorithm.alive` tells
the share of masks that follow from a method's arguments. A packet under any other mask
holds nothing at least, and is whole at most. Positions travel or not, unless the
program says which.
"""

import math
from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import target
from sparsefl_jax.core.types import ClientInfo, Context, Key, SparseModel
from sparsefl_jax.runs.plan import checks, structure
from sparsefl_jax.simulation import initial_state
from sparsefl_jax.wire import packets
from sparsefl_jax.wire.charges import packet_bits

_DEVIATIONS = 5  # of an entry count from the share by which a mask is drawn at random


class Start(NamedTuple):
    """The model that a stage starts from."""

    model: SparseModel  # of its values the sizes matter, not the meaning
    share: float | None = None  # of the entries alive at most; None: its mask is known


class Traffic(NamedTuple):
    """The traffic of a stage."""

    down: tuple[float, float]  # bits of a round, the mean over rounds; least and most
    up: tuple[float, float]
    densities: dict[str, float]  # expected of every leaf under a mask on its way down
    masked: int  # entries of these leaves
    alive: float  # expected of these
    within: bool  # whether clients send under the very masks that they receive
    handed_on: Start  # what the next stage starts from
    assumed: dict[str, str]  # what is not charged, and why, by 'direction/packet'


class _Sent(NamedTuple):
    """Entries of a packet by leaf, int64; with a leading axis where tiers differ."""

    least: np.ndarray
    most: np.ndarray
    total: np.ndarray  # the most of all leaves together


def expect(stage, start: Start, traced: checks.Traced, key: Key, budgets) -> Traffic:
    """Bounds a stage's traffic by its program and its arguments.

    Args:
      stage: a `Stage`.
      start: what it starts from.
      traced: one round of it by shape, as `checks.run` gives it.
      key: the stage's root key.
      budgets: of the clients that take part, float32 of any shape.

    Raises:
      ValueError: `Algorithm.alive` gives what is no share.
    """
    told = structure.read(stage.algorithm, traced.work, start.model)
    tiers, clients = np.unique(np.float32(budgets), return_counts=True)
    deployed, counts = _first_round(stage.algorithm, start.model, key, tiers)
    layouts = packets.layout(traced.down), packets.layout(traced.up)
    shares, bits = _shares(stage, start, told), np.zeros((2, 2))
    for share, rounds in shares.items():
        down = {n: _sent(p, counts[n], share) for n, p in layouts[0].items()}
        up = {
            name: down.get(told.up[name].mask_of) or _sent(packet)
            for name, packet in layouts[1].items()
        }
        for way, (layout, facts, sent) in enumerate(
            zip(layouts, (told.down, told.up), (down, up), strict=True)
        ):
            for name in layout:
                each = _bits(layout[name], facts[name], sent[name])
                by_tier = np.stack([np.broadcast_to(b, tiers.shape) for b in each])
                mean = by_tier @ clients / clients.sum()
                bits[way] += mean * stage.cohort_size * rounds / stage.num_rounds
    sizes, densities = _densities(layouts[0], counts, clients, shares)
    came = [told.up[n].mask_of for n, p in layouts[1].items() if p.masked and p.paths]
    known = told.deployed and (start.share is None or not told.reads_start)
    return Traffic(
        down=tuple(bits[0].tolist()),
        up=tuple(bits[1].tolist()),
        densities=densities,
        masked=sum(sizes.values()),
        alive=sum(sizes[path] * densities[path] for path in sizes),
        within=bool(came) and None not in came,
        handed_on=Start(deployed, None if known else _alive(stage, stage.num_rounds)),
        assumed=packets.assumptions(dict(zip(("down", "up"), layouts, strict=True))),
    )


def most_bits(layout: dict[str, packets.Layout]) -> int:
    """Bounds the bits of a message: all values, and all positions sent anew.

    Example:
      >>> mask = {'w': jnp.zeros(8, bool)}
      >>> packet = packets.Packet({'w': jnp.zeros(8)}, mask, index='bitmap')
      >>> most_bits(packets.layout({'w': packet}))  # of 8 values, a bit for each
      264
    """
    unknown = structure.Facts(None, None, None)
    return sum(int(_bits(p, unknown, _sent(p))[1]) for p in layout.values())


def _first_round(algorithm, model: SparseModel, key: Key, tiers: np.ndarray):
    """Returns what the server first deploys, and the counts of its first messages."""
    init, _ = initial_state.makers(key, algorithm)

    @jax.jit
    def first(model, tiers):
        def downlink(budget):
            info = ClientInfo(jnp.int32(0), jnp.int32(1), budget)
            ctx = Context(jnp.int32(0), jnp.int32(-1), info)
            return packets.count(algorithm.broadcast(key, ctx, server))

        server = init(model)
        models = algorithm.deploy(key, server)
        return target(models), jax.lax.map(downlink, tiers)

    return jax.device_get(first(model, tiers))


def _alive(stage, round: int) -> float:
    """Returns the share alive at most after so many rounds."""
    if stage.algorithm.alive is None:
        return 1.0
    share = float(stage.algorithm.alive(round))
    if not 0 <= share <= 1:
        raise ValueError(f"alive({round}) is {share}, expected in [0, 1]")
    return share


def _shares(stage, start: Start, told: structure.Structure) -> Counter:
    """Counts the rounds by the share of masks alive; None stands for the first masks.

    1 where nothing is known.
    """
    first = 1.0
    if told.first and (start.share is None or not told.reads_start):
        first = None
    elif told.inherits:
        first = start.share
    later = range(1, stage.num_rounds)
    return Counter([first, *(first if told.stays else _alive(stage, t) for t in later)])


def _sent(
    packet: packets.Layout, first: packets.Count | None = None, share=1.0
) -> _Sent:
    """Bounds the entries of a packet whose mask is at most this dense."""
    sizes = np.array([math.prod(shape) for shape in packet.shapes], np.int64)
    if not packet.masked:
        return _Sent(sizes, sizes, sizes.sum())
    if share is None:
        entries = np.asarray(first.entries, np.int64)
        return _Sent(entries, entries, entries.sum(-1))
    size = sizes.sum()
    drawn = _DEVIATIONS * math.sqrt(size * share * (1 - share))
    total = np.minimum(size, math.ceil(size * share + drawn))
    return _Sent(np.zeros_like(sizes), np.minimum(sizes, total), total)


def _bits(packet: packets.Layout, facts: structure.Facts, sent: _Sent) -> tuple:
    """Bounds the bits of a packet, int64."""
    none, half = (
        ones if packet.index == "entropy" else None
        for ones in (np.zeros_like(sent.least), sent.most // 2)
    )
    always, new = np.bool_(facts.sent is True), np.bool_(facts.fresh is True)
    least = packet_bits(packet, packets.Count(sent.least, new, always, none))
    ever, told = np.bool_(facts.sent is not False), np.bool_(facts.fresh is not False)
    most = packet_bits(packet, packets.Count(sent.most, told, ever, half))
    values = most.values
    if packet.index != "entropy":
        values = np.minimum(values, packet.bits * sent.total)
    return least.total, values + most.positions


def _densities(layout: dict, counts: dict, clients, shares: Counter) -> tuple:
    """Returns sizes and expected densities of masked leaves by path.

    A mask of which nothing is known counts as the first one.
    """
    sizes, densities = {}, {}
    for name, packet in layout.items():
        entries = clients @ counts[name].entries / clients.sum()
        for path, shape, sent in zip(packet.paths, packet.shapes, entries, strict=True):
            if packet.masked:
                sizes[path] = math.prod(shape)
                first = float(sent) / max(sizes[path], 1)
                each = [
                    rounds * (first if share in (None, 1.0) else share)
                    for share, rounds in shares.items()
                ]
                densities[path] = sum(each) / shares.total()
    return sizes, densities
