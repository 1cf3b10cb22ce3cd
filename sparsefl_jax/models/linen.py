"""Makes pure functions of a user's linen module.

A client's last batch is padded. Batch normalisation must leave the padding out.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Array
from sparsefl_jax.models import trial


def functions(
    module: nn.Module, example: Array | jax.ShapeDtypeStruct
) -> tuple[str, Callable, Callable]:
    """Returns the pure functions of a module.

    Args:
      module: takes a batch like `example`.
      example: a batch [B, ...], or its shape and dtype.

    Returns:
      The name of the module's class, and `init` and `apply` as of a `Model`.

    Raises:
      ValueError: it is no module, or has unknown arguments; by `init`, it has other
        collections than 'params' and 'batch_stats'.
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise UserError(f"module is a {kind}, expected a module of flax.linen")
    arguments = trial.arguments(module)

    def init(key):
        x = jnp.zeros((1, *example.shape[1:]), example.dtype)
        found = module.init(key, x, **arguments(False))
        if unknown := set(found) - {"params", "batch_stats"}:
            allowed = "only 'params' and 'batch_stats' are supported"
            raise UserError(f"module has the collections {sorted(unknown)}; {allowed}")
        return found.get("params", {}), found.get("batch_stats", {})

    def apply(params, stats, x, *, train, weight=None, key=None):
        given = {"params": params} | ({"batch_stats": stats} if stats else {})
        rngs = None if key is None else {"dropout": key}
        options = {"rngs": rngs, "mutable": ["batch_stats"] if train and stats else []}
        check = trial.keywords(train, weight, nn.BatchNorm)

        def checked(call, args, kwargs, context):
            if context.method_name == "__call__":
                path = "/".join(context.module.path)
                kwargs = check(context.module, path, args, kwargs)
            return call(*args, **kwargs)

        with nn.intercept_methods(checked):
            logits, changed = module.apply(
                given, x, **arguments(train, weight), **options
            )
        return logits.astype(jnp.float32), changed.get("batch_stats", stats)

    return kind, trial.compiled(init), apply
