"""How a packet encodes positions: the codes, their bits and their bytes.

For one leaf with `size` entries of which `nnz` travel, w(n) = ceil(log2(n)) and H the
entropy in bits, a code takes this many bits:

    bitmap  size
    coo     w(size + 1) + nnz * w(max(size, 2))
    golomb  w(size + 1) + nnz * b + sum of ceil(gap / 2^b), see `golomb`
    packed  w(size + 1) + ceil(size * H(nnz / size)), see `arithmetic`

The leading w(size + 1) bits hold nnz, without which no receiver could cut the stream
into leaves. The stream of packed is as long as that or up to two bits longer.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sparsefl_jax.wire import arithmetic, golomb
from sparsefl_jax.wire.codes import read, write
from sparsefl_jax.wire.numbers import HOST, Numbers


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
      unary: `golomb.unary_bits` of the same masks; other codes do not read it.
      numbers: where to count: `HOST` or `DEVICE`.

    Returns:
      Whole `numbers`, the shape of `nnz`.

    Example:
      >>> nnz, codes = np.array([0, 3]), ("bitmap", "coo", "packed")
      >>> [position_bits(index, (4, 2), nnz).tolist() for index in codes]
      [[8, 8], [4, 13], [4, 12]]
    """
    code, header = POSITIONS[index], _width(math.prod(shape) + 1)
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
    width = code.header * _width(mask.size + 1)
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
    width = code.header * _width(math.prod(shape) + 1)
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


POSITIONS = {
    "bitmap": Code(_bitmap_bits, _write_bitmap, _read_bitmap, header=False),
    "coo": Code(_coo_bits, _write_coo, _read_coo),
    "golomb": Code(
        golomb.position_bits,
        golomb.write_gaps,
        golomb.read_gaps,
        measure=golomb.unary_bits,
    ),
    "packed": Code(_packed_bits, arithmetic.encode, _read_packed),
}


def _width(n: int) -> int:
    """Returns ceil(log2(n)) for n >= 1."""
    return (n - 1).bit_length()


def _entry_width(size: int) -> int:
    """Returns the bits of one of `size` positions, at least 1."""
    return _width(max(size, 2))
