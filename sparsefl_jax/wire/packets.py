"""Packets: what crosses the simulated network, described and counted.

A message is a `dict[str, Packet]`. Its entries are counted on the device, as int32 of
one client and round; `charges` turns counts into bits on the host.

A sparse model is a message too, and positions travel unless the receiver holds the
mask. The server keeps a mask together with `changed_at`, the first round whose
broadcast carried it: a client that took part in that round or later holds the mask. A
client's mask is new to the server if it differs from the one that the client has just
received.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sparsefl_jax.core.check import UserError, check, integer
from sparsefl_jax.core.types import Array, Context, Frozen, PyTree, SparseModel
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.wire.positions import POSITIONS

INDEXES = ("none", *POSITIONS, "entropy")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packet:
    """Values that travel together, written the same way.

    Attributes:
      values: exactly what is encoded: bool, integers or real floats. Integer codes when
          bits < 16; their scale and zero point are a packet of their own. A `None` leaf
          does not travel.
      mask: bool, treedef of `values`: where entries really travel; None: everywhere.
      fresh: bool scalar, False if the receiver already holds this mask: a client, if it
          is the one that last came down in a packet of this name; the server, if it is
          the one that it sent to this client in this round in a packet of this name.
          True without a mask.
      sent: bool scalar, False if nothing travels this round.
      bits: static, per value, 0 to 32. Values of 0 bits are common knowledge, and free.
      index: static, how positions are written: `'none'`, or a code of `positions`:
          `'bitmap'`, `'coo'`, `'golomb'` or `'packed'`. Positions are charged with a
          fresh mask, also when bits = 0. `'entropy'` writes no positions, but zeros and
          ones, of bits = 1, as short as their share of ones allows.
          With `'none'` and `'entropy'` the mask is free, so the receiver has to be able
          to infer it from the round, the client's facts and keys. A packet with a mask
          names its index; one without has `'none'` unless it names `'entropy'`.
      assumed: static, why values of 0 bits or positions under index `'none'` are free
          although the receiver cannot infer them. Law `known` passes such a packet, and
          plan, records and reports repeat the reason.
      optional: static, whether a bit says in every round if the packet is sent with a
          fresh mask; it is charged, with the positions. Without it `fresh` and `sent`
          have to follow from the round, the client's facts and keys; with it one of
          them has to, where the bit is 0.

    Raises:
      ValueError: `bits` or `index` is not one of those, a mask comes without `index`,
          `'entropy'` with other than one bit, or `assumed` is set although everything
          is charged.

    Example:
      >>> Packet({'w': jnp.zeros(3)}).index
      'none'
      >>> Packet(jnp.zeros(3), jnp.ones(3, bool))
      Traceback (most recent call last):
      sparsefl_jax.UserError: index='', expected one of none, bitmap, coo, golomb,
      packed, entropy
    """

    values: PyTree
    mask: PyTree | None = None
    fresh: Any = True
    sent: Any = True
    bits: int = dataclasses.field(default=32, metadata={"static": True})
    index: str = dataclasses.field(default="", metadata={"static": True})
    assumed: str = dataclasses.field(default="", metadata={"static": True})
    optional: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self):
        if not self.index and self.mask is None:
            object.__setattr__(self, "index", "none")
        check("index", self.index, INDEXES)
        check("bits", self.bits, integer(0, 32))
        if self.index == "entropy" and self.bits != 1:
            raise UserError(f"bits={self.bits!r}, expected 1 with index='entropy'.")
        free = self.bits == 0 or (self.index == "none" and self.mask is not None)
        if self.assumed and not free:
            raise UserError(
                f"assumed={self.assumed!r}, expected bits=0, or index='none' of a mask."
            )


Message = dict[str, Packet]


class Count(NamedTuple):
    """What one packet put on the wire, for one client and round."""

    # [leaves] int32; -1 in all where a code that travels does not fit
    entries: ArrayLike
    fresh: ArrayLike  # shape=(), bool
    sent: ArrayLike  # shape=(), bool
    # [leaves] int32: what else the bits depend on, by `measure` of the index's code, as
    # the number of ones with 'entropy'; None if nothing does.
    measured: ArrayLike | None = None


def settle_flags(message: Message) -> Message:
    """Returns the message with `fresh` and `sent` as arrays, so that its types agree.

    Args:
      message: packets whose flags may be Python bools in one round, arrays in another.

    Returns:
      The same packets; both flags have shape () and dtype bool.

    Example:
      >>> settle_flags({'w': Packet(jnp.zeros(3))})['w'].sent.dtype
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
      One `Count` per packet. A leaf counts its True mask entries, or its size.

    Example:
      >>> mask = {'w': jnp.array([True, False, True])}
      >>> packet = Packet({'w': jnp.zeros(3)}, mask, index='bitmap')
      >>> count({'up': packet})['up'].entries.tolist()
      [2]
    """
    counts = {}
    for name, packet in settle_flags(message).items():
        if packet.mask is None:  # static branch
            sizes = [math.prod(x.shape) for x in jax.tree.leaves(packet.values)]
            entries = jnp.array(sizes, jnp.int32)
        else:
            entries = masks.counts(packet.mask, masks.select_all(packet.mask))
        if wrong := _misfits(packet):  # static branch
            # In an array that is logged anyway: a further one costs GPUs three kernels.
            misfit = packet.sent & jnp.any(jnp.array(wrong))
            entries = jnp.where(misfit, jnp.int32(-1), entries)
        counts[name] = Count(entries, packet.fresh, packet.sent, _measure(packet))
    return counts


def _misfits(packet: Packet) -> list[Array]:
    """Returns whether a code of a leaf does not fit; outside a mask they are 0."""
    bits, wrong = packet.bits, []
    for leaf in jax.tree.leaves(packet.values):
        if bits and jnp.issubdtype(leaf.dtype, jnp.integer):
            info = jnp.iinfo(leaf.dtype)
            if info.bits > bits:  # static branch
                low, high = info.min >> info.bits - bits, info.max >> info.bits - bits
                wrong.append(jnp.any((leaf < low) | (leaf > high)))
    return wrong


def _measure(packet: Packet) -> Array | None:
    """Returns `Count.measured` of a packet."""
    if packet.index == "entropy":
        masked = packet.mask is not None
        ones = masks.apply(packet.values, packet.mask) if masked else packet.values
        ones = jax.tree.map(lambda v: v.astype(jnp.bool_), ones)
        return masks.counts(ones, masks.select_all(ones))
    code = POSITIONS.get(packet.index)
    if code is None or code.measure is None or packet.mask is None:
        return None
    measured = [code.measure(leaf) for leaf in jax.tree.leaves(packet.mask)]
    return jnp.array(measured, jnp.int32)


def layout(message: Message) -> Message:
    """Checks a message, and returns what is known of it before it is sent.

    Args:
      message: packets of arrays or of `jax.ShapeDtypeStruct`.

    Returns:
      The packets, with `jax.ShapeDtypeStruct` in the place of arrays.

    Raises:
      ValueError: a packet is of a subclass, which may hold what is not charged, or a
          flag is no boolean; a mask is not bool, or has another treedef or shape than
          its values; or a dtype does not fit `bits`: a float must be as wide as `bits`,
          an integer at least, and nothing else travels.

    Example:
      >>> layout({'up': Packet({'w': jnp.zeros((2, 3))})})['up'].values['w'].shape
      (2, 3)
    """
    if type(message) is not dict:  # a subclass may hold more
        raise UserError(f"message is {type(message).__name__}, expected a dict")
    for name, packet in message.items():
        _check_kind(name, packet)
        for path, leaf in trees.by_path(packet.values).items():
            _check_width(f"{name}/{path}", leaf.dtype, packet.bits)
        if packet.mask is not None:
            wanted = jax.tree.map(lambda v: (v.shape, "bool"), packet.values)
            found = jax.tree.map(lambda v: (v.shape, str(v.dtype)), packet.mask)
            if found != wanted:
                what = f"mask of packet {name!r} is {found}"
                raise UserError(f"{what}, expected {wanted}")
    return jax.eval_shape(lambda message: message, message)


def _check_kind(name: str, packet: Any) -> None:
    """Refuses whatever could hold an array that is not counted."""
    if type(packet) is not Packet:
        raise UserError(f"{name!r} is {type(packet).__name__}, expected a Packet")
    for flag in ("fresh", "sent"):
        found = jax.eval_shape(jnp.asarray, getattr(packet, flag))
        if found.shape or found.dtype != jnp.bool_:
            what = f"{flag} of packet {name!r} is {found.dtype}{list(found.shape)}"
            raise UserError(f"{what}, expected one bool")


def _check_width(name: str, dtype: Any, bits: int) -> None:
    """Refuses values that no code writes, or that need more bits than are claimed."""
    real = any(jnp.issubdtype(dtype, k) for k in (jnp.bool_, jnp.integer, jnp.floating))
    if not real:
        raise UserError(f"{name!r} has {dtype} values, expected bool or real numbers.")
    width = 8 * jnp.dtype(dtype).itemsize
    fits = width == bits if jnp.issubdtype(dtype, jnp.floating) else width >= bits
    if bits and not fits:
        raise UserError(
            f"bits={bits} for {dtype} values {name!r}, expected {width}, 0 or codes."
        )


def assumptions(layouts: dict[str, Message]) -> dict[str, str]:
    """Returns why packets leave something uncharged by assumption.

    Args:
      layouts: a message's `layout` by direction.

    Returns:
      The packets' reasons by 'direction/packet'.

    Example:
      >>> packet = Packet(jnp.zeros(3), bits=0, assumed='from a seed')
      >>> assumptions({'down': layout({'init': packet, 'all': Packet(jnp.zeros(3))})})
      {'down/init': 'from a seed'}
    """
    return {
        f"{direction}/{name}": packet.assumed
        for direction, packets in layouts.items()
        for name, packet in packets.items()
        if packet.assumed
    }


def pack_down(
    ctx: Context,
    model: SparseModel,
    changed_at: Array,
    select: PyTree,
    *,
    index: str,
    optional: bool = False,
) -> Message:
    """Packs a model for a client, with positions unless the client holds the mask.

    Args:
      ctx: as `broadcast` has it: when the client last took part.
      model: the model to send; weights outside its mask are sent as 0.
      changed_at: shape=(), int32, the round since which the mask stands, see
        `last_change`.
      select: tree of Python bools, the prunable leaves.
      index: how positions are written, see `packets.Packet`.
      optional: whether data decides if the mask has changed, so that a bit has to say
        so.

    Returns:
      Three packets: masked weights with their positions, dense leaves, statistics.

    Example:
      >>> mask, since = {'w': jnp.array([True, False])}, jnp.int32(0)
      >>> model, select = SparseModel({'w': jnp.ones(2)}, mask, {}), {'w': True}
      >>> met = Context(jnp.int32(4), jnp.int32(2), None)  # took part in round 2
      >>> down = pack_down(met, model, since, select, index='bitmap')
      >>> bool(down['weights'].fresh)  # are positions charged?
      False
    """
    return _pack(model, select, is_new(ctx, changed_at), index, optional)


def pack_up(
    model: SparseModel,
    received: PyTree | None,
    select: PyTree,
    *,
    index: str,
    optional: bool = False,
) -> Message:
    """Packs a client's model, with positions unless its mask is the received one.

    Args:
      model: the model to send; weights outside its mask are sent as 0.
      received: bool tree, the mask that the client received in this round in a packet
        'weights': the only one of this client that the server knows. None: there is no
        such packet, and the positions are always new.
      select: tree of Python bools, the prunable leaves.
      index: how positions are written, see `packets.Packet`.
      optional: whether data decides if the mask is the received one, so that a bit has
        to say so.

    Returns:
      Three packets, as `pack_down` returns them.

    Example:
      >>> mask = {'w': jnp.array([True, False])}
      >>> model, select = SparseModel({'w': jnp.ones(2)}, mask, {}), {'w': True}
      >>> up = pack_up(model, {'w': jnp.ones(2, bool)}, select, index='bitmap')
      >>> bool(up['weights'].fresh), up['weights'].values['w'].tolist()
      (True, [1.0, 0.0])
    """
    fresh = True if received is None else differs(model.mask, received)
    return _pack(model, select, fresh, index, optional)


def unpack_model(message: Message) -> SparseModel:
    """Returns the model that the receiver of `pack_down` or `pack_up` holds.

    Example:
      >>> weights, bias = jnp.ones(2), jnp.zeros(1)
      >>> mask = {'b': jnp.array([True]), 'w': jnp.array([True, False])}
      >>> model = SparseModel({'b': bias, 'w': weights}, mask, {})
      >>> up = pack_up(model, mask, {'b': False, 'w': True}, index='bitmap')
      >>> unpack_model(up).params['w'].tolist()
      [1.0, 0.0]
    """
    weights, dense = message["weights"], message["dense"].values
    mask = trees.merge(weights.mask, masks.full(dense))
    params = trees.merge(weights.values, dense)
    return SparseModel(params, mask, message["stats"].values)


def unpack_params(message: Message) -> SparseModel:
    """Returns the model of the packets 'params', with their mask if any, and 'stats'.

    Example:
      >>> half = pack_slice(jnp.ones(2), jnp.array([True, False]))
      >>> unpack_params({'params': half, 'stats': Packet({})}).mask.tolist()
      [True, False]
    """
    packet = message["params"]
    return SparseModel(packet.values, packet.mask, message["stats"].values)


Initial = Literal["sent", "seed"]
SEEDED = "the client draws the initial network from the seed, or knows it"


def pack_initial(values: dict[str, PyTree], initial: Initial) -> Message:
    """Packs the network that training starts from, or the seed that it is drawn from.

    Args:
      values: parameters and whatever else belongs to it, by the name of a packet.
      initial: 'sent', 32 bits a value; or 'seed', 32 bits for all, where clients are
        assumed to draw the network themselves or to know it from an earlier run.

    Returns:
      A packet for each name, and with 'seed' one more, `seed`, that is charged alone.

    Raises:
      ValueError: `initial` is neither.

    Example:
      >>> sorted(pack_initial({'params': jnp.ones(2)}, 'seed'))
      ['params', 'seed']
    """
    check("initial", initial, Initial)
    if initial == "sent":
        return {name: Packet(tree) for name, tree in values.items()}
    known = {n: Packet(v, bits=0, assumed=SEEDED) for n, v in values.items()}
    return known | {"seed": Packet(jnp.uint32(0))}  # its value is not used


def pack_once(
    message: Message, last_round: Array, frozen: Frozen | None = None
) -> Message:
    """Returns what a client has to be given as packets that travel in its first round.

    Args:
      message: as `Algorithm.send_once` returns it.
      last_round: when the client last took part, or -1; shape=(), int32.
      frozen: as `Model.frozen`.

    Returns:
      The packets under the names 'handed/NAME', not sent in later rounds, and one for
      the held weights, 'model/base', whose values are a shape alone.

    Example:
      >>> first = pack_once({'seed': Packet(jnp.uint32(7))}, jnp.int32(-1))
      >>> later = pack_once({'seed': Packet(jnp.uint32(7))}, jnp.int32(3))
      >>> [bool(packets['handed/seed'].sent) for packets in (first, later)]
      [True, False]
    """
    packets = {f"handed/{name}": packet for name, packet in message.items()}
    if frozen is not None and frozen.entries:
        packets["model/base"] = _base(frozen)
    return {
        name: dataclasses.replace(packet, sent=packet.sent & (last_round < 0))
        for name, packet in packets.items()
    }


def _base(frozen: Frozen) -> Packet:
    """Returns held weights as a packet: charged, their seed, or assumed."""
    seeded = not (frozen.charged or frozen.source)
    values = jax.ShapeDtypeStruct((1 if seeded else frozen.entries,), jnp.float32)
    if frozen.charged or seeded:
        return Packet(values)
    which = f"the {frozen.entries} frozen weights: {frozen.source}, the rest by a seed"
    return Packet(values, bits=0, assumed=f"every client is taken to hold {which}")


def pack_slice(values: PyTree, mask: PyTree) -> Packet:
    """Packs the entries that a mask keeps, if both ends know the mask.

    Args:
      values: a tree of arrays.
      mask: bool tree with the same shapes; its positions are not charged.

    Returns:
      One packet.

    Example:
      >>> pack_slice(jnp.ones(2), jnp.array([True, False])).values.tolist()
      [1.0, 0.0]
    """
    return Packet(masks.apply(values, mask), mask, index="none")


def last_change(round: Array, old: PyTree, new: PyTree, changed_at: Array) -> Array:
    """Returns the round since which a mask of `aggregate` stands.

    Args:
      round: t, as `aggregate` has it; shape=(), int32.
      old: bool tree, the mask that round t broadcast.
      new: bool tree, the mask that round t + 1 will broadcast.
      changed_at: shape=(), int32, the round since which the old mask stands.

    Returns:
      `changed_at` where the masks are equal, else t + 1; shape=(), int32.

    Example:
      >>> t, before = jnp.int32(4), jnp.int32(2)
      >>> old, new = jnp.array([True, True]), jnp.array([True, False])
      >>> [last_change(t, old, mask, before).item() for mask in (old, new)]
      [2, 5]
    """
    return jnp.where(differs(new, old), round + 1, changed_at)


def is_new(ctx: Context, changed_at: Array) -> Array:
    """Returns whether a mask is new to a client.

    Args:
      ctx: as `broadcast` has it.
      changed_at: shape=(), int32, the round since which the mask stands.

    Returns:
      shape=(), bool.

    Example:
      >>> is_new(Context(jnp.int32(4), jnp.int32(2), None), jnp.int32(2)).item()
      False
    """
    return changed_at > ctx.last_round


def differs(mask: PyTree, other: PyTree) -> Array:
    """Returns whether two masks differ in any entry.

    Args:
      mask: bool tree.
      other: bool tree with the same shapes.

    Returns:
      shape=(), bool.

    Example:
      >>> differs({'w': jnp.array([True])}, {'w': jnp.array([False])}).item()
      True
    """
    pairs = jax.tree.map(lambda a, b: jnp.any(a != b), mask, other)
    return jnp.any(jnp.array(jax.tree.leaves(pairs), jnp.bool_))


def free_positions(index: str) -> str:
    """Returns what a packet that charges no positions assumes; '' for any other.

    Example:
      >>> free_positions("none")
      "index='none' was chosen: no positions are charged"
    """
    chosen = "index='none' was chosen: no positions are charged"
    return chosen if index == "none" else ""


def _pack(
    model: SparseModel, select: PyTree, fresh: Array | bool, index: str, optional: bool
) -> Message:
    """Packs masked weights, dense leaves and statistics."""
    weights, dense = trees.split(masks.apply(model.params, model.mask), select)
    mask, _ = trees.split(model.mask, select)
    written = {"index": index, "assumed": free_positions(index), "optional": optional}
    return {
        "weights": Packet(weights, mask, fresh, **written),
        "dense": Packet(dense),
        "stats": Packet(model.stats),
    }
