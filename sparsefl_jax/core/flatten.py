"""Flattens nested sections into dotted names."""

from collections.abc import Mapping
from typing import Any


def flatten(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested sections into one dictionary of dotted names.

    An empty section leaves no name.

    Example:
      >>> flatten({"a": 1, "b": {"c": 2}, "d": {}})
      {'a': 1, 'b.c': 2}
    """
    flat = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
