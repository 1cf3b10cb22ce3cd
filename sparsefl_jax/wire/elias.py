"""Elias omega codes of signed levels: how QSGD writes them.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017, https://arxiv.org/abs/1610.02132. The n levels l of a norm, up
to s = 2^(bits - 1) - 1 in size, are written in one of two ways:

    sparse  s < sqrt(n): for l != 0 omega(gap from the one before), omega(|l|), a sign
    dense   s >= sqrt(n): for every l omega(|l| + 1), and a sign if l != 0

omega(m) takes 1 bit for m = 1, and for others 1 + floor(log2 m) more than that of
floor(log2 m): 1, 3, 6, 7, 11 bits from m = 1, 2, 4, 8, 16 on (Elias, IEEE Trans. Inf.
Theory 1975). Before sparse levels stand ceil(log2(n + 1)) bits with their number,
without which no receiver could cut it. A shorter last bucket is written as if full.
"""

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array
from sparsefl_jax.wire.codes import from_codes, to_codes
from sparsefl_jax.wire.golomb import gaps


def level_bits(levels: Array, bits: int, bucket: int = 0) -> Array:
    """Counts the bits of a leaf's levels, on the device.

    Args:
      levels: integers of any shape.
      bits: of a level with its sign, 2 to 8.
      bucket: n, how many entries share a norm; 0: all.

    Returns:
      shape=(), int32.

    Raises:
      ValueError: the code of so many levels can be longer than int32 counts.

    Example:
      >>> levels = jnp.array([0, -1, 0, 0, 2])
      >>> level_bits(levels, 2).item()  # sparse: 3, then 3 + 1 + 1 and 3 + 3 + 1
      15
      >>> level_bits(levels, 3).item()  # dense: 1, 3 + 1, 1, 1, 3 + 1
      11
    """
    if (longest := most(levels.size, bits, bucket)) >= 2**31:
        raise UserError(
            f"a leaf of {levels.size} levels may take {longest} bits with index="
            f"'elias', bits={bits}; expected fewer than 2^31."
        )
    n, sparse = _buckets(levels.size, bits, bucket)
    flat = jnp.abs(levels.reshape(-1).astype(jnp.int32))
    if not sparse:  # static branch
        signs = (flat > 0).astype(jnp.int32)
        return jnp.sum(_omega_bits(flat + 1) + signs, dtype=jnp.int32)
    rows = jnp.pad(flat, (0, -flat.size % n)).reshape(-1, n)
    gap = jnp.maximum(jax.vmap(gaps)(rows > 0), 1)
    each = _omega_bits(gap) + 1 + _omega_bits(jnp.maximum(rows, 1))
    each = jnp.where(rows > 0, each, jnp.zeros_like(each))
    return jnp.sum(each, dtype=jnp.int32) + jnp.int32(len(rows) * n.bit_length())


def most(size: int, bits: int, bucket: int = 0) -> int:
    """Returns the most that `level_bits` of so many levels can be.

    Example:
      >>> most(5, 2), most(5, 3)  # five times s = 1 or 3
      (18, 35)
    """
    n, sparse = _buckets(size, bits, bucket)
    if not sparse:
        return size * (len(_omega(_largest(bits) + 1)) + 1)
    each = 1 + len(_omega(_largest(bits))) + 1  # a gap of 1 costs most an entry
    return -(-size // n) * n.bit_length() + size * each


def write(codes: list[np.ndarray], bits: int, bucket: int = 0) -> np.ndarray:
    """Writes leaves of levels, which come as codes in two's complement of `bits`.

    Raises:
      ValueError: a level is larger than s.

    Example:
      >>> write([np.array([0, 1, 7])], 3).tolist()  # 0, 100 +, 100 -
      [0, 1, 0, 0, 0, 1, 0, 0, 1]
    """
    words = []
    for leaf in codes:
        levels = from_codes(leaf, np.int32, bits)
        if np.abs(levels).max(initial=0) > _largest(bits):
            allowed = f"{-_largest(bits)} to {_largest(bits)}"
            raise UserError(f"level={levels.min()}, expected {allowed}, bits={bits}.")
        n, sparse = _buckets(levels.size, bits, bucket)
        for part in np.split(levels, range(n, levels.size, n)):
            places = np.flatnonzero(part) if sparse else np.arange(part.size)
            if sparse:
                words.append(format(places.size, f"0{n.bit_length()}b"))
            pairs = np.diff(places, prepend=-1).tolist(), part[places].tolist()
            for gap, level in zip(*pairs, strict=True):
                place = _omega(gap) if sparse else ""
                sign = "01"[level < 0] if level else ""
                words.append(place + _omega(abs(level) + (not sparse)) + sign)
    return np.frombuffer("".join(words).encode(), np.uint8) - ord("0")


def read(
    stream: np.ndarray, sizes: list[int], bits: int, bucket: int = 0
) -> list[np.ndarray]:
    """Reads what `write` wrote, as leaves of so many levels; more may follow.

    Example:
      >>> read(np.array([0, 1, 0, 0, 0, 1, 0, 0, 1], np.uint8), [3], 3)[0].tolist()
      [0, 1, 7]
    """
    text, at, codes = (stream + ord("0")).tobytes().decode(), 0, []
    for size in sizes:
        levels = np.zeros(size, np.int32)
        n, sparse = _buckets(size, bits, bucket)
        for start in range(0, size, n):
            part, place = levels[start : start + n], -1
            count = part.size
            if sparse:
                begin = at + n.bit_length()
                count, at = int(text[at:begin], 2), begin
            for _ in range(count):
                gap, at = _read_omega(text, at) if sparse else (1, at)
                level, at = _read_omega(text, at)
                place, level = place + gap, level - (not sparse)
                if level:
                    part[place] = -level if text[at] == "1" else level
                    at += 1
        codes.append(to_codes(levels, bits))
    return codes


def _buckets(size: int, bits: int, bucket: int) -> tuple[int, bool]:
    """Returns the entries n of a bucket, and whether they are written as sparse."""
    n = max(min(bucket or size, size), 1)
    return n, _largest(bits) ** 2 < n


def _largest(bits: int) -> int:
    """Returns s."""
    return 2 ** (bits - 1) - 1


def _omega_bits(m: Array) -> Array:
    """Returns the lengths of codes of m >= 1, int32."""
    total = jnp.ones_like(m)
    for _ in range(4):  # after which nothing below 2^32 is left
        digits = 32 - jax.lax.clz(m)
        total += jnp.where(m > 1, digits, jnp.zeros_like(m))
        m = jnp.maximum(digits - 1, 1)
    return total


def _omega(m: int) -> str:
    """Returns the code of m >= 1: '0' behind m, its digits less 1, theirs, ..."""
    code = "0"
    while m > 1:
        digits = format(m, "b")
        code, m = digits + code, len(digits) - 1
    return code


def _read_omega(text: str, at: int) -> tuple[int, int]:
    """Returns the m whose code begins at `text[at]`, and where it ends."""
    m = 1
    while text[at] == "1":
        at, m = at + m + 1, int(text[at : at + m + 1], 2)
    return m, at + 1
