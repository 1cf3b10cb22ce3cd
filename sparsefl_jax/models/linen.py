"""Calls linen modules without padding in batch norm.

A client's last batch is padded. Batch normalisation must leave the padding out.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array
from sparsefl_jax.models import trial


def checked_calls(train: bool, weight: Array | None) -> AbstractContextManager:
    """Returns a context in which modules call submodules as `trial.keywords` says.

    Args:
      train: whether the network trains.
      weight: [B], 0 for padded samples; None if there are none.

    Raises:
      ValueError: within the context, a call leaves a training flag at a default that
        is wrong, or a BatchNorm's first axis is not the batch.
    """
    check = trial.keywords(train, weight, nn.BatchNorm)

    def checked(call, args, kwargs, context):
        module = context.module
        if context.method_name == "__call__":
            kwargs = check(module, "/".join(module.path), args, kwargs)
        return call(*args, **kwargs)

    return nn.intercept_methods(checked)


def check_collections(variables: Callable) -> None:
    """Refuses a module with other collections than 'params' and 'batch_stats'.

    Args:
      variables: `(key) -> variables`, as `module.init` makes them.

    Raises:
      ValueError: it has others, no parameters, or too many.
    """
    try:
        shapes: Any = jax.eval_shape(variables, jax.random.key(0))
    except OverflowError:  # from drawing a leaf that is too large
        shapes = {"params": jax.ShapeDtypeStruct((2**31,), jnp.float32)}
    if unknown := set(shapes) - {"params", "batch_stats"}:
        allowed = "only 'params' and 'batch_stats' are supported"
        raise UserError(f"module has the collections {sorted(unknown)}; {allowed}")
    trial.check_size(shapes.get("params"), shapes)
