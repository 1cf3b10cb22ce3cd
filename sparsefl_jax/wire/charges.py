"""How many bits a message takes: its values, and the positions at which they stand.

`positions` has the bits of positions. With the index "entropy" no positions travel,
and the values of all leaves of a packet together, n zeros and ones of which k are ones,
take

    w(n + 1) + ceil(n H(k / n)),  w(n) = ceil(log2(n)), H the entropy in bits

The first w(n + 1) bits hold k; `arithmetic` writes the rest, as long as that or up to
two bits longer. Bits are int64 on the host: they overflow int32 at once. `streams`
writes and reads the bytes that these bits measure.
"""

from typing import NamedTuple

import numpy as np

from sparsefl_jax.wire.arithmetic import entropy_bits
from sparsefl_jax.wire.packets import Count, Layout
from sparsefl_jax.wire.positions import POSITIONS, position_bits


class Bits(NamedTuple):
    """Bits on the wire, split into values and positions."""

    values: np.ndarray  # int64
    positions: np.ndarray  # int64

    @property
    def total(self) -> np.ndarray:
        """Values and positions together, int64."""
        return self.values + self.positions


def message_bits(layouts: dict[str, Layout], counts: dict[str, Count]) -> Bits:
    """Returns the bits of a whole message.

    Args:
      layouts: as `packets.layout` returns them.
      counts: as `packets.count` returns them, with any leading axes (rounds, clients).

    Returns:
      int64 arrays over the leading axes, summed over the packets.

    Example:
      >>> from sparsefl_jax.wire.packets import Packet, count, layout
      >>> message = {'up': Packet({'w': np.zeros((2, 3), np.float32)})}
      >>> int(message_bits(layout(message), count(message)).total)
      192
    """
    each = [packet_bits(layouts[name], counts[name]) for name in layouts]
    zero = np.zeros((), np.int64)
    values = sum((bits.values for bits in each), zero)
    return Bits(values, sum((bits.positions for bits in each), zero))


def packet_bits(layout: Layout, count: Count) -> Bits:
    """Returns the bits of one packet.

    Args:
      layout: the packet's static description.
      count: its counts, with any leading axes (rounds, clients).

    Returns:
      int64 arrays over the leading axes.

    Example:
      >>> layout = Layout(('w',), ((8,),), bits=32, index='bitmap', masked=True)
      >>> count = Count(np.array([3]), fresh=np.array(True), sent=np.array(True))
      >>> [int(bits) for bits in packet_bits(layout, count)]
      [96, 8]
    """
    entries = np.asarray(count.entries, np.int64)
    sent, fresh = np.asarray(count.sent, np.int64), np.asarray(count.fresh, np.int64)
    values = layout.bits * entries.sum(-1)
    if layout.index == "entropy":
        n, ones = entries.sum(-1), np.asarray(count.ones, np.int64).sum(-1)
        header = np.frexp(n.astype(np.float64))[1].astype(np.int64)  # w(n + 1)
        values = header + np.ceil(entropy_bits(n, ones)).astype(np.int64)
    values = sent * values
    positions = np.zeros_like(values)
    if layout.masked and layout.index in POSITIONS:
        for leaf, shape in enumerate(layout.shapes):
            unary = None if count.unary is None else count.unary[..., leaf]
            positions += position_bits(layout.index, shape, entries[..., leaf], unary)
    return Bits(values, sent * fresh * positions)
