"""How a packet encodes positions: the codes, their bits and their bytes.

For one leaf with `size` entries of which `nnz` travel, w(n) = ceil(log2(n)) and H the
entropy in bits, a code takes this many bits:

    bitmap  size
    coo     w(size + 1) + nnz * w(max(size, 2))
    golomb  w(size + 1) + nnz * b + sum of ceil(gap / 2^b), see below
    packed  w(size + 1) + ceil(size * H(nnz / size)), see `arithmetic`

The leading w(size + 1) bits hold nnz, without which no receiver could cut the stream
into leaves. The stream of packed is as long as that or up to two bits longer.

Golomb is Golomb-Rice codes of the gaps between positions, as Sattler et al. write them,
"Robust and Communication-Efficient Federated Learning from Non-IID Data", TNNLS 2019,
https://arxiv.org/abs/1903.02891. The gap g between two of k positions among n, in flat
order, is written as floor((g - 1) / 2^b) ones, a zero, and the b low bits of g - 1.
With the golden ratio phi and q = (k + 1) / (n + 1),

    b = max(0, 1 + floor(log2(ln(phi - 1) / ln(1 - q))))

is the best b for positions drawn at random. It falls in steps as k grows; the device,
the encoder and the decoder all read it from one table of these steps.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import Array
from sparsefl_jax.wire import arithmetic
from sparsefl_jax.wire.arithmetic import HOST, Numbers

Index = Literal["bitmap", "coo", "golomb", "packed"]
_GOLDEN = math.log((math.sqrt(5) - 1) / 2)  # ln(phi - 1)


class Code(NamedTuple):
    """A code of positions without the bits that hold nnz.

    Attributes:
      bits: `(shape, nnz, unary, numbers) -> bits`, as in `position_bits`.
      write: `(mask) -> stream`.
      read: `(stream, shape, nnz) -> (mask, taken)`; the mask may be flat.
      header: whether the stream begins with nnz.
      measure: `(mask) -> int32`, on the device: what `bits` takes as `unary`; None if
        it reads no more than nnz.
    """

    bits: Callable
    write: Callable
    read: Callable
    header: bool = True
    measure: Callable | None = None


def position_bits(
    index: str,
    shape: tuple[int, ...],
    nnz: np.ndarray,
    unary: np.ndarray | int | None = None,
    numbers: Numbers = HOST,
) -> np.ndarray:
    """Returns the bits that name the positions of some entries of one leaf.

    Args:
      index: one of `POSITIONS`.
      shape: of the leaf.
      nnz: how many entries travel, whole `numbers` of any shape.
      unary: `unary_bits` of the same masks, which 'golomb' alone reads.
      numbers: where to count: `HOST` or `DEVICE`.

    Returns:
      Whole `numbers`, the shape of `nnz`.

    Example:
      >>> nnz, codes = np.array([0, 3]), ("bitmap", "coo", "packed")
      >>> [position_bits(index, (4, 2), nnz).tolist() for index in codes]
      [[8, 8], [4, 13], [4, 12]]
    """
    code, header = POSITIONS[index], math.prod(shape).bit_length()
    return code.header * header + code.bits(shape, nnz, unary, numbers)


def write_positions(index: str, mask: np.ndarray) -> np.ndarray:
    """Writes the positions of a leaf's True entries.

    Args:
      index: one of `POSITIONS`.
      mask: bool, the shape of the leaf.

    Returns:
      uint8, zeros and ones, `position_bits` of them.

    Example:
      >>> write_positions("coo", np.array([False, True, True])).tolist()  # 2: 1, 2
      [1, 0, 0, 1, 1, 0]
    """
    code = POSITIONS[index]
    width = code.header * mask.size.bit_length()
    return np.concatenate([write(np.array([mask.sum()]), width), code.write(mask)])


def read_positions(
    index: str, stream: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, int]:
    """Reads what `write_positions` wrote.

    Args:
      index: one of `POSITIONS`.
      stream: uint8 zeros and ones; more may follow.
      shape: of the leaf.

    Returns:
      The leaf's mask, bool, and how many bits it took.

    Example:
      >>> mask, taken = read_positions("coo", np.array([1, 0, 0, 1, 1, 0]), (3,))
      >>> mask.tolist(), taken
      ([False, True, True], 6)
    """
    code = POSITIONS[index]
    width = code.header * math.prod(shape).bit_length()
    nnz = int(read(stream, 1, width)[0])
    mask, taken = code.read(stream[width:], shape, nnz)
    return mask.reshape(shape), width + taken


def _bitmap_bits(shape, nnz, unary, numbers):
    return numbers.xp.full_like(nnz, math.prod(shape))


def _write_bitmap(mask):
    return mask.reshape(-1).astype(np.uint8)


def _read_bitmap(stream, shape, nnz):
    size = math.prod(shape)
    return stream[:size].astype(bool), size


def _coo_bits(shape, nnz, unary, numbers):
    return nnz * _entry_width(math.prod(shape))


def _write_coo(mask):
    return write(np.flatnonzero(mask), _entry_width(mask.size))


def _read_coo(stream, shape, nnz):
    flat, width = np.zeros(math.prod(shape), bool), _entry_width(math.prod(shape))
    flat[read(stream, nnz, width)] = True
    return flat, nnz * width


def _packed_bits(shape, nnz, unary, numbers=HOST):
    bits = arithmetic.entropy_bits(math.prod(shape), nnz, numbers)
    return numbers.whole(numbers.xp.ceil(bits))


def _read_packed(stream, shape, nnz):
    # Reads no further than a stream can be: what follows may be long.
    end = int(_packed_bits(shape, np.array(nnz), None)) + 2
    return arithmetic.decode(stream[:end], math.prod(shape), nnz)


def _golomb_bits(shape, nnz, unary, numbers):
    return nnz * _low_bits(math.prod(shape), nnz, numbers) + unary


def gap_steps(size: int) -> np.ndarray:
    """Returns, for b = 1, 2, ..., the largest k that is written with at least b bits.

    So the b for k positions is the number of steps that are at least k.

    Args:
      size: n, the entries of the leaf.

    Returns:
      int32, falling; as many as the largest b.

    Example:
      >>> gap_steps(100).tolist(), int((gap_steps(100) >= 5).sum())  # 5 of 100: b = 3
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
    low = jnp.sum(jnp.asarray(gap_steps(flat.size)) >= k, dtype=jnp.int32)
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
    text, at = (stream + ord("0")).tobytes().decode(), 0
    place, flat = -1, np.zeros(size, bool)
    for _ in range(k):
        zero = text.index("0", at)
        end = zero + 1 + low
        place += ((zero - at) << low) + int(text[zero:end], 2) + 1
        flat[place] = True
        at = end
    return flat, at


def _low_bits(
    size: int, k: np.ndarray | int, numbers: Numbers = HOST
) -> np.ndarray | int:
    """Returns b, the low bits of each code where k of the leaf's entries are True."""
    return (numbers.whole(gap_steps(size)) >= numbers.whole(k)[..., None]).sum(-1)


POSITIONS = {
    "bitmap": Code(_bitmap_bits, _write_bitmap, _read_bitmap, header=False),
    "coo": Code(_coo_bits, _write_coo, _read_coo),
    "golomb": Code(_golomb_bits, write_gaps, read_gaps, measure=unary_bits),
    "packed": Code(_packed_bits, arithmetic.encode, _read_packed),
}


def _entry_width(size: int) -> int:
    """Returns the bits of one of `size` positions, at least 1."""
    return (max(size, 2) - 1).bit_length()


def write(codes: np.ndarray, width: int) -> np.ndarray:
    """Writes unsigned codes as bits.

    Args:
      codes: [n] unsigned integers below 2^width.
      width: bits of one code, 0 to 32.

    Returns:
      [n * width] uint8, zeros and ones.

    Example:
      >>> write(np.array([1, 6]), 3).tolist()
      [0, 0, 1, 1, 1, 0]
    """
    octets = codes.reshape(-1, 1).astype(">u4").view(np.uint8)
    return np.unpackbits(octets, axis=1)[:, 32 - width :].reshape(-1)


def read(stream: np.ndarray, n: int, width: int) -> np.ndarray:
    """Reads the first n codes of a stream.

    Args:
      stream: [n * width] uint8 zeros and ones; more may follow.
      n: how many codes.
      width: bits of one code, 0 to 32.

    Returns:
      [n] uint32.

    Example:
      >>> read(np.array([0, 0, 1, 1, 1, 0]), 2, 3).tolist()
      [1, 6]
    """
    padded = np.zeros((n, 32), np.uint8)
    padded[:, 32 - width :] = stream[: n * width].reshape(n, width)
    return np.packbits(padded, axis=1).view(">u4").reshape(n).astype(np.uint32)
