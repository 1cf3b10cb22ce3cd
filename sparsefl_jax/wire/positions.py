"""How a packet says where its values stand: the formats, their bits and their bytes.

For one leaf with `size` entries of which `nnz` travel, and w(n) = ceil(log2(n)), an
index takes this many bits:

    bitmap  size
    coo     w(size + 1) + nnz * w(max(size, 2))
    csr     w(size + 1) + (rows + 1) * max(w(nnz + 1), 1) + nnz * w(max(cols, 2))

The leading w(size + 1) bits hold nnz, without which no receiver could cut the stream
into leaves. In csr the rows are the last axis (the outputs) and the columns all others.
"""

import math

import numpy as np

from sparsefl_jax.wire.codes import read, write
from sparsefl_jax.wire.numbers import HOST, Numbers

POSITIONS = ("bitmap", "coo", "csr")


def position_bits(
    index: str, shape: tuple[int, ...], nnz: np.ndarray, numbers: Numbers = HOST
) -> np.ndarray:
    """Returns the bits that name the positions of some entries of one leaf.

    Args:
      index: one of `POSITIONS`.
      shape: of the leaf.
      nnz: how many entries travel, whole `numbers` of any shape.
      numbers: where to count: `HOST` or `DEVICE`.

    Returns:
      Whole `numbers`, the shape of `nnz`.

    Example:
      >>> nnz = np.array([0, 3])
      >>> [position_bits(index, (4, 2), nnz).tolist() for index in POSITIONS]
      [[8, 8], [4, 13], [7, 16]]
    """
    if index == "bitmap":
        return numbers.xp.full_like(nnz, math.prod(shape))
    header, pointers, width = _widths(index, shape)
    return header + pointers * _pointer_width(nnz, numbers) + nnz * width


def write_positions(index: str, mask: np.ndarray) -> np.ndarray:
    """Writes the positions of a leaf's True entries.

    Args:
      index: one of `POSITIONS`.
      mask: bool, the shape of the leaf.

    Returns:
      [position_bits] uint8, zeros and ones.

    Example:
      >>> write_positions("coo", np.array([False, True, True])).tolist()  # 2: 1, 2
      [1, 0, 0, 1, 1, 0]
    """
    if index == "bitmap":
        return mask.reshape(-1).astype(np.uint8)
    nnz = np.array([mask.sum()])
    header, _, width = _widths(index, mask.shape)
    if index == "coo":
        return np.concatenate([write(nnz, header), write(np.flatnonzero(mask), width)])
    rows, columns = _rows_by_columns(mask.shape)
    matrix = mask.reshape(columns, rows).T
    starts = np.concatenate([[0], np.cumsum(matrix.sum(1))])
    pointers = write(starts, int(_pointer_width(nnz)[0]))
    entries = write(np.nonzero(matrix)[1], width)
    return np.concatenate([write(nnz, header), pointers, entries])


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
    size = math.prod(shape)
    if index == "bitmap":
        return stream[:size].astype(bool).reshape(shape), size
    header, pointers, width = _widths(index, shape)
    nnz = int(read(stream, 1, header)[0])
    if index == "coo":
        flat = np.zeros(size, bool)
        flat[read(stream[header:], nnz, width)] = True
        return flat.reshape(shape), header + nnz * width
    rows, columns = _rows_by_columns(shape)
    pointer = int(_pointer_width(nnz))
    body = header + pointers * pointer
    starts = read(stream[header:], pointers, pointer).astype(np.int64)
    matrix = np.zeros((rows, columns), bool)
    row = np.repeat(np.arange(rows), np.diff(starts))
    matrix[row, read(stream[body:], nnz, width)] = True
    return matrix.T.reshape(shape), body + nnz * width


def _width(n: int) -> int:
    """Returns ceil(log2(n)) for n >= 1."""
    return (n - 1).bit_length()


def _widths(index: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Returns the bits of nnz, the number of row pointers and the bits of one entry.

    Example:
      >>> _widths('csr', (3, 3, 8, 16))
      (11, 17, 7)
    """
    size = math.prod(shape)
    if index == "coo":
        return _width(size + 1), 0, _width(max(size, 2))
    rows, columns = _rows_by_columns(shape)
    return _width(size + 1), rows + 1, _width(max(columns, 2))


def _pointer_width(nnz: np.ndarray | int, numbers: Numbers = HOST) -> np.ndarray:
    """Returns max(ceil(log2(nnz + 1)), 1), exact for arrays of integers.

    Example:
      >>> _pointer_width(np.array([0, 1, 3, 4])).tolist()
      [1, 1, 2, 3]
    """
    return numbers.xp.maximum(numbers.width(nnz), 1)


def _rows_by_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the shape of a leaf's csr matrix: its last axis by all others."""
    rows = shape[-1] if shape else 1
    return rows, math.prod(shape) // max(rows, 1)
