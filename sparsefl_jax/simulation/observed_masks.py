"""Packs masks of single clients to bits for the log on the host.

The bits run over the logged layers in tree order, each flattened. Only the cohort of a
segment's last round is kept, which takes K times the layers' size / 8 bytes.
"""

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, PyTree
from sparsefl_jax.sparsity import trees
from sparsefl_jax.wire.packets import Message


def pack(mask: PyTree, layers: PyTree) -> Array:
    """Packs the layers of a mask, uint8 [bytes].

    Args:
      mask: bool tree.
      layers: tree of Python bools, the logged layers.

    Example:
      >>> pack({'w': jnp.ones((2, 3), bool)}, {'w': True}).tolist()
      [252]
    """
    leaves = [leaf.reshape(-1) for leaf in trees.layers(mask, layers)]
    return jnp.packbits(jnp.concatenate(leaves))


def filters(mask: PyTree, layers: PyTree) -> Array:
    """Returns which outputs of the layers have an alive entry, [F] bool.

    Example:
      >>> mask = {'w': jnp.array([[True, False], [True, False]])}
      >>> filters(mask, {'w': True}).tolist()
      [True, False]
    """
    leaves = trees.layers(mask, layers)
    return jnp.concatenate([jnp.any(m, tuple(range(m.ndim - 1))) for m in leaves])


def uplink_masks(uplink: Message, shapes: PyTree, layers: PyTree) -> Array:
    """Packs the positions of a client's uplink, uint8 [bytes].

    Args:
      uplink: the client's message. A layer counts as sent in full if no packet has a
        mask of its path and shape.
      shapes: the parameters, or their shapes.
      layers: tree of Python bools, the logged layers.
    """
    sent = {}
    for packet in uplink.values():
        sent |= trees.by_path(packet.mask)
    mask = [
        sent[path] if path in sent and sent[path].shape == leaf.shape
        else jnp.ones(leaf.shape, bool)
        for path, leaf in trees.by_path(shapes).items()
    ]  # fmt: skip
    return pack(jax.tree.unflatten(jax.tree.structure(shapes), mask), layers)
