"""Imports what comes with an extra, where it is used."""

import importlib
from typing import Any


def imported(module: str, extra: str, what: str) -> Any:
    """Imports a module that a plain installation lacks.

    Args:
      module: its name.
      extra: what installs it.
      what: the argument or the feature that needs it.

    Raises:
      ValueError: in one line, if it is not installed.

    Example:
      >>> imported("no_such_module", "hf", "dataset='hf:a/b'")
      Traceback (most recent call last):
      ValueError: dataset='hf:a/b' needs no_such_module: pip install 'sparsefl_jax[hf]'
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ValueError(
            f"{what} needs {package}: pip install 'sparsefl_jax[{extra}]'"
        ) from None
