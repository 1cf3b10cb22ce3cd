"""The numbers in which bits are counted: exact on the host, float32 on the device."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class Numbers(NamedTuple):
    """A library of arrays, and its types for whole and for real numbers."""

    xp: Any  # numpy or jax.numpy
    whole_type: Any
    real_type: Any

    def whole(self, value: Any) -> Any:
        """Returns a whole number, or an array of them, for counting bits."""
        return self.xp.asarray(value, self.whole_type)

    def real(self, value: Any) -> Any:
        """Returns a real number, or an array of them."""
        return self.xp.asarray(value, self.real_type)


HOST = Numbers(np, np.int64, np.float64)
DEVICE = Numbers(jnp, jnp.float32, jnp.float32)  # bits overflow its int32
