"""Packets: what crosses the simulated network, described and counted.

A message is a `dict[str, Packet]`. Its entries are counted on the device, as int32 of
one client and round; `charges` turns counts into bits on the host.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.core.validate import in_range, typed
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.wire import golomb
from sparsefl_jax.wire.positions import POSITIONS

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
      bits: static, per value, 0 to 32. Values of 0 bits are common knowledge, and free.
      index: static, how positions are written: `'none'`, or a code of `positions`:
          `'bitmap'`, `'coo'`, `'csr'`, `'golomb'` or `'packed'`. Positions are charged
          with a fresh mask, also when bits = 0. `'entropy'` writes no positions, but
          codes the values, of bits = 1, as short as their share of ones allows. With
          `'none'` and `'entropy'` the mask is free, so the receiver has to be able to
          tell it from the round, the client's facts and keys. A packet with a mask
          names its index; one without has `'none'`.
      assumed: static, why values of 0 bits or positions under index `'none'` are free
          although the receiver cannot tell them. Law `known` passes such a packet, and
          plan, records and reports repeat the reason.

    Raises:
      ValueError: `bits` or `index` is not one of those, a mask comes without `index`,
          or `assumed` is set although everything is charged.

    Example:
      >>> Packet({'w': jnp.zeros(3)}).index
      'none'
      >>> Packet(jnp.zeros(3), jnp.ones(3, bool))
      Traceback (most recent call last):
      ValueError: index=None, expected one of none, bitmap, coo, csr, golomb,
      packed, entropy for a packet with a mask.
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
        typed("bits", self.bits, int)
        in_range("bits", self.bits, "[0, 32]")
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
    unary: Array | None = None  # [leaves] int32, of the gaps; index 'golomb' only


class Layout(NamedTuple):
    """What is known about a packet before it is sent."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bits: int
    index: str
    masked: bool
    assumed: str = ""


def stable(message: Message) -> Message:
    """Returns the message with `fresh` and `sent` as arrays, so that its types agree.

    Args:
      message: packets whose flags may be Python bools in one round, arrays in another.

    Returns:
      The same packets; both flags have shape () and dtype bool.

    Example:
      >>> stable({'w': Packet(jnp.zeros(3))})['w'].sent.dtype
      dtype('bool')
    """

    def with_arrays(packet):
        fresh, sent = (jnp.asarray(v, jnp.bool_) for v in (packet.fresh, packet.sent))
        return dataclasses.replace(packet, fresh=fresh, sent=sent)

    return {name: with_arrays(packet) for name, packet in message.items()}


def count(message: Message) -> dict[str, Count]:
    """Counts the entries of each packet, on the device, for one client.

    Args:
      message: packets of one client; vmap for more.

    Returns:
      One `Count` per packet. A leaf counts its True mask entries, or its size; and what
      else a length depends on: the ones with index 'entropy', the gaps with 'golomb'.

    Example:
      >>> mask = {'w': jnp.array([True, False, True])}
      >>> packet = Packet({'w': jnp.zeros(3)}, mask, index='bitmap')
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
        ones = unary = None
        if packet.index == "golomb" and packet.mask is not None:  # static branch
            leaves = [golomb.unary_bits(m) for m in jax.tree.leaves(packet.mask)]
            unary = jnp.stack(leaves) if leaves else jnp.zeros((0,), jnp.int32)
        if packet.index == "entropy":  # static branch
            ones = jax.tree.map(lambda v: v.astype(jnp.bool_), packet.values)
            if packet.mask is not None:
                ones = jax.tree.map(jnp.logical_and, ones, packet.mask)
            ones = _trues(ones)
        counts[name] = Count(entries, packet.fresh, packet.sent, ones, unary)
    return counts


def _trues(mask: PyTree) -> Array:
    """Counts the True entries of every leaf; [leaves] int32."""
    return masks.counts(mask, masks.everything(mask))


def layout(message: Message) -> dict[str, Layout]:
    """Describes a message by what its arrays, or their shapes, tell before it is sent.

    Args:
      message: packets of arrays or of `jax.ShapeDtypeStruct`.

    Returns:
      One `Layout` per packet.

    Raises:
      ValueError: a mask has another treedef or shape than its values, or a dtype does
          not fit `bits`: a float must be as wide as `bits`, an integer at least.

    Example:
      >>> layout({'up': Packet({'w': jnp.zeros((2, 3))})})['up'].shapes
      ((2, 3),)
    """
    layouts = {}
    for name, packet in message.items():
        leaves = trees.by_path(packet.values)
        paths, shapes = list(leaves), [tuple(x.shape) for x in leaves.values()]
        for path, leaf in leaves.items():
            _check_width(f"{name}/{path}", leaf.dtype, packet.bits)
        masked = packet.mask is not None
        if masked:
            alike = jax.tree.structure(packet.mask) == jax.tree.structure(packet.values)
            found = [tuple(m.shape) for m in jax.tree.leaves(packet.mask)]
            if not alike or found != shapes:
                raise ValueError(
                    f"mask of packet {name!r} has shapes {found} at"
                    f" {trees.leaf_paths(packet.mask)}, expected {shapes} at {paths}."
                )
        named = tuple(paths), tuple(shapes)
        layouts[name] = Layout(
            *named, packet.bits, packet.index, masked, packet.assumed
        )
    return layouts


def _check_width(name: str, dtype: Any, bits: int) -> None:
    """Refuses a packet that claims fewer bits than its values need."""
    width = 8 * jnp.dtype(dtype).itemsize
    fits = width == bits if jnp.issubdtype(dtype, jnp.floating) else width >= bits
    if bits and not fits:
        raise ValueError(
            f"bits={bits} for {dtype} values {name!r}, expected {width}, 0 or codes."
        )


def assumptions(layouts: dict[str, dict[str, Layout]]) -> dict[str, str]:
    """Returns why packets leave something uncharged by assumption.

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
