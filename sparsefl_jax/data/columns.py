"""Finds the columns of a data set by the types of their features.

Columns' names are ignored: what the types leave open is refused, with the
candidates, until the user names a column.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparsefl_jax.core.check import UserError, check

_PICTURE = {"bytes", "path"}  # an image in a file that does not say that it is one
_KINDS = {  # by how the names of types begin, or of the dtypes of values
    "Image": "image",
    "ClassLabel": "classes",
    "Text": "text",
    "Array": "list",
    "string": "text",
    "large_string": "text",
    "bool": "integer",
    "int": "integer",
    "uint": "integer",
    "float": "float",
}
_NUMBERS = ("float", "integer", "list")
_ALLOWED = {
    "image": ("image",),
    "text": ("text",),
    "table": _NUMBERS,
    "label": ("classes", "integer", "text"),
    "user": ("text", "integer", "classes"),
}


class Columns(NamedTuple):
    """The columns that are read.

    Attributes:
      kind: 'image', 'text' or 'table', the kind of the samples.
      samples: the columns of the samples; several only for a table.
      label: the column of the labels.
      user: the column of the users, or None.
    """

    kind: str
    samples: tuple[str, ...]
    label: str
    user: str | None


def kind_of(feature: Any) -> str:
    """Returns what a feature can be used as.

    Args:
      feature: of the library `datasets`, such as `Value("string")` or `Image()`; or an
        image, a text or classes of TFDS.

    Returns:
      'image', 'classes', 'text', 'integer' (booleans too), 'float', 'list' of numbers,
      or 'other'.
    """
    if isinstance(feature, dict) and set(feature) == _PICTURE:
        return "image"
    if inner := getattr(feature, "feature", None):
        return "list" if kind_of(inner) in ("integer", "float") else "other"
    name = type(feature).__name__
    name = feature.dtype if name == "Value" else name
    begins = (kind for begin, kind in _KINDS.items() if name.startswith(begin))
    return next(begins, "other")


def choose(features: Mapping[str, Any], **named: str | Sequence[str]) -> Columns:
    """Chooses the columns of samples, labels and users.

    What is not named is found by type. The label is the only ClassLabel, or else the
    only column of integers. The samples are the only Image, the only text, the only
    list of numbers, or all columns of floats. Users are named.

    Args:
      features: by column, as `kind_of` takes them.
      **named: by role, a column: the `image` or `text` of the samples, the `label`
        (classes, integers or texts), the `user` (texts, integers or classes); or
        `table`, columns of numbers that together are the samples, or one of lists.

    Raises:
      ValueError: a column is unknown or of another type, or several could be meant.

    Example:
      >>> from types import SimpleNamespace
      >>> Value = type("Value", (SimpleNamespace,), {})
      >>> features = {"age": Value(dtype="float32"), "ill": Value(dtype="bool")}
      >>> choose(features)
      Columns(kind='table', samples=('age',), label='ill', user=None)
    """
    free = {name: kind_of(feature) for name, feature in features.items()}
    roles = {r: (c,) if isinstance(c, str) else tuple(c) for r, c in named.items()}
    for role, columns in roles.items():
        for column in columns:
            check(f"hf.{role}", column, free)
            check(f"hf.{role}={column!r}: type", free.pop(column), _ALLOWED[role])
    given = [role for role in ("image", "text", "table") if role in roles]
    if len(given) > 1:
        raise UserError(f"hf.{' and hf.'.join(given)} are set, expected one")
    label = roles["label"][0] if "label" in roles else _label(free)
    free.pop(label, None)
    kind, samples = (given[0], roles[given[0]]) if given else _samples(free)
    return Columns(kind, samples, label, *roles.get("user", (None,)))


def _label(free) -> str:
    """Returns the only column of classes, or else of integers."""
    found = _of(free, "classes") or _of(free, "integer")
    if len(found) != 1:
        raise _ambiguity("label", found or list(free), free)
    return found[0]


def _samples(free) -> tuple[str, tuple[str, ...]]:
    """Returns the kind of the samples and their columns."""
    images, texts = _of(free, "image"), _of(free, "text")
    found = images or texts + _of(free, "float", "list")
    if found and not images + texts:
        found = _of(free, *_NUMBERS)  # integers may be features too
    kinds = {free[name] for name in found}
    if len(kinds) != 1 or len(found) > 1 and kinds != {"float"}:
        raise _ambiguity("image, hf.text or hf.table", found or list(free), free)
    kind = kinds.pop()
    return "table" if kind in _NUMBERS else kind, tuple(found)


def _of(kinds, *wanted) -> list[str]:
    return [name for name, kind in kinds.items() if kind in wanted]


def _ambiguity(role, found, free) -> UserError:
    """Returns the error for a choice that the types leave open."""
    choices = ", ".join(f"{name} ({free[name]})" for name in found)
    return UserError(f"name hf.{role}, one of {choices or 'no column'}")
