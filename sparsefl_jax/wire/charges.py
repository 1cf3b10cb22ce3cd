"""How many bits a message takes: its values, and the positions of these.

`positions` has the bits of positions, `arithmetic` those of values under `entropy`,
with which no positions travel. The bit of an optional packet counts as one of
positions. `streams` writes and reads the bytes that these bits measure.

One formula serves the ledger on the host and the clock on the device. Bits overflow
int32 at once, so the ledger counts them in int64; the clock, which turns them into
seconds, computes in float32.
"""

from typing import NamedTuple

import jax
import numpy as np

from sparsefl_jax.wire.arithmetic import HOST, Numbers, zeros_and_ones_bits
from sparsefl_jax.wire.packets import Count, Message, Packet
from sparsefl_jax.wire.positions import POSITIONS, position_bits


class Bits(NamedTuple):
    """Bits on the wire, split into values and positions."""

    values: np.ndarray  # int64; float32 on the device
    positions: np.ndarray  # int64; float32 on the device

    @property
    def total(self) -> np.ndarray:
        """Values and positions together."""
        return self.values + self.positions


def message_bits(
    layouts: Message, counts: dict[str, Count], numbers: Numbers = HOST
) -> Bits:
    """Returns the bits of a whole message.

    Args:
      layouts: as `packets.layout` returns them.
      counts: as `packets.count` returns them, with any leading axes (rounds, clients).
      numbers: where to count: `HOST` or `DEVICE`.

    Returns:
      Arrays over the leading axes, summed over the packets: int64 on the host, float32
      on the device.

    Example:
      >>> from sparsefl_jax.wire.packets import count, layout
      >>> message = {'up': Packet({'w': np.zeros((2, 3), np.float32)})}
      >>> int(message_bits(layout(message), count(message)).total)
      192
    """
    each = [packet_bits(layouts[name], counts[name], numbers) for name in layouts]
    zero = numbers.whole(0)
    values = sum((bits.values for bits in each), zero)
    return Bits(values, sum((bits.positions for bits in each), zero))


def packet_bits(packet: Packet, count: Count, numbers: Numbers = HOST) -> Bits:
    """Returns the bits of one packet.

    Args:
      packet: arrays or shapes.
      count: its counts, with any leading axes (rounds, clients).
      numbers: where to count: `HOST` or `DEVICE`.

    Returns:
      Arrays over the leading axes, int64 on the host and float32 on the device.

    Example:
      >>> packet = Packet(np.zeros(8, np.float32), np.zeros(8, bool), index='bitmap')
      >>> count = Count(np.array([3]), fresh=np.array(True), sent=np.array(True))
      >>> [int(bits) for bits in packet_bits(packet, count)]
      [96, 8]
    """
    entries, whole = numbers.whole(count.entries), numbers.whole
    sent, fresh = whole(count.sent), whole(count.fresh)
    measured = None if count.measured is None else whole(count.measured)
    if packet.index == "entropy":
        n, ones = entries.sum(-1), whole(count.measured).sum(-1)
        values = zeros_and_ones_bits(n, ones, numbers)
    else:
        values = packet.bits * entries.sum(-1)
    positions = numbers.xp.zeros_like(values)
    if packet.index in POSITIONS:
        for leaf, mask in enumerate(jax.tree.leaves(packet.mask)):
            nnz = entries[..., leaf]
            unary = None if measured is None else measured[..., leaf]
            positions += position_bits(packet.index, mask.shape, nnz, unary, numbers)
    return Bits(sent * values, sent * fresh * positions + whole(packet.optional))
