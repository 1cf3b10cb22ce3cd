"""The bits of a stage before it runs: at least and at most, by the masks that travel.

`Algorithm.alive` bounds the share of entries in the masks that come down. A packet that
goes up under a mask that came down has its bounds; any other masked packet holds
nothing at least, and is whole at most. A packet travels, and its positions, unless the
program's constants say otherwise.
"""

import math
from typing import NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.sparsity import trees
from sparsefl_jax.wire import packets
from sparsefl_jax.wire.charges import packet_bits
from sparsefl_jax.wire.positions import POSITIONS, most_position_bits
from sparsefl_jax.wire.values import VALUES

_DEVIATIONS = 5  # of an entry count from the share by which a mask is drawn at random


class Facts(NamedTuple):
    """What a program tells of a packet; None where it depends on the data."""

    sent: bool | None = None
    fresh: bool | None = None
    mask_of: str | None = None  # the packet that brought this very mask down


class Traffic(NamedTuple):
    """The traffic of a stage."""

    down: list[float]  # bits of a round, the mean over rounds; least and most
    up: list[float]
    masked: int  # entries under a mask on their way down
    density: float  # share of these alive at most, the mean over rounds
    share: float  # of what the next stage starts from
    assumed: dict[str, str]  # what is not charged, and why, by 'direction/packet'
    handed: list[int]  # bits of a client's first round beside these; least and most


def expect(stage: Stage, start: float, traced) -> Traffic:
    """Bounds a stage's traffic by its program and its arguments.

    Args:
      stage: the stage.
      start: the share of entries alive where it starts, at most.
      traced: one round of it by shape, as `checks.run` gives it.

    Raises:
      ValueError: `Algorithm.alive` gives what is no share.
    """
    shares = alive(stage, start)
    means = {
        way: (stage.cohort_size * bits.mean(0)).tolist()
        for way, bits in by_round(stage, start, traced).items()
    }
    down, always = traced.layouts["down"], Facts(sent=True, fresh=True)
    under = [p for p in down.values() if p.masked]
    handed = [_bits(down[n], always, 1.0) for n in down.keys() - traced.facts[0]]
    return Traffic(
        **means,
        masked=sum(int(_sizes(packet).sum()) for packet in under),
        density=float(np.mean(shares[:-1])) if under else 1.0,
        share=shares[-1],
        assumed=packets.assumptions(traced.layouts),
        handed=[sum(bits) for bits in zip(*handed, strict=True)] or [0, 0],
    )


def by_round(stage: Stage, start: float, traced) -> dict[str, np.ndarray]:
    """Bounds the bits of one exchange in every round, without what is handed.

    Args:
      stage, start, traced: as `expect` takes them.

    Returns:
      By 'down' and 'up', least and most, [rounds, 2] float64.
    """
    shares, rounds = np.unique(alive(stage, start)[:-1], return_inverse=True)
    bits = {}
    for way, facts in zip(("down", "up"), traced.facts, strict=True):
        pairs = [
            [
                _bits(traced.layouts[way][name], fact, share if fact.mask_of else 1.0)
                for name, fact in facts.items()
            ]
            for share in shares.tolist()
        ]
        # Nothing may travel, as with clients that train alone.
        pairs = np.array(pairs, float).reshape(len(shares), -1, 2)
        bits[way] = pairs.sum(1)[rounds]
    return bits


def share_alive(start: SparseModel | None, traced) -> float:
    """Returns the share of entries alive where a stage starts, of those under a mask.

    Args:
      start: the model, whose leaves go by the names that packets give them; None for a
        fresh one.
      traced: one round of the stage by shape, as `checks.run` gives it.
    """
    if start is None:
        return 1.0
    kept, sent = trees.by_path(start.mask), traced.layouts["down"].values()
    paths = [path for packet in sent if packet.masked for path in packet.paths]
    under = [kept[path] for path in paths if path in kept]
    alive = sum(int(np.sum(mask)) for mask in under)
    return alive / sum(mask.size for mask in under) if under else 1.0


def most_bits(layouts: dict[str, dict[str, packets.Layout]]) -> int:
    """Bounds the bits of an exchange: all values, and all positions sent anew.

    Example:
      >>> mask = {'w': np.zeros(8, bool)}
      >>> packet = packets.Packet({'w': np.zeros(8, np.float32)}, mask, index='bitmap')
      >>> most_bits({'up': packets.layout({'w': packet})})  # 8 values, a bit for each
      264
    """
    each = [packet for layout in layouts.values() for packet in layout.values()]
    return sum(_bits(packet, Facts(), 1.0)[1] for packet in each)


def facts(traced: jax.stages.Traced) -> tuple[dict[str, Facts], dict[str, Facts]]:
    """Reads the facts of both messages from the program of a client.

    Args:
      traced: of a function that returns `(down, up, ...)`.
    """
    closed, shapes = traced.jaxpr, traced.out_info
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    down, up, *_ = jax.tree.unflatten(jax.tree.structure(shapes), closed.jaxpr.outvars)
    came = {_mask(packet): name for name, packet in down.items() if _mask(packet)}

    def constant(var) -> bool | None:
        if isinstance(var, Literal):
            return bool(var.val)
        return bool(constants[var]) if var in constants else None

    down, up = (
        {
            name: Facts(constant(p.sent), constant(p.fresh), came.get(_mask(p)))
            for name, p in message.items()
        }
        for message in (down, up)
    )
    return down, up


def _mask(packet: PyTree) -> tuple:
    return tuple(jax.tree.leaves(packet.mask))


def alive(stage: Stage, start: float) -> list[float]:
    """Returns the share alive at most after 0, 1, ... rounds, up to all.

    Args:
      stage, start: as `expect` takes them.

    Raises:
      ValueError: `Algorithm.alive` gives what is no share.
    """
    if stage.algorithm.alive is None:
        return [1.0] * (stage.num_rounds + 1)
    shares = []
    for round in range(stage.num_rounds + 1):
        shares.append(share := float(stage.algorithm.alive(round, start)))
        if not 0 <= share <= 1:
            raise ValueError(f"alive({round}) is {share}, expected in [0, 1]")
    return shares


def _sizes(packet: packets.Layout) -> np.ndarray:
    return np.array([math.prod(shape) for shape in packet.shapes], np.int64)


def _bits(packet: packets.Layout, facts: Facts, share: float) -> tuple[int, int]:
    """Bounds the bits of a packet whose mask is at most this dense."""
    sizes = _sizes(packet)
    size, least, most = sizes.sum(), sizes, sizes
    if packet.masked:
        drawn = _DEVIATIONS * math.sqrt(size * share * (1 - share))
        size = min(size, math.ceil(size * share + drawn))
        least, most = np.zeros_like(sizes), np.minimum(sizes, size)
    few, many = _measured(packet, least, most)
    always, new = np.bool_(facts.sent is True), np.bool_(facts.fresh is True)
    low = packet_bits(packet, packets.Count(least, new, always, few))
    ever, anew = np.bool_(facts.sent is not False), np.bool_(facts.fresh is not False)
    high = packet_bits(packet, packets.Count(most, np.False_, ever, many))
    values, positions = high
    if ever and anew and packet.masked and packet.index in POSITIONS:
        leaves = zip(packet.shapes, most.tolist(), strict=True)
        positions += sum(most_position_bits(packet.index, *leaf) for leaf in leaves)
    if packet.index not in VALUES:  # leaves together hold no more than their share
        values = np.minimum(values, packet.bits * size)
    return int(low.total), int(values + positions)


def _measured(
    packet: packets.Layout, least: np.ndarray, most: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds `Count.measured` of leaves from which so many entries travel."""
    if packet.index not in VALUES:
        return least, most  # a gap has one unary bit at least; its most is not read
    bound = VALUES[packet.index].bounds
    pairs = [bound(n, packet.bits, packet.bucket) for n in most.tolist()]
    few, many = np.array(pairs, np.int64).reshape(-1, 2).T
    return few, many
