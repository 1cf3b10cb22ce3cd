"""A sparse model as a message, and which of its positions the receiver holds already.

The server keeps a mask together with `since`, the first round whose broadcast carried
it; a client that took part in that round or later holds the mask. A client's own mask
is new to the server where it differs from the one that the client has just received.
"""

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, Context, PyTree, SparseModel
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.wire.packets import Message, Packet

FREE_POSITIONS = "index='none' was chosen: no positions are charged"


def pack_down(
    ctx: Context, model: SparseModel, since: Array, select: PyTree, *, index: str
) -> Message:
    """Packs a model for a client, with positions unless the client holds the mask.

    Args:
      ctx: of `broadcast`; says when the client last took part.
      model: the model to send; weights outside its mask are sent as 0.
      since: shape=(), int32, since when the mask stands, see `renewed`.
      select: tree of Python bools, the prunable leaves.
      index: how positions are written, see `packets.Packet`.

    Returns:
      Three packets: masked weights with their positions, dense leaves, statistics.
    """
    return _pack(model, select, is_new(ctx, since), index)


def pack_up(
    model: SparseModel, received: PyTree, select: PyTree, *, index: str
) -> Message:
    """Packs a client's model, with positions where its mask is not the received one.

    Args:
      model: the model to send; weights outside its mask are sent as 0.
      received: bool tree, the mask that the client received in this round: the only
        one of this client that the server knows.
      select: tree of Python bools, the prunable leaves.
      index: how positions are written, see `packets.Packet`.

    Returns:
      Three packets, as `pack_down` has them.
    """
    return _pack(model, select, differs(model.mask, received), index)


def unpack_model(message: Message) -> SparseModel:
    """Returns what the receiver of `pack_down` or `pack_up` holds."""
    weights, dense = message["weights"], message["dense"].values
    return SparseModel(
        trees.merge(weights.values, dense),
        trees.merge(weights.mask, masks.full(dense)),
        message["stats"].values,
    )


def pack_slice(values: PyTree, mask: PyTree) -> Packet:
    """Packs the entries that a mask keeps, which both ends know without positions.

    Example:
      >>> import jax.numpy as jnp
      >>> pack_slice(jnp.ones(2), jnp.array([True, False])).values.tolist()
      [1.0, 0.0]
    """
    return Packet(masks.apply(values, mask), mask, index="none")


def renewed(round: Array, old: PyTree, new: PyTree, since: Array) -> Array:
    """Returns since when a mask stands that `aggregate` has computed.

    Args:
      round: t, as `aggregate` has it; shape=(), int32.
      old: bool tree, the mask that round t broadcast.
      new: bool tree, the mask that round t + 1 will broadcast.
      since: shape=(), int32, since when the old mask stands.

    Returns:
      `since` where the masks are equal, else t + 1; shape=(), int32.

    Example:
      >>> t, since = jnp.int32(4), jnp.int32(2)
      >>> old, new = jnp.array([True, True]), jnp.array([True, False])
      >>> renewed(t, old, old, since).item(), renewed(t, old, new, since).item()
      (2, 5)
    """
    return jnp.where(differs(new, old), round + 1, since)


def is_new(ctx: Context, since: Array) -> Array:
    """Returns whether a client does not hold a mask that stands since a round.

    Example:
      >>> is_new(Context(jnp.int32(4), jnp.int32(2), None), jnp.int32(2)).item()
      False
    """
    return since > ctx.last_round


def differs(mask: PyTree, other: PyTree) -> Array:
    """Returns whether two masks differ in any entry; shape=(), bool.

    Example:
      >>> differs({'w': jnp.array([True])}, {'w': jnp.array([False])}).item()
      True
    """
    pairs = jax.tree.map(lambda a, b: jnp.any(a != b), mask, other)
    return jnp.any(jnp.array(jax.tree.leaves(pairs), jnp.bool_))


def _pack(model: SparseModel, select: PyTree, fresh: Array, index: str):
    weights, dense = trees.split(masks.apply(model.params, model.mask), select)
    mask, _ = trees.split(model.mask, select)
    assumed = FREE_POSITIONS if index == "none" else ""
    return {
        "weights": Packet(weights, mask, fresh, index=index, assumed=assumed),
        "dense": Packet(dense),
        "stats": Packet(model.stats),
    }
