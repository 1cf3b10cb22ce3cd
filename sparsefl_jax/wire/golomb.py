"""Golomb-Rice codes of the gaps between the positions that travel.

Sattler et al., "Robust and Communication-Efficient Federated Learning from Non-IID
Data", TNNLS 2019, https://arxiv.org/abs/1903.02891, write positions in this way. The
gap g between two of k positions among n, in flat order, is written as
floor((g - 1) / 2^b) ones, a zero, and the b low bits of g - 1. With the golden ratio
phi and q = (k + 1) / (n + 1),

    b = max(0, 1 + floor(log2(ln(phi - 1) / ln(1 - q))))

is the best b for positions drawn at random. It falls in steps as k grows; the device,
the encoder and the decoder all read it from one table of these steps.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import Array
from sparsefl_jax.wire.numbers import HOST, Numbers

_GOLDEN = math.log((math.sqrt(5) - 1) / 2)  # ln(phi - 1)


def steps(size: int) -> np.ndarray:
    """Returns, for b = 1, 2, ..., the largest k that is written with at least b bits.

    So the b for k positions is the number of steps that are at least k.

    Args:
      size: n, the entries of the leaf.

    Returns:
      int32, falling; as many as the largest b.

    Example:
      >>> steps(100).tolist(), int((steps(100) >= 5).sum())  # 5 of 100: b = 3
      ([37, 20, 10, 4, 1], 3)
    """
    largest = []
    while not largest or largest[-1] >= 1:
        share = -math.expm1(_GOLDEN / 2 ** len(largest))
        largest.append(math.floor((size + 1) * share - 1))
    return np.array(largest[:-1], np.int32)


def unary_bits(mask: Array) -> Array:
    """Counts the bits of all codes of a leaf but the b low ones, on the device.

    Args:
      mask: bool, the leaf's positions.

    Returns:
      The sum of ceil(g / 2^b) over the gaps; shape=(), int32.

    Example:
      >>> unary_bits(jnp.array([False, True, True, False, True])).item()  # b = 0
      5
    """
    flat = mask.reshape(-1)
    k = jnp.sum(flat, dtype=jnp.int32)
    low = jnp.sum(jnp.asarray(steps(flat.size)) >= k, dtype=jnp.int32)
    place = jnp.arange(1, flat.size + 1, dtype=jnp.int32)
    last = jax.lax.cummax(jnp.where(flat, place, jnp.zeros_like(place)))
    gaps = place - jnp.concatenate([jnp.zeros(1, jnp.int32), last[:-1]])
    digits = ((gaps - 1) >> low) + 1
    return jnp.sum(jnp.where(flat, digits, jnp.zeros_like(digits)), dtype=jnp.int32)


def write_gaps(mask: np.ndarray) -> np.ndarray:
    """Writes the gaps between the True entries.

    Args:
      mask: a leaf's, bool.

    Returns:
      The stream's bits, uint8.

    Example:
      >>> write_gaps(np.array([False, True, True, False, True])).tolist()
      [1, 0, 0, 1, 0]
    """
    places = np.flatnonzero(mask)
    low = int(_low_bits(mask.size, places.size))
    words = []
    for rest in (np.diff(places, prepend=-1) - 1).tolist():
        ones, rest = divmod(rest, 1 << low)
        words.append("1" * ones + "0" + (format(rest, f"0{low}b") if low else ""))
    return np.frombuffer("".join(words).encode(), np.uint8) - ord("0")


def read_gaps(
    stream: np.ndarray, shape: tuple[int, ...], k: int
) -> tuple[np.ndarray, int]:
    """Reads what `write_gaps` wrote.

    Args:
      stream: uint8 zeros and ones; more may follow.
      shape: that of the leaf, of n entries.
      k: how many of them are True.

    Returns:
      [n] bool, and how many bits were read.

    Example:
      >>> flat, taken = read_gaps(np.uint8([1, 0, 0, 1, 0]), (5,), 3)
      >>> flat.tolist(), taken
      ([False, True, True, False, True], 5)
    """
    size = math.prod(shape)
    low = int(_low_bits(size, k))
    stream = stream[: k * low + most_unary(size, k)]
    text, at = (stream + ord("0")).tobytes().decode(), 0
    place, flat = -1, np.zeros(size, bool)
    for _ in range(k):
        zero = text.index("0", at)
        end = zero + 1 + low
        place += ((zero - at) << low) + int(text[zero:end], 2) + 1
        flat[place] = True
        at = end
    return flat, at


def position_bits(
    shape: tuple[int, ...],
    nnz: np.ndarray,
    unary: np.ndarray,
    numbers: Numbers = HOST,
) -> np.ndarray:
    """Returns the bits of all codes of a leaf.

    Args:
      shape: that of the leaf, of n entries.
      nnz: k, whole `numbers` of any shape.
      unary: `unary_bits` of the same masks, likewise.
      numbers: where to count: `HOST` or `DEVICE`.

    Returns:
      Whole `numbers`, the shape of `nnz`.

    Example:
      >>> position_bits((100,), np.array([5]), np.array([9])).tolist()  # b = 3
      [24]
    """
    return nnz * _low_bits(math.prod(shape), nnz, numbers) + unary


def most_unary(size: int, nnz: np.ndarray | int) -> np.ndarray | int:
    """Returns the largest `unary_bits` that masks of nnz entries can have.

    Example:
      >>> int(most_unary(100, 5))  # b = 3: five zeros and 95 / 8 ones
      16
    """
    return nnz + ((size - nnz) >> _low_bits(size, nnz))


def _low_bits(
    size: int, k: np.ndarray | int, numbers: Numbers = HOST
) -> np.ndarray | int:
    """Returns b, the low bits of each code where k of the leaf's entries are True."""
    return (numbers.whole(steps(size)) >= numbers.whole(k)[..., None]).sum(-1)
