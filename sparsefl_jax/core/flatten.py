"""Names of nested sections: flattened into dotted ones, and renamed."""

import re
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


def rename(fields: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Renames the ending of names, in nested sections too.

    Example:
      >>> rename({"val_accuracy": 1, "a": {"accuracy": 2}}, "accuracy", "value")
      {'val_value': 1, 'a': {'value': 2}}
    """
    return {
        re.sub(f"{old}$", new, name): rename(v, old, new) if isinstance(v, dict) else v
        for name, v in fields.items()
    }
