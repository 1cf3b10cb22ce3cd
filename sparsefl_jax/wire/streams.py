"""Byte streams of packets, written and read with NumPy on the host.

They prove the counted bits: `encode(packet)` is as long as `charges.packet_bits`
charges, rounded up to a byte; what the arithmetic coder writes may be `slack` bits
longer. A packet is one bit stream, most significant bit first. An optional one begins
with a bit that is 1 where it is sent with a fresh mask. Each leaf writes its positions
and then its values; `entropy` writes those of all leaves as `packed` does positions.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from sparsefl_jax.core.check import UserError
from sparsefl_jax.wire import positions
from sparsefl_jax.wire.packets import Packet, layout
from sparsefl_jax.wire.positions import POSITIONS, read_positions, write_positions


def encode(packet: Packet) -> bytes:
    """Writes the bytes that travel for one packet of one client.

    Args:
      packet: concrete arrays; `fresh` and `sent` bool scalars.

    Returns:
      The stream; empty where nothing was sent, but for the bit of an optional packet.

    Raises:
      ValueError: an integer code does not fit `bits`, or a dtype does not.

    Example:
      >>> mask = np.array([True, False, True])
      >>> packet = Packet(np.ones(3, np.float32), mask, index='bitmap')
      >>> len(encode(packet))
      9
    """
    layout({"packet": packet})
    first = [bool(packet.sent) and bool(packet.fresh)] if packet.optional else []
    body = _body(packet) if bool(packet.sent) else []
    return np.packbits(np.concatenate([np.array(first, np.uint8), *body])).tobytes()


def decode(data: bytes, like: Packet) -> Packet:
    """Reads what `encode` wrote.

    Args:
      data: the stream.
      like: what the receiver knows: shapes, dtypes and static fields; `fresh` and
        `sent`, of an optional packet where its bit is 0; the mask that it holds, used
        where positions did not travel; the values that are common knowledge, used where
        bits = 0.

    Returns:
      The packet in NumPy arrays: exact zeros outside the mask, and everywhere where
      nothing was sent.

    Example:
      >>> values, mask = np.array([0, 2], np.float32), np.array([False, True])
      >>> packet = Packet(values, mask, index='coo')
      >>> decode(encode(packet), packet).values.tolist()
      [0.0, 2.0]
    """
    stream = np.unpackbits(np.frombuffer(data, np.uint8))
    if like.optional:
        if stream[0]:
            like = dataclasses.replace(like, fresh=np.True_, sent=np.True_)
        stream = stream[1:]
    if not bool(like.sent):
        blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like.values)
        return dataclasses.replace(like, values=blank)
    values, masks, offset = [], [], 0
    leaves = _leaves(like)
    if like.index == "entropy":
        count = sum(int(mask.sum()) for _, mask in leaves)
        ones, _ = read_positions("packed", stream, (count,))
        stream = ones.astype(np.uint8)
    for leaf, mask in leaves:
        if _positions_travel(like):
            mask, taken = read_positions(like.index, stream[offset:], leaf.shape)
            offset += taken
        out = np.zeros(leaf.shape, leaf.dtype)
        if like.bits:
            nnz = int(mask.sum())
            codes = positions.read(stream[offset:], nnz, like.bits)
            out[mask] = from_codes(codes, leaf.dtype, like.bits)
            offset += nnz * like.bits
        else:
            out[mask] = leaf[mask]
        values.append(out)
        masks.append(mask)
    treedef = jax.tree.structure(like.values)
    mask = None if like.mask is None else jax.tree.unflatten(treedef, masks)
    values = jax.tree.unflatten(treedef, values)
    return dataclasses.replace(like, values=values, mask=mask)


def _body(packet: Packet) -> list[np.ndarray]:
    """Writes a packet that is sent, without its optional bit."""
    leaves, stream = _leaves(packet), []
    if packet.index == "entropy":
        codes = [to_codes(values[mask], packet.bits) for values, mask in leaves]
        ones = np.concatenate([np.zeros(0, bool), *codes]) > 0
        return [write_positions("packed", ones)]
    for values, mask in leaves:
        if _positions_travel(packet):
            stream.append(write_positions(packet.index, mask))
        if packet.bits:
            codes = to_codes(values[mask], packet.bits)
            stream.append(positions.write(codes, packet.bits))
    return stream


def slack(packet: Packet) -> int:
    """Returns how many bits `encode` may exceed the charge by: 2 a stream of its coder.

    Example:
      >>> mask = {'a': np.ones(2, bool), 'b': np.ones(3, bool)}
      >>> slack(Packet(mask, mask, bits=1, index='packed'))
      4
    """
    if not bool(packet.sent):
        return 0
    if packet.index == "packed" and _positions_travel(packet):
        return 2 * len(jax.tree.leaves(packet.mask))
    return 2 if packet.index == "entropy" else 0


def _leaves(packet: Packet) -> list:
    """Returns (values, mask) per leaf in NumPy; shapes stay shapes."""
    values, held = map(jax.tree.leaves, jax.device_get((packet.values, packet.mask)))
    if packet.mask is None:
        held = [np.ones(v.shape, bool) for v in values]
    return list(zip(values, held, strict=True))


def _positions_travel(packet: Packet) -> bool:
    masked = packet.mask is not None
    return packet.index in POSITIONS and masked and bool(packet.fresh)


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
