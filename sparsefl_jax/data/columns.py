"""Finds the columns of a data set by the types and values of their features.

Columns' names are ignored: what types and values leave open is refused, with the
candidates, until the user names a column.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sparsefl_jax.core.check import UserError, check, closest
from sparsefl_jax.core.formats import some

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
_CATEGORIES = ("text", "classes")
_ALLOWED = {
    "image": ("image",),
    "text": ("text",),
    "table": ("float", "integer", "list", *_CATEGORIES),
    "label": ("classes", "integer", "text", "float"),
    "user": ("text", "integer", "classes"),
}
_SHOWN = 8  # names in a message


class Values(NamedTuple):
    """What the values of a column of texts, classes or integers are.

    Attributes:
      distinct: how many differ.
      rows: how many there are.
      years: whether they all are integers from 1900 to 2100.
    """

    distinct: int
    rows: int
    years: bool = False

    def varies(self) -> bool:
        """Returns whether some rows share a value and some do not, unlike an id."""
        return 1 < self.distinct < self.rows

    def divide(self) -> bool:
        """Returns whether values are shared by two rows or more on average."""
        return self.varies() and self.distinct <= max(2, self.rows // 2)


class Columns(NamedTuple):
    """The columns that are read.

    Attributes:
      kind: 'image', 'text' or 'table', the kind of the samples.
      samples: the columns of the samples; several only for a table.
      label: the column of the labels.
      user: the column of the users, or None.
      left_out: the other columns.
    """

    kind: str
    samples: tuple[str, ...]
    label: str
    user: str | None
    left_out: tuple[str, ...] = ()


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


def choose(
    features: Mapping[str, Any],
    values: Callable[[str], Values] = lambda column: Values(3, 4),
    **named: str | Sequence[str],
) -> Columns:
    """Chooses the columns of samples, labels and users.

    What is not named is found. The label is the only ClassLabel, or else the only
    column of integers, or of texts in a table or without integers, whose values are
    neither one for each row nor years. The samples are the only Image, the only text,
    the only list of numbers, or all numbers and categories but integers that differ in
    each row. Users are named.

    Args:
      features: by column, as `kind_of` takes them.
      values: of a column of texts, classes or integers; they are not known by default.
      **named: by role, a column: the `image` or `text` of the samples, the `label`
        (classes, integers or texts; numbers that are to be predicted), the `user`
        (texts, integers or classes); or `table`, columns or globs of columns that
        together are the samples (numbers, texts, classes), or one of lists.

    Raises:
      ValueError: a column is unknown or of another type, or several could be meant.

    Example:
      >>> from types import SimpleNamespace
      >>> Value = type("Value", (SimpleNamespace,), {})
      >>> features = {"age": Value(dtype="float32"), "ill": Value(dtype="bool")}
      >>> chosen = choose(features, lambda column: Values(distinct=2, rows=9))
      >>> chosen.samples, chosen.label
      (('age',), 'ill')
    """
    free = {name: kind_of(feature) for name, feature in features.items()}
    roles = {r: (c,) if isinstance(c, str) else tuple(c) for r, c in named.items()}
    if globs := roles.get("table"):
        others = *roles.get("label", ()), *roles.get("user", ())
        found = sum((fnmatch.filter(free, glob) or [glob] for glob in globs), [])
        roles["table"] = tuple(c for c in dict.fromkeys(found) if c not in others)
    for role, columns in roles.items():
        for column in columns:
            near = closest(column, free, _SHOWN, 0.0)  # a table may have thousands
            check(f"hf.{role}", column, free if column in free else near)
            check(f"hf.{role}={column!r}: type", free.pop(column), _ALLOWED[role])
    given = [role for role in ("image", "text", "table") if role in roles]
    if len(given) > 1:
        raise UserError(f"hf.{' and hf.'.join(given)} are set, expected one")
    beside_table = given == ["table"] or not given and "image" not in free.values()
    label = roles.get("label") or (_label(free, values, beside_table),)
    free.pop(label[0], None)  # which is not there if it was named
    kind, samples = (given[0], roles[given[0]]) if given else _samples(free, values)
    left_out = tuple(column for column in free if column not in samples)
    return Columns(kind, samples, *label, *roles.get("user", (None,)), left_out)


def _label(free, values, beside_table: bool) -> str:
    """Returns the only column of classes, or else of few integers or texts."""
    known = found = _of(free, "classes")
    if not known:
        texts = beside_table or "integer" not in free.values()
        known = _of(free, "integer", *["text"] * texts)
        found = [c for c in known if values(c).divide() and not values(c).years]
    if len(found) == 1:
        return found[0]
    counts = {c: values(c).distinct for c in found or known}
    offered = [f"{_flag('label', [c])} ({n} values)" for c, n in counts.items()]
    raise _open("label", found, offered)


def _samples(free, values) -> tuple[str, tuple[str, ...]]:
    """Returns the kind of the samples and their columns."""
    found = [("image", (column,)) for column in _of(free, "image")]
    if not found:
        integers = [c for c in _of(free, "integer") if values(c).varies()]
        categories = [c for c in _of(free, *_CATEGORIES) if values(c).divide()]
        prose = [c for c in _of(free, "text") if c not in categories]
        found = [("text", (c,)) for c in prose if values(c).distinct > 1]
        found += [("table", (column,)) for column in _of(free, "list")]
        floats = _of(free, "float")
        table = tuple(c for c in free if c in {*floats, *integers, *categories})
        if floats or categories or (table and not found):
            alone = len(table) == 1 and free[table[0]] == "text"
            found.append(("text" if alone else "table", table))
    if len(found) != 1:
        raise _open("samples", found, [_flag(*one) for one in found])
    return found[0]


def _open(role: str, found: Sequence, offered: Sequence[str]) -> UserError:
    """Returns the error for a choice that types and values leave open."""
    why = "several columns could be" if found else "no column is surely"
    return UserError(f"{why} the {role}; name it: {some(offered) or 'there is none'}")


def _of(kinds, *wanted) -> list[str]:
    return [name for name, kind in kinds.items() if kind in wanted]


def _flag(role: str, columns: Sequence[str]) -> str:
    """Returns the flag that names columns, globs standing for more than a few."""
    listed = f"({','.join(map(repr, columns))})" if len(columns) > 1 else columns[0]
    listed = listed if len(columns) <= _SHOWN else "GLOB"
    return f"--config.hf.{role}=" + (listed if listed.isidentifier() else f'"{listed}"')
