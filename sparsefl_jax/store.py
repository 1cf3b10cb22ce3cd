"""Client rows at rest: booleans take one bit, everything else its own dtype."""

import jax
import jax.numpy as jnp

from sparsefl_jax.types import PyTree


def pack(row: PyTree) -> PyTree:
    """Packs the boolean leaves of one client's state to bits, uint8 [ceil(size / 8)].

    Example:
      >>> pack({'mask': jnp.ones((3, 3), bool)})['mask'].shape
      (2,)
    """
    return jax.tree.map(
        lambda v: jnp.packbits(v.reshape(-1)) if v.dtype == bool else v, row
    )


def unpack(row: PyTree, like: PyTree) -> PyTree:
    """Restores what `pack` packed; `like` gives shapes and dtypes."""

    def restore(packed, shape):
        if shape.dtype != bool:
            return packed
        return (
            jnp.unpackbits(packed, count=shape.size).reshape(shape.shape).astype(bool)
        )

    return jax.tree.map(restore, row, like)
