"""Codes of values: indexes under which a value takes as many bits as it needs.

Under any other index each value takes the packet's `bits`. With `entropy`, n zeros and
ones of all leaves of a packet together, of which k are ones, take

    w(n + 1) + ceil(n H(k / n)),  w(n) = ceil(log2(n)), H the entropy in bits

The stream is that of the positions of ones under `packed`, as long as that or up to two
bits longer. With `elias`, leaf by leaf, levels take what `elias` says.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import Array
from sparsefl_jax.wire import arithmetic, elias
from sparsefl_jax.wire.numbers import Numbers
from sparsefl_jax.wire.positions import read_positions, write_positions


class ValueCode(NamedTuple):
    """A code of the values of a packet, with which no positions travel.

    `bits` and `bucket` are always those of the packet. Streams hold uint8 zeros and
    ones, codes are uint32 as in `codes`, one [n] array a leaf.

    Attributes:
      measure: `(leaf, bits, bucket) -> int32`, on the device: what the length depends
        on beside the number of entries; entries outside a mask are 0.
      length: `(entries, measured, numbers) -> bits` of all leaves, which stand last in
        both, as whole `numbers`.
      most: `(size, bits, bucket) -> int`, which `measure` gives where `length` is
        largest.
      write: `(codes, bits, bucket) -> stream`.
      read: `(stream, sizes, bits, bucket) -> codes`; more may follow in the stream.
      widths: which `bits` a packet may have.
      bucketed: whether it codes leaves by buckets; these may have no mask.
      slack: how many bits a stream may be longer than `length`.
    """

    measure: Callable
    length: Callable
    most: Callable
    write: Callable
    read: Callable
    widths: range
    bucketed: bool = False
    slack: int = 0


def _ones(leaf: Array, bits: int, bucket: int) -> Array:
    return jnp.sum(leaf.astype(jnp.bool_), dtype=jnp.int32)


def _entropy_length(entries, ones, numbers: Numbers):
    n, ones = entries.sum(-1), ones.sum(-1)
    bits = numbers.xp.ceil(arithmetic.entropy_bits(n, ones, numbers))
    return numbers.width(n) + numbers.whole(bits)


def _write_entropy(codes, bits: int, bucket: int) -> np.ndarray:
    return write_positions("packed", np.concatenate([np.zeros(0, bool), *codes]) > 0)


def _read_entropy(stream, sizes, bits: int, bucket: int) -> list[np.ndarray]:
    ones, _ = read_positions("packed", stream, (sum(sizes),))
    return np.split(ones.astype(np.uint32), np.cumsum(sizes, dtype=np.int64)[:-1])


VALUES = {
    "entropy": ValueCode(
        _ones,
        _entropy_length,
        lambda size, bits, bucket: size // 2,
        _write_entropy,
        _read_entropy,
        widths=range(1, 2),
        slack=2,
    ),
    "elias": ValueCode(
        elias.level_bits,
        lambda entries, measured, numbers: measured.sum(-1),
        elias.most,
        elias.write,
        elias.read,
        widths=range(2, 9),
        bucketed=True,
    ),
}
