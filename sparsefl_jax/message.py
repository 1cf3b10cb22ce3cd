"""A sparse model as a message: what the methods with masks send and receive."""

from typing import Any

from sparsefl_jax.codec import Message, Packet, merge, split
from sparsefl_jax.sparsity import masks
from sparsefl_jax.types import PyTree, SparseModel


def pack_model(
    model: SparseModel, select: PyTree, *, fresh: Any = True, index: str = "bitmap"
) -> Message:
    """Three packets: masked weights with their positions, dense leaves, statistics.

    Args:
      model: the model to send.
      select: tree of Python bools, the prunable leaves.
      fresh: False where the receiver already holds the mask.
      index: how positions are written, see `codec.Packet`.
    """
    weights, dense = split(masks.apply(model.params, model.mask), select)
    mask, _ = split(model.mask, select)
    return {
        "weights": Packet(weights, mask, fresh, index=index),
        "dense": Packet(dense),
        "stats": Packet(model.stats),
    }


def unpack_model(message: Message) -> SparseModel:
    """What the receiver of `pack_model` holds."""
    weights, dense = message["weights"], message["dense"].values
    return SparseModel(
        merge(weights.values, dense),
        merge(weights.mask, masks.full(dense)),
        message["stats"].values,
    )


def pack_slice(values: PyTree, mask: PyTree) -> Packet:
    """The entries that a mask keeps, which both ends know without positions.

    Example:
      >>> import jax.numpy as jnp
      >>> pack_slice(jnp.ones(2), jnp.array([True, False])).values.tolist()
      [1.0, 0.0]
    """
    return Packet(masks.apply(values, mask), mask, fresh=False)
