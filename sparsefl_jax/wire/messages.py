"""A sparse model as a message, and whether its receiver already holds the mask.

The server keeps a mask together with `changed_at`, the first round whose broadcast
carried it: a client that took part in that round or later holds the mask. A client's
mask is new to the server if it differs from the one that the client has just received.
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp

from sparsefl_jax.core.check import check
from sparsefl_jax.core.types import Array, Context, Frozen, PyTree, SparseModel
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.wire.packets import Message, Packet


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
      changed_at: shape=(), int32, the round since which the mask stands, see `renewed`.
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
        name: replace(packet, sent=packet.sent & (last_round < 0))
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
