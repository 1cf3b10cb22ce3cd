"""Packets: what crosses the simulated network, and how many bits it takes.

A message is a `dict[str, Packet]`. Entries are counted on the device, as int32 of one
client and round; bits are int64 on the host, because they overflow int32 at once. The
byte streams that these bits measure are written and read by `encoders`.

Positions of one leaf with `size` entries of which `nnz` travel, w(n) = ceil(log2(n)):

    bitmap  size
    coo     w(size + 1) + nnz * w(max(size, 2))
    csr     w(size + 1) + (rows + 1) * max(w(nnz + 1), 1) + nnz * w(max(cols, 2))

The leading w(size + 1) bits hold nnz, without which no receiver could cut the stream
into leaves. In csr the rows are the last axis (the outputs) and the columns all others.

    entropy  w(n + 1) + ceil(n H(k / n))

codes the values, not their positions: n zeros and ones, k of them ones, over all leaves
of a packet together, by the arithmetic coder in `arithmetic`. The first bits hold k; H
is the entropy in bits. The real stream is that long, or up to two bits longer.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.sparsity import masks, trees

POSITIONS = ("bitmap", "coo", "csr")  # indexes that write where values stand
INDEXES = ("none", *POSITIONS, "entropy")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packet:
    """Values that travel together, written the same way.

    Attributes:
      values: exactly what is encoded. Integer codes when bits < 16; their scale and
          zero point are a packet of their own. A `None` leaf does not travel.
      mask: bool, treedef of `values`: where entries really travel; None: everywhere.
      fresh: bool scalar, False if the receiver already holds this mask.
      sent: bool scalar, False if nothing travels this round.
      bits: static, per value, 0 to 32; 0 = common knowledge, the values are free.
      index: static, how positions are written: `'none'`, `'bitmap'`, `'coo'` or
          `'csr'`. Charged with a fresh mask, also when bits = 0. `'entropy'` writes no
          positions but the values, as short as their share of ones allows: bits is
          1. With `'none'` and `'entropy'` a mask is free, so it has to be one that the
          receiver can tell from the round, the client's facts and keys. A packet with
          a mask names its index; one without has `'none'`.
      assumed: static, why values of 0 bits or positions under index `'none'` are free
          although the receiver cannot tell them. Law `known` passes such a packet, and
          plan, records and reports repeat the reason.

    Raises:
      ValueError: `bits` or `index` is not one of those, a mask comes without `index`,
          or `assumed` stands where everything is charged.

    Example:
      >>> Packet({'w': jnp.zeros(3)}).index
      'none'
      >>> Packet(jnp.zeros(3), jnp.ones(3, bool))
      Traceback (most recent call last):
      ValueError: index=None, expected one of none, bitmap, coo, csr, entropy for a
      packet with a mask.
    """

    values: PyTree
    mask: PyTree | None = None
    fresh: Any = True
    sent: Any = True
    bits: int = dataclasses.field(default=32, metadata={"static": True})
    index: str | None = dataclasses.field(default=None, metadata={"static": True})
    assumed: str = dataclasses.field(default="", metadata={"static": True})

    def __post_init__(self):
        if self.index is None and self.mask is None:
            object.__setattr__(self, "index", "none")
        if self.index not in INDEXES:
            where = " for a packet with a mask" if self.mask is not None else ""
            raise ValueError(
                f"index={self.index!r}, expected one of {', '.join(INDEXES)}{where}."
            )
        if not isinstance(self.bits, int) or not 0 <= self.bits <= 32:
            raise ValueError(f"bits={self.bits!r}, expected an int from 0 to 32.")
        if self.index == "entropy" and self.bits != 1:
            raise ValueError(f"bits={self.bits!r}, expected 1 with index='entropy'.")
        free = self.bits == 0 or (self.index == "none" and self.mask is not None)
        if self.assumed and not free:
            raise ValueError(
                f"assumed={self.assumed!r}, expected bits=0, or a mask with "
                "index='none': all of this packet is charged."
            )


Message = dict[str, Packet]


class Count(NamedTuple):
    """What one packet put on the wire, for one client and round."""

    entries: Array  # [leaves] int32
    fresh: Array  # shape=(), bool
    sent: Array  # shape=(), bool
    ones: Array | None = None  # [leaves] int32, of the entries; index 'entropy' only


class Layout(NamedTuple):
    """What is known about a packet before it is sent."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bits: int
    index: str
    masked: bool
    assumed: str = ""


class Bits(NamedTuple):
    """Bits on the wire, split into values and positions."""

    values: np.ndarray  # int64
    positions: np.ndarray  # int64

    @property
    def total(self) -> np.ndarray:
        """Values and positions together, int64."""
        return self.values + self.positions


def split(tree: PyTree, select: PyTree) -> tuple[PyTree, PyTree]:
    """Cut a tree in two, with None in the place of the leaves that went elsewhere.

    Args:
      tree: any pytree.
      select: tree of Python bools with the same treedef.

    Returns:
      The selected leaves and the others. None is an empty subtree to jax.

    Example:
      >>> split({'a': 1, 'b': 2}, {'a': True, 'b': False})
      ({'a': 1, 'b': None}, {'a': None, 'b': 2})
    """
    chosen = jax.tree.map(lambda s, x: x if s else None, select, tree)
    others = jax.tree.map(lambda s, x: None if s else x, select, tree)
    return chosen, others


def merge(a: PyTree, b: PyTree) -> PyTree:
    """Join what `split` cut: the leaves of `a`, and those of `b` where it has None.

    Example:
      >>> merge({'a': 1, 'b': None}, {'a': None, 'b': 2})
      {'a': 1, 'b': 2}
    """
    return jax.tree.map(
        lambda x, y: y if x is None else x, a, b, is_leaf=lambda x: x is None
    )


def stable(message: Message) -> Message:
    """The message with `fresh` and `sent` as bool arrays, so that its types never vary.

    Example:
      >>> stable({'w': Packet(jnp.zeros(3))})['w'].sent.dtype
      dtype('bool')
    """
    return {
        name: dataclasses.replace(
            packet,
            fresh=jnp.asarray(packet.fresh, jnp.bool_),
            sent=jnp.asarray(packet.sent, jnp.bool_),
        )
        for name, packet in message.items()
    }


def count(message: Message) -> dict[str, Count]:
    """The entries that each packet holds, on the device, for one client.

    Args:
      message: packets of one client; vmap for more.

    Returns:
      One `Count` per packet. A leaf counts its True mask entries, or its size; and its
      ones, where these are what the packet's length depends on.

    Example:
      >>> m = {'w': jnp.array([True, False, True])}
      >>> packet = Packet({'w': jnp.zeros(3)}, m, index='bitmap')
      >>> count({'up': packet})['up'].entries.tolist()
      [2]
    """
    counts = {}
    for name, packet in stable(message).items():
        if packet.mask is None:  # static branch
            sizes = [math.prod(x.shape) for x in jax.tree.leaves(packet.values)]
            entries = jnp.array(sizes, jnp.int32)
        else:
            entries = _trues(packet.mask)
        ones = None
        if packet.index == "entropy":  # static branch
            ones = jax.tree.map(lambda v: v.astype(jnp.bool_), packet.values)
            if packet.mask is not None:
                ones = jax.tree.map(jnp.logical_and, ones, packet.mask)
            ones = _trues(ones)
        counts[name] = Count(entries, packet.fresh, packet.sent, ones)
    return counts


def _trues(mask: PyTree) -> Array:
    """The True entries of every leaf, [leaves] int32."""
    return masks.counts(mask, masks.everything(mask))


def layout(message: Message) -> dict[str, Layout]:
    """The static description of a message, from its arrays or their shapes.

    Raises:
      ValueError: a mask has another treedef or shape than its values, or a dtype does
          not fit `bits`: a float must be as wide as `bits`, an integer at least.

    Example:
      >>> layout({'up': Packet({'w': jnp.zeros((2, 3))})})['up'].shapes
      ((2, 3),)
    """
    layouts = {}
    for name, packet in message.items():
        leaves = jax.tree.leaves(packet.values)
        paths = trees.leaf_paths(packet.values)
        shapes = [tuple(x.shape) for x in leaves]
        for path, leaf in zip(paths, leaves, strict=True):
            _check_width(f"{name}/{path}", leaf.dtype, packet.bits)
        masked = packet.mask is not None
        if masked:
            same = jax.tree.structure(packet.mask) == jax.tree.structure(packet.values)
            found = [tuple(m.shape) for m in jax.tree.leaves(packet.mask)]
            if not same or found != shapes:
                raise ValueError(
                    f"mask of packet {name!r} has shapes {found} at"
                    f" {trees.leaf_paths(packet.mask)}, expected {shapes} at {paths}."
                )
        layouts[name] = Layout(
            tuple(paths),
            tuple(shapes),
            packet.bits,
            packet.index,
            masked,
            packet.assumed,
        )
    return layouts


def assumptions(layouts: dict[str, dict[str, Layout]]) -> dict[str, str]:
    """What packets leave uncharged by assumption, and why.

    Args:
      layouts: a message's `layout` by direction.

    Returns:
      The packets' reasons by 'direction/packet'.

    Example:
      >>> packet = Packet(jnp.zeros(3), bits=0, assumed='a seed tells it')
      >>> assumptions({'down': layout({'init': packet, 'all': Packet(jnp.zeros(3))})})
      {'down/init': 'a seed tells it'}
    """
    return {
        f"{direction}/{name}": packet.assumed
        for direction, packets in layouts.items()
        for name, packet in packets.items()
        if packet.assumed
    }


def _check_width(name: str, dtype: Any, bits: int) -> None:
    """A packet cannot claim fewer bits than what it holds needs."""
    width = 8 * jnp.dtype(dtype).itemsize
    fits = width == bits if jnp.issubdtype(dtype, jnp.floating) else width >= bits
    if bits and not fits:
        raise ValueError(
            f"bits={bits} for {dtype} values {name!r}, expected {width}, 0 or codes."
        )


def _width(n: int) -> int:
    """ceil(log2(n)) for n >= 1."""
    return (n - 1).bit_length()


def position_widths(index: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Bits of the entry count, number of row pointers, bits of one entry's index.

    Example:
      >>> position_widths('csr', (3, 3, 8, 16))
      (11, 17, 7)
    """
    size, rows = math.prod(shape), shape[-1] if shape else 1
    if index == "coo":
        return _width(size + 1), 0, _width(max(size, 2))
    return _width(size + 1), rows + 1, _width(max(size // max(rows, 1), 2))


def pointer_width(nnz: np.ndarray | int) -> np.ndarray:
    """max(ceil(log2(nnz + 1)), 1), exact for arrays of integers.

    Example:
      >>> pointer_width(np.array([0, 1, 3, 4])).tolist()
      [1, 1, 2, 3]
    """
    return np.maximum(np.frexp(np.asarray(nnz, np.float64))[1], 1).astype(np.int64)


def entropy_bits(n: np.ndarray | int, ones: np.ndarray | int) -> np.ndarray:
    """n H(ones / n): the bits of zeros and ones whose numbers are known, float64.

    Example:
      >>> entropy_bits(np.array([0, 7, 8, 8]), np.array([0, 7, 4, 1])).tolist()
      [0.0, 0.0, 8.0, 4.3485]
    """
    n, ones = np.asarray(n, np.float64), np.asarray(ones, np.float64)
    total = np.zeros(np.broadcast_shapes(n.shape, ones.shape))
    for k in (ones, n - ones):
        share = np.where(k > 0, k, 1.0) / np.where(k > 0, n, 1.0)
        total = total - k * np.log2(share)
    return total


def _entropy_values(n: np.ndarray, ones: np.ndarray) -> np.ndarray:
    """The count of ones, then the values; int64."""
    header = np.frexp(n.astype(np.float64))[1].astype(np.int64)  # w(n + 1)
    return header + np.ceil(entropy_bits(n, ones)).astype(np.int64)


def _position_bits(index: str, shape: tuple[int, ...], nnz: np.ndarray) -> np.ndarray:
    """The bits that name the positions of `nnz` entries of one leaf; int64."""
    if index == "bitmap":
        return np.full_like(nnz, math.prod(shape))
    header, pointers, width = position_widths(index, shape)
    return header + pointers * pointer_width(nnz) + nnz * width


def packet_bits(layout: Layout, count: Count) -> Bits:
    """The bits of one packet, on the host.

    Args:
      layout: the packet's static description.
      count: its counts, with any leading axes (rounds, clients).

    Returns:
      int64 arrays over the leading axes.

    Example:
      >>> full = jnp.ones(8, bool)
      >>> one = layout({'up': Packet(jnp.zeros(8), full, index='bitmap')})
      >>> n = Count(np.array([8]), np.array(True), np.array(True))
      >>> [int(b) for b in packet_bits(one['up'], n)]
      [256, 8]
    """
    entries = np.asarray(count.entries, np.int64)
    sent, fresh = np.asarray(count.sent, np.int64), np.asarray(count.fresh, np.int64)
    values = layout.bits * entries.sum(-1)
    if layout.index == "entropy":
        ones = np.asarray(count.ones, np.int64)
        values = _entropy_values(entries.sum(-1), ones.sum(-1))
    values = sent * values
    positions = np.zeros_like(values)
    if layout.masked and layout.index in POSITIONS:
        for i, shape in enumerate(layout.shapes):
            positions += _position_bits(layout.index, shape, entries[..., i])
    return Bits(values, sent * fresh * positions)


def bits(layout: dict[str, Layout], count: dict[str, Count]) -> Bits:
    """The bits of a whole message, on the host.

    Args:
      layout: from `layout`.
      count: from `count`, with any leading axes (rounds, clients).

    Returns:
      int64 arrays over the leading axes, summed over the packets.

    Example:
      >>> message = {'up': Packet({'w': jnp.zeros((2, 3))})}
      >>> int(bits(layout(message), count(message)).total)
      192
    """
    each = [packet_bits(layout[name], count[name]) for name in layout]
    zero = np.zeros((), np.int64)
    values = sum((b.values for b in each), zero)
    return Bits(values, sum((b.positions for b in each), zero))
