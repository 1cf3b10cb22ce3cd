"""Finds the columns of a Hugging Face data set by the types of their features.

Columns' names are ignored: what the types leave open is refused, with the
candidates, until the user names a column.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparsefl_jax.core.check import UserError, check

_PICTURE = {"bytes", "path"}  # an image in a file that does not say that it is one
_VALUES = {  # by how the names of their dtypes begin
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
      feature: of the library `datasets`, such as `Value("string")` or `Image()`.

    Returns:
      'image', 'classes', 'text', 'integer' (booleans too), 'float', 'list' of numbers,
      or 'other'.
    """
    name, dtype = type(feature).__name__, str(getattr(feature, "dtype", ""))
    if name == "Image" or (isinstance(feature, dict) and set(feature) == _PICTURE):
        return "image"
    if name == "ClassLabel":
        return "classes"
    if name in ("Array2D", "Array3D"):
        return "list"
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", 0)
    if inner:
        return "list" if kind_of(inner) in ("integer", "float") else "other"
    if name != "Value":
        return "other"
    begins = (kind for begin, kind in _VALUES.items() if dtype.startswith(begin))
    return next(begins, "other")


def choose(
    features: Mapping[str, Any],
    *,
    image: str | None = None,
    text: str | None = None,
    table: Sequence[str] = (),
    label: str | None = None,
    user: str | None = None,
) -> Columns:
    """Chooses the columns of samples, labels and users.

    What is not named is found by type. The label is the only ClassLabel, or else the
    only column of integers. The samples are the only Image, the only text, the only
    list of numbers, or all columns of floats. The user is the only other text, unless
    the samples are texts themselves.

    Args:
      features: by column, as `kind_of` takes them.
      image, text: the column of the samples.
      table: columns of numbers that together are the samples, or one column of lists.
      label: the column of the labels: classes, integers or texts.
      user: the column of the users: texts, integers or classes.

    Raises:
      ValueError: a column is unknown or of another type, or several could be meant.

    Example:
      >>> from types import SimpleNamespace
      >>> Value = type("Value", (SimpleNamespace,), {})
      >>> features = {"age": Value(dtype="float32"), "ill": Value(dtype="bool")}
      >>> choose(features)
      Columns(kind='table', samples=('age',), label='ill', user=None)
    """
    kinds = {name: kind_of(feature) for name, feature in features.items()}
    named = {"image": image, "text": text, "label": label, "user": user}
    named = {role: column for role, column in named.items() if column is not None}
    pairs = [*named.items(), *(("table", column) for column in table)]
    for role, column in pairs:
        check(f"hf.{role}", column, kinds)
        if kinds[column] not in _ALLOWED[role]:
            expected = " or ".join(_ALLOWED[role])
            raise UserError(
                f"hf.{role}={column!r} is of type {kinds[column]}, expected {expected}"
            )
    taken = [column for _, column in pairs]
    if len(set(taken)) < len(taken):
        raise UserError(f"hf names a column twice: {', '.join(taken)}")
    free = {name: kind for name, kind in kinds.items() if name not in taken}
    label = label or _label(free)
    free.pop(label, None)
    given = {role: (named[role],) for role in ("image", "text") if role in named}
    given |= {"table": tuple(table)} if table else {}
    if len(given) > 1:
        raise UserError(f"hf.{' and hf.'.join([*given][:2])} are set, expected one")
    ((kind, samples),) = given.items() or [_samples(free)]
    texts = [name for name in _of(free, "text") if name not in samples]
    if user is None and kind != "text" and len(texts) == 1:
        user = texts[0]
    return Columns(kind, samples, label, user)


def _label(free) -> str:
    """Returns the only column of classes, or else of integers."""
    found = _of(free, "classes") or _of(free, "integer")
    if len(found) == 1:
        return found[0]
    raise _open("label", "label", found or _of(free, "text"), free)


def _samples(free) -> tuple[str, tuple[str, ...]]:
    """Returns the kind of the samples and their columns."""
    for kind in ("image", "text"):
        found = _of(free, kind)
        numbers = _of(free, "float", "list") if kind == "text" else []
        if len(found) == 1 and not numbers:
            return kind, (found[0],)
        if found:
            role = "text or hf.table" if numbers else kind
            raise _open("samples", role, [*found, *numbers], free)
    floats, lists = _of(free, "float"), _of(free, "list")
    numbers = _of(free, *_NUMBERS)
    if numbers == floats and floats or numbers == lists and len(lists) == 1:
        return "table", tuple(numbers)
    raise _open("samples", "table", numbers, free)


def _of(kinds, *wanted) -> list[str]:
    return [name for name, kind in kinds.items() if kind in wanted]


def _open(what, role, candidates, free) -> ValueError:
    """Returns the error for a choice that the types leave open."""
    choices = ", ".join(f"{name} ({free[name]})" for name in candidates)
    if not candidates:
        others = ", ".join(f"{name} ({kind})" for name, kind in free.items())
        return ValueError(f"there is no column for the {what}: {others or 'no other'}")
    return ValueError(f"the {what} may be {choices}: name it as hf.{role}")
