"""Flattens nested sections into dotted names."""

from typing import Any

from flax.traverse_util import flatten_dict


def flatten(fields: dict[str, Any]) -> dict[str, Any]:
    """Flattens nested sections into one dictionary of dotted names.

    Empty sections are left out.

    Example:
      >>> flatten({"a": 1, "b": {"c": 2}, "d": {}})
      {'a': 1, 'b.c': 2}
    """
    return flatten_dict(fields, sep=".")
