"""Imports packages of optional extras at the point of use."""

import importlib
from typing import Any

from sparsefl_jax.core.check import UserError


def import_extra(module: str, extra: str, what: str) -> Any:
    """Imports a module that is not part of the basic installation.

    Args:
      module: its name.
      extra: the extra that installs it.
      what: the argument or feature that needs it, for the message.

    Raises:
      ValueError: the module is not installed.

    Example:
      >>> import_extra("no_such_module", "hf", "dataset='hf:a/b'")
      Traceback (most recent call last):
      sparsefl_jax.UserError: dataset='hf:a/b' needs no_such_module: pip install
      -e '.[hf]' in the clone, or the wheel with [hf]
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        hint = f"pip install -e '.[{extra}]' in the clone, or the wheel with [{extra}]"
        raise UserError(f"{what} needs {package}: {hint}") from None
