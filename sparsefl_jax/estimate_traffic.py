"""The bits of a stage before it runs: the first downlinks, and uplinks by shape.

The server is started and its first messages are counted. What clients answer is known
by shape alone; their masks are taken to be as dense as those that they receive. Whether
positions travel along depends on what the receiver holds, so both cases are given.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax import checks, codec
from sparsefl_jax.algorithm import target
from sparsefl_jax.types import ClientInfo, Context, SparseModel


class Traffic(NamedTuple):
    """What a stage is expected to send at the density of its first masks."""

    down: tuple[float, float]  # bits of a round, positions held already or sent anew
    up: tuple[float, float]
    densities: dict[str, float]  # share that travels of every leaf under a mask
    masked: int  # entries of these leaves
    alive: float  # of these, those that travel
    handed_on: SparseModel  # what the next stage starts from, were nothing trained
    assumed: dict[str, str]  # what is not charged, and why, by 'direction/packet'


def expect(stage, sparse: SparseModel, traced: checks.Traced, budgets) -> Traffic:
    """Expects the traffic of a stage.

    Args:
      stage: a `Stage`.
      sparse: what it starts from; of its values the sizes matter, not the meaning.
      traced: one round of it by shape, as `checks.run` gives it.
      budgets: [N] float32 in (0, 1], or None.
    """
    algorithm, key = stage.algorithm, jax.random.key(0)
    tiers, clients = np.unique(
        np.ones(1) if budgets is None else budgets, return_counts=True
    )

    @jax.jit
    def begin(sparse, tiers):
        def downlink(budget):
            info = ClientInfo(jnp.int32(0), jnp.int32(1), budget)
            ctx = Context(jnp.int32(0), jnp.int32(-1), info)
            return codec.count(algorithm.broadcast(key, ctx, server))

        server = algorithm.init(key, sparse)
        models = algorithm.deploy(key, server, None, None)
        return target(models), jax.lax.map(downlink, tiers)

    handed_on, down = begin(sparse, jnp.asarray(tiers, jnp.float32))
    down, share = jax.device_get(down), clients / clients.sum()
    layouts = codec.layout(traced.down), codec.layout(traced.up)
    sizes, densities = {}, {}
    for name, packet in layouts[0].items():
        entries = np.tensordot(share, down[name].entries, 1)
        for path, shape, sent in zip(packet.paths, packet.shapes, entries, strict=True):
            if packet.masked:
                sizes[path] = math.prod(shape)
                densities[path] = float(sent) / max(sizes[path], 1)
    up = {name: _answer(packet, densities) for name, packet in layouts[1].items()}
    cohort = stage.cohort_size
    return Traffic(
        down=tuple(
            cohort * float(np.sum(share * bits)) for bits in _bits(layouts[0], down)
        ),
        up=tuple(cohort * float(bits) for bits in _bits(layouts[1], up)),
        densities=densities,
        masked=sum(sizes.values()),
        alive=sum(sizes[path] * densities[path] for path in sizes),
        handed_on=handed_on,
        assumed=codec.assumptions(dict(zip(("down", "up"), layouts, strict=True))),
    )


def most_bits(layout: dict[str, codec.Layout]) -> int:
    """The bits of a message at most: whole, and its positions sent anew.

    Example:
      >>> mask = {'w': jnp.zeros(8, bool)}
      >>> packet = codec.Packet({'w': jnp.zeros(8)}, mask, index='bitmap')
      >>> most_bits(codec.layout({'w': packet}))  # of 8 values, a bit for each
      264
    """
    count = {name: _answer(packet, {}) for name, packet in layout.items()}
    return int(codec.bits(layout, count).total)


def _answer(packet: codec.Layout, densities: dict) -> codec.Count:
    """What a client sends of a packet at these densities."""
    entries = [
        round(math.prod(shape) * (densities.get(path, 1.0) if packet.masked else 1.0))
        for path, shape in zip(packet.paths, packet.shapes, strict=True)
    ]
    entries = np.array(entries, np.int64)
    ones = entries // 2 if packet.index == "entropy" else None  # the most bits
    return codec.Count(entries, np.True_, np.True_, ones)


def _bits(layout: dict, count: dict):
    """Bits without and with positions, of the leading axes of the counts."""
    for fresh in (False, True):
        told = {
            name: c._replace(fresh=np.full(np.shape(c.fresh), fresh))
            for name, c in count.items()
        }
        yield codec.bits(layout, told).total
