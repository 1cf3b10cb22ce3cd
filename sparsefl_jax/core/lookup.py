"""Looks up names of a configuration: an entry of a table, or `module:function`."""

import importlib
import inspect
from collections.abc import Callable, Mapping

from sparsefl_jax.core.check import blame, check


def look_up(argument: str, name: str, table: Mapping[str, Callable]) -> Callable:
    """Returns the entry of a table, or imports a user's function.

    Args:
      argument: the argument's name in messages.
      name: a key of the table, or `module:function`.
      table: the package's own functions by name.

    Raises:
      ValueError: the entry, module or function does not exist.

    Example:
      >>> look_up("model.name", "mlp", {"mlp": max}) is max
      True
      >>> look_up("model.name", "json:dump", {}).__name__
      'dump'
    """
    if ":" not in name:
        check(argument, name, table)
        return table[name]
    module, _, function = name.partition(":")
    with blame(f"{argument}={name!r}"):
        entry = getattr(importlib.import_module(module), function)
        inspect.signature(entry)
    return entry
