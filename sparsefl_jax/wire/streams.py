"""Byte streams of packets, written and read with NumPy on the host.

They prove the counted bits: `len(encode(packet))` is what `packets.packet_bits`
charges, rounded up to a byte; with the index "entropy" up to two bits more. A packet is
one bit stream, most significant bit first: leaf after leaf its positions, then its
values, but with "entropy" the values of all leaves at the end. `packets` documents the
formats.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.wire import arithmetic, packets


def encode(packet: packets.Packet) -> bytes:
    """The bytes that travel for one packet of one client.

    Args:
      packet: concrete arrays; `fresh` and `sent` bool scalars.

    Returns:
      The stream; empty where nothing was sent.

    Raises:
      ValueError: an integer code does not fit `bits`, or a dtype does not.

    Example:
      >>> mask = jnp.array([True, False, True])
      >>> packet = packets.Packet(jnp.ones(3), mask, index='bitmap')
      >>> len(encode(packet))
      9
    """
    packets.layout({"packet": packet})
    if not bool(packet.sent):
        return b""
    stream = []
    for values, mask in _leaves(packet):
        if _positions_travel(packet):
            stream.append(_write_positions(packet.index, mask))
        if packet.bits:
            stream.append(_write(_codes(values[mask], packet.bits), packet.bits))
    joined = np.concatenate(stream) if stream else np.zeros(0, np.uint8)
    if packet.index == "entropy":
        ones = _write(joined.sum(keepdims=True), joined.size.bit_length())
        joined = np.concatenate([ones, arithmetic.encode(joined)])
    return np.packbits(joined).tobytes()


def decode(data: bytes, like: packets.Packet) -> packets.Packet:
    """Read what `encode` wrote.

    Args:
      data: the stream.
      like: what the receiver knows: shapes, dtypes, `bits`, `index`, `fresh`, `sent`;
        the mask that it holds, used where positions did not travel; the values that
        are common knowledge, used where bits = 0.

    Returns:
      The packet in NumPy arrays: exact zeros outside the mask, and everywhere where
      nothing was sent.

    Example:
      >>> packet = packets.Packet(jnp.array([0., 2.]), jnp.array([False, True]),
      ...                       index='coo')
      >>> decode(encode(packet), packet).values.tolist()
      [0.0, 2.0]
    """
    if not bool(like.sent):
        blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like.values)
        return dataclasses.replace(like, values=blank)
    stream = np.unpackbits(np.frombuffer(data, np.uint8))
    values, found, at = [], [], 0
    leaves = _leaves(like, known=like.bits == 0)
    if like.index == "entropy":
        n = sum(int(mask.sum()) for _, mask in leaves)
        header = n.bit_length()
        ones = int(_read(stream, 1, header)[0])
        stream = arithmetic.decode(stream[header:], n, ones).astype(np.uint8)
    for leaf, mask in leaves:
        if _positions_travel(like):
            mask, used = _read_positions(like.index, stream[at:], leaf.shape)
            at += used
        out = np.zeros(leaf.shape, leaf.dtype)
        if like.bits:
            nnz = int(mask.sum())
            codes = _read(stream[at : at + nnz * like.bits], nnz, like.bits)
            out[mask] = _decoded(codes, leaf.dtype, like.bits)
            at += nnz * like.bits
        else:
            out[mask] = np.asarray(leaf)[mask]
        values.append(out)
        found.append(mask)
    treedef = jax.tree.structure(like.values)
    masked = like.mask is not None
    return dataclasses.replace(
        like,
        values=jax.tree.unflatten(treedef, values),
        mask=jax.tree.unflatten(treedef, found) if masked else None,
    )


def _leaves(packet: packets.Packet, known: bool = True) -> list:
    """(values, mask) per leaf; values stay shapes where they are not `known`."""
    values = jax.tree.leaves(packet.values)
    values = [np.asarray(v) for v in values] if known else values
    if packet.mask is None:
        return [(v, np.ones(v.shape, bool)) for v in values]
    if _positions_travel(packet) and not known:
        return [(v, None) for v in values]
    held = [np.asarray(m) for m in jax.tree.leaves(packet.mask)]
    return list(zip(values, held, strict=True))


def _positions_travel(packet: packets.Packet) -> bool:
    masked = packet.mask is not None
    return packet.index in packets.POSITIONS and masked and bool(packet.fresh)


def _write(codes: np.ndarray, width: int) -> np.ndarray:
    """Unsigned codes as bits, `width` each; uint8 zeros and ones."""
    octets = codes.reshape(-1, 1).astype(">u4").view(np.uint8)
    return np.unpackbits(octets, axis=1)[:, 32 - width :].reshape(-1)


def _read(stream: np.ndarray, n: int, width: int) -> np.ndarray:
    """The first n codes of a stream; [n] uint32."""
    padded = np.zeros((n, 32), np.uint8)
    padded[:, 32 - width :] = stream[: n * width].reshape(n, width)
    return np.packbits(padded, axis=1).view(">u4").reshape(n).astype(np.uint32)


def _codes(values: np.ndarray, width: int) -> np.ndarray:
    """Unsigned codes: a float's bit pattern, an integer's two's complement."""
    if jnp.issubdtype(values.dtype, jnp.floating):
        return values.view(f"u{values.dtype.itemsize}").astype(np.uint32)
    signed = np.issubdtype(values.dtype, np.signedinteger)
    low, high = (-(1 << width - 1), 1 << width - 1) if signed else (0, 1 << width)
    wide = values.astype(np.int64)
    if wide.size and (wide.min() < low or wide.max() >= high):
        raise ValueError(
            f"bits={width} but codes reach from {wide.min()} to {wide.max()},"
            f" expected {low} to {high - 1}."
        )
    return (wide & ((1 << width) - 1)).astype(np.uint32)


def _decoded(codes: np.ndarray, dtype: np.dtype, width: int) -> np.ndarray:
    """The inverse of `_codes`."""
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return codes.astype(f"u{dtype.itemsize}").view(dtype)
    wide = codes.astype(np.int64)
    if np.issubdtype(dtype, np.signedinteger):
        wide -= (wide >> (width - 1)) << width
    return wide.astype(dtype)


def _rows_by_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """The csr view of a leaf: outputs, the last axis, by all others."""
    rows = shape[-1] if shape else 1
    return rows, math.prod(shape) // max(rows, 1)


def _write_positions(index: str, mask: np.ndarray) -> np.ndarray:
    """The positions of a leaf's True entries as bits."""
    if index == "bitmap":
        return mask.reshape(-1).astype(np.uint8)
    nnz = np.array([mask.sum()])
    header, pointers, width = packets.position_widths(index, mask.shape)
    if index == "coo":
        where = np.flatnonzero(mask)
        return np.concatenate([_write(nnz, header), _write(where, width)])
    rows, columns = _rows_by_columns(mask.shape)
    matrix = mask.reshape(columns, rows).T
    starts = np.concatenate([[0], np.cumsum(matrix.sum(1))])
    pointer = int(packets.pointer_width(nnz)[0])
    return np.concatenate(
        [
            _write(nnz, header),
            _write(starts, pointer),
            _write(np.nonzero(matrix)[1], width),
        ]
    )


def _read_positions(index: str, stream: np.ndarray, shape: tuple[int, ...]):
    """The mask of a leaf, and how many bits it took."""
    size = math.prod(shape)
    if index == "bitmap":
        return stream[:size].astype(bool).reshape(shape), size
    header, pointers, width = packets.position_widths(index, shape)
    nnz = int(_read(stream, 1, header)[0])
    if index == "coo":
        flat = np.zeros(size, bool)
        flat[_read(stream[header:], nnz, width)] = True
        return flat.reshape(shape), header + nnz * width
    rows, columns = _rows_by_columns(shape)
    pointer = int(packets.pointer_width(nnz))
    body = header + pointers * pointer
    starts = _read(stream[header:], pointers, pointer).astype(np.int64)
    matrix = np.zeros((rows, columns), bool)
    row = np.repeat(np.arange(rows), np.diff(starts))
    matrix[row, _read(stream[body:], nnz, width)] = True
    return matrix.T.reshape(shape), body + nnz * width
