"""Calls a user's linen module so that padded samples have no effect on batch norm.

A client's last batch is padded. Batch normalisation must leave the padding out.
"""

import inspect
from contextlib import AbstractContextManager

import flax.linen as nn

from sparsefl_jax.core.types import Array
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
