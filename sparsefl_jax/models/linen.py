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


def check_submodules(train: bool):
    """Returns a context that checks the training flags of calls to submodules.

    Raises:
      ValueError: within the context, a call leaves a flag at a default that is wrong.
    """

    def check(call, args, kwargs, context):
        module = context.module
        if context.method_name == "__call__" and module.path:
            signature = inspect.signature(module.__call__)
            name = f"{type(module).__name__} {'/'.join(module.path)!r}"
            trial.check_flags(name, signature, args, kwargs, train)
        return call(*args, **kwargs)

    return nn.intercept_methods(check)


def without_padding(weight: Array | None) -> AbstractContextManager:
    """Returns a context in which linen's batch normalisation skips padded samples.

    Args:
      weight: [B], 0 for padded samples; None if there are none.

    Raises:
      ValueError: within the context, a BatchNorm's first axis is not the batch.
    """

    def masked(call, args, kwargs, context):
        norm, is_call = context.module, context.method_name == "__call__"
        if not isinstance(norm, nn.BatchNorm) or not is_call or weight is None:
            return call(*args, **kwargs)
        x = args[0] if args else kwargs["x"]
        name = f"BatchNorm {'/'.join(norm.path)!r}"
        mask = trial.norm_mask(name, weight, x, kwargs.get("mask"))
        return call(*args, **kwargs | {"mask": mask})

    return nn.intercept_methods(masked)


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

    def of_leaf(path, _):
        return counts.get(tuple(entry.key for entry in path), 0)

    macs = jax.tree_util.tree_map_with_path(of_leaf, shapes["params"])
    return macs, shapes.get("batch_stats", {})
