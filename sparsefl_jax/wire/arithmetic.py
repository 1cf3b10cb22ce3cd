"""Arithmetic coding of zeros and ones whose numbers are known, on the host.

Rissanen, "Generalized Kraft inequality and arithmetic coding", IBM J. Res. Dev. 1976;
with a range and carries, Martin, "Range encoding", 1979. Sender and receiver know n and
k, the number of ones: a one narrows the interval to k / n of its length, a zero to
(n - k) / n. With H the entropy of k / n in bits, a stream takes at least ceil(n H)
bits and at most two more; it is empty if all values are equal. That holds for n < 2^31:
a step rounds by less than 1 in at least 2^32, and all steps by less than a bit.

Bits are counted in `Numbers`: exact on the host, float32 on the device.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

WORD = 32  # bits that leave the register together
LOW, FULL = (1 << WORD) - 1, 1 << 2 * WORD  # the register holds two words


class Numbers(NamedTuple):
    """A library of arrays, and its types for whole and for real numbers."""

    xp: Any  # numpy or jax.numpy
    whole_type: Any
    real_type: Any

    def whole(self, value: Any) -> Any:
        """Returns a whole number, or an array of them, for counting bits."""
        return self.xp.asarray(value, self.whole_type)

    def real(self, value: Any) -> Any:
        """Returns a real number, or an array of them."""
        return self.xp.asarray(value, self.real_type)


HOST = Numbers(np, np.int64, np.float64)
DEVICE = Numbers(jnp, jnp.float32, jnp.float32)  # bits overflow its int32


def encode(values: np.ndarray) -> np.ndarray:
    """Writes zeros and ones; the receiver has to know how many there are of each.

    Args:
      values: n of any shape, bool, or integers 0 and 1; n < 2^31.

    Returns:
      The stream's bits, [length] uint8.

    Example:
      >>> len(encode(np.arange(1000) < 10))  # 1000 H(0.01) = 80.8
      82
    """
    ones = np.asarray(values, bool).reshape(-1)
    n, zeros = ones.size, ones.size - int(ones.sum())
    if zeros in (0, n):
        return np.zeros(0, np.uint8)
    start, length, words = 0, FULL, []  # a word may be one bit too long: a carry
    for one in ones.tolist():
        split = length * zeros // n
        if one:
            start += split
            length -= split
        else:
            length = split
        if length <= LOW:
            words.append(start >> WORD)
            start = (start & LOW) << WORD
            length <<= WORD
    width = _tail_width(length)
    cell = -(-start // (1 << 2 * WORD - width))
    carry = cell >> width
    for i in reversed(range(len(words))):
        carried = words[i] + carry
        words[i], carry = carried & LOW, carried >> WORD
    tail = (cell >> np.arange(width - 1, -1, -1)).astype(np.uint8) & 1
    return np.concatenate([np.unpackbits(np.array(words, ">u4").view(np.uint8)), tail])


def decode(stream: np.ndarray, n: int, ones: int) -> tuple[np.ndarray, int]:
    """Reads what `encode` wrote.

    Args:
      stream: its bits, uint8; more may follow.
      n: how many values there are.
      ones: how many of them are 1.

    Returns:
      [n] bool, and how many bits were read.

    Example:
      >>> values, taken = decode(encode([0, 1, 1, 0, 1]), 5, 3)
      >>> values.astype(int).tolist(), taken
      ([0, 1, 1, 0, 1], 6)
    """
    zeros = n - ones
    if zeros in (0, n):
        return np.full(n, ones > 0), 0
    bits = np.zeros(-(-stream.size // WORD) * WORD + 2 * WORD, np.uint8)
    bits[: stream.size] = stream
    words = np.packbits(bits).view(">u4").tolist()
    offset, length = (words[0] << WORD) | words[1], FULL  # in the interval
    later, values, left = iter(words[2:]), [], 0  # left: words out of the register
    for _ in range(n):
        split = length * zeros // n
        one = offset >= split
        values.append(one)
        if one:
            offset -= split
            length -= split
        else:
            length = split
        if length <= LOW:
            offset = (offset << WORD) | next(later, 0)
            length <<= WORD
            left += 1
    return np.array(values, bool), left * WORD + _tail_width(length)


def entropy_bits(
    n: np.ndarray | int, ones: np.ndarray | int, numbers: Numbers = HOST
) -> np.ndarray:
    """Returns n H(ones / n): the bits of zeros and ones whose numbers are known.

    Args:
      n: how many values there are, of any shape.
      ones: how many of them are 1.
      numbers: where to compute: `HOST` or `DEVICE`.

    Returns:
      float64, or float32 on the device; the common shape of both.

    Example:
      >>> entropy_bits(np.array([0, 7, 8, 8]), np.array([0, 7, 4, 1])).tolist()
      [0.0, 0.0, 8.0, 4.3485]
    """
    xp, n, ones = numbers.xp, numbers.real(n), numbers.real(ones)
    total = numbers.real(xp.zeros(xp.broadcast_shapes(n.shape, ones.shape)))
    for k in (ones, n - ones):
        share = xp.where(k > 0, k, 1.0) / xp.where(k > 0, n, 1.0)
        total = total - k * xp.log2(share)
    return total


def zeros_and_ones_bits(n: Any, ones: Any, numbers: Numbers = HOST) -> Any:
    """Returns what values under index `entropy` take: w(n + 1) + ceil(n H(ones / n)).

    Args:
      n: how many zeros and ones there are, whole `numbers` of any shape.
      ones: how many of them are 1, likewise.
      numbers: where to count: `HOST` or `DEVICE`.

    Example:
      >>> zeros_and_ones_bits(np.array(8), np.array(4)).item()  # 4 bits hold n
      12
    """
    digits = numbers.xp.frexp(numbers.real(n))[1]  # binary digits of n: w(n + 1)
    bits = numbers.xp.ceil(entropy_bits(n, ones, numbers))
    return numbers.whole(digits) + numbers.whole(bits)


def _tail_width(length: int) -> int:
    """Returns the bits of the shortest cell of a power of two in a final interval."""
    return 2 * WORD + 2 - length.bit_length()
