"""Numbers as codes of a fixed width, and codes as bits, most significant bit first."""

import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from sparsefl_jax.core.check import UserError


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


def to_codes(values: np.ndarray, width: int) -> np.ndarray:
    """Returns a float's bit pattern, or an integer's two's complement, as a code.

    Args:
      values: [n] floats of `width` bits, or integers of at least that many.
      width: bits of one code, 1 to 32.

    Returns:
      [n] uint32.

    Raises:
      ValueError: an integer needs more than `width` bits.

    Example:
      >>> to_codes(np.array([-1, 1], np.int8), 2).tolist()
      [3, 1]
    """
    if jnp.issubdtype(values.dtype, jnp.floating):
        return values.view(f"u{values.dtype.itemsize}").astype(np.uint32)
    signed = np.issubdtype(values.dtype, np.signedinteger)
    low, high = (-(1 << width - 1), 1 << width - 1) if signed else (0, 1 << width)
    wide = values.astype(np.int64)
    if wide.size and (wide.min() < low or wide.max() >= high):
        what = f"bits={width} but codes reach from {wide.min()} to {wide.max()}"
        raise UserError(f"{what}, expected {low} to {high - 1}.")
    return (wide & ((1 << width) - 1)).astype(np.uint32)


def from_codes(codes: np.ndarray, dtype: DTypeLike, width: int) -> np.ndarray:
    """Returns the numbers that `to_codes` encoded.

    Args:
      codes: [n] uint32.
      dtype: of the numbers.
      width: bits of one code, 1 to 32.

    Returns:
      [n] of that dtype.

    Example:
      >>> from_codes(np.array([3, 1], np.uint32), np.int8, 2).tolist()
      [-1, 1]
    """
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return codes.astype(f"u{dtype.itemsize}").view(dtype)
    wide = codes.astype(np.int64)
    if np.issubdtype(dtype, np.signedinteger):
        wide -= (wide >> (width - 1)) << width
    return wide.astype(dtype)
