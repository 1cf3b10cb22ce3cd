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

    def width(self, n: Any) -> Any:
        """Returns ceil(log2(n + 1)) of whole numbers: the binary digits of n.

        Example:
          >>> HOST.width(np.array([0, 1, 3, 4])).tolist()
          [0, 1, 2, 3]
        """
        return self.whole(self.xp.frexp(self.real(n))[1])


HOST = Numbers(np, np.int64, np.float64)
DEVICE = Numbers(jnp, jnp.float32, jnp.float32)  # bits overflow its int32
