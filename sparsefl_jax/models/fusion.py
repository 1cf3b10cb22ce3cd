"""Where XLA:CPU stops fusing operations.

XLA:CPU fuses an operation into every reader of its result, and a reader that reads an
entry several times computes it as often: a pool that follows a convolution is computed
again for each of the convolution's overlapping tiles. `lax.optimization_barrier` does
not help, because XLA:CPU removes it before it fuses.
"""

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from sparsefl_jax.core.types import Array


def materialize(x: Array) -> Array:
    """Returns x, which XLA:CPU then writes to memory before anything reads it.

    The same holds for the gradient by x. Other platforms fuse as they like.

    Example:
      >>> import jax.numpy as jnp
      >>> materialize(jnp.arange(3)).tolist()
      [0, 1, 2]
    """
    return lax.platform_dependent(x, cpu=_call, default=lambda x: x)


@jax.jit
def _barrier(x):
    return lax.optimization_barrier(x)  # jit would forward the argument of an identity


def _call(x):
    # Nothing is fused across the borders of a call that XLA does not inline.
    with set_xla_metadata(inlineable="false"):
        return _barrier(x)
