"""Flattens nested sections into dotted names."""

from collections.abc import Mapping
from typing import Any


def flatten(
    fields: Mapping[str, Any], prefix: str = "", dot: str = "."
) -> dict[str, Any]:
    """Flattens nested sections into one dictionary of dotted names.

    An empty section leaves no name.

    Args:
      fields: values, or sections of them, by name.
      prefix: what all names begin with.
      dot: what joins the name of a section to one in it.

    Example:
      >>> flatten({"a": 1, "b": {"c": 2}, "d": {}})
      {'a': 1, 'b.c': 2}
    """
    flat = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}{dot}", dot)
        else:
            flat[prefix + name] = value
    return flat
