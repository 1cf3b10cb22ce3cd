"""FLASH's printed savings: bits of values alone.

Babakniya et al., TMLR 2023, https://arxiv.org/abs/2208.13092.
"""

from collections.abc import Iterable

import numpy as np

from sparsefl_jax.wire.charges import message_bits
from sparsefl_jax.wire.packets import Count, Message


def values_only_bits(
    layout: Message,
    count: dict[str, Count],
    names: Iterable[str],
    *,
    words: int = 1,
) -> int:
    """Views the bits of some packets' values, without positions, over all clients.

    FLASH (TMLR 2023) computes its savings this way: "CSR" without the indices, and
    without normalisation statistics. ZeroFL's figures, which it quotes, charge two
    words a value.

    Args:
      layout: as `packets.layout` returns it.
      count: as `packets.count` returns it, any leading axes.
      names: the packets that the figure charges.
      words: words charged per value.

    Example:
      >>> from sparsefl_jax.wire.packets import Packet
      >>> layout = {'up': Packet(np.zeros(3), np.zeros(3, bool), index='bitmap')}
      >>> count = Count(np.array([[2]]), np.array([True]), np.array([True]))
      >>> values_only_bits(layout, {'up': count}, ['up'])
      64
    """
    chosen = {name: layout[name] for name in names}
    return words * int(np.sum(message_bits(chosen, count).values))
