"""Samples that lie on a device as flat rows.

An accelerator lays an array out in tiles of its last axes, such as [32, 128] bytes on
TPU. Images [n, 32, 32, 3] fill few of them, so XLA transposes all n in every program
before it can gather a client's. Flat rows [n, 3072] fill the tiles and stay.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array

_LANES = 128  # entries of the last axis of a tile


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Flat:
    """Samples as rows; `samples[index]` has their own shape."""

    rows: Array  # [n, size]
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def __getitem__(self, index: Array) -> Array:
        """Gathers samples [*index.shape, *shape]."""
        return self.rows[index].reshape(*jnp.shape(index), *self.shape)


def flat(x: Any) -> Any:
    """Returns samples as `Flat` rows if these fill whole tiles, else as they are.

    Args:
      x: [n, ...], an array of NumPy or JAX.

    Example:
      >>> import numpy as np
      >>> images, digits = np.zeros((5, 32, 32, 3)), np.zeros((5, 28, 28, 1))
      >>> flat(images).rows.shape, flat(digits).shape
      ((5, 3072), (5, 28, 28, 1))
    """
    size = math.prod(x.shape[1:])
    if x.ndim < 3 or not size or size % _LANES:
        return x
    return Flat(x.reshape(len(x), size), x.shape[1:])
