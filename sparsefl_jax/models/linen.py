"""Calls linen modules without padding in batch norm, and counts their kernels' macs.

A client's last batch is padded. Batch normalisation must leave the padding out.
"""

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from sparsefl_jax.core.types import Array, PyTree
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

    def checked(call, args, kwargs, context):
        module = context.module
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        name = f"{type(module).__name__} {'/'.join(module.path)!r}"
        kwargs = trial.keywords(
            name,
            inspect.signature(module.__call__),
            args,
            kwargs,
            is_norm=isinstance(module, nn.BatchNorm),
            train=train,
            weight=weight,
        )
        return call(*args, **kwargs)

    return nn.intercept_methods(checked)


def count_macs(variables: Callable) -> tuple[PyTree, PyTree]:
    """Traces `module.init`; returns macs and the shapes of the statistics.

    The macs of a kernel are its entries times the positions at which it is applied.
    """
    counts = {}

    def count(call, args, kwargs, context):
        out = call(*args, **kwargs)
        module = context.module
        has_kernel = module.has_variable("params", "kernel")
        if has_kernel and context.method_name == "__call__":
            size = module.get_variable("params", "kernel").size
            features = getattr(module, "features", out.shape[-1])
            width = features if isinstance(features, int) else math.prod(features)
            path = (*module.path, "kernel")
            counts[path] = counts.get(path, 0) + size * (out.size // width)
        return out

    try:
        with nn.intercept_methods(count):
            shapes: Any = jax.eval_shape(variables, jax.random.key(0))
    except OverflowError:  # from drawing a leaf that is too large
        shapes = jax.ShapeDtypeStruct((2**31,), jnp.float32)
    trial.check_size(shapes)
    if unknown := set(shapes) - {"params", "batch_stats"}:
        allowed = "only 'params' and 'batch_stats' are supported"
        raise ValueError(f"module has the collections {sorted(unknown)}; {allowed}")
    if "params" not in shapes:
        raise ValueError("module has no parameters, expected something to train")

    macs = jax.tree_util.tree_map_with_path(
        lambda path, _: counts.get(tuple(entry.key for entry in path), 0),
        shapes["params"],
    )
    return macs, shapes.get("batch_stats", {})
