"""Whether a value is of the kind that an argument takes; one line where it is not."""

import math
import numbers
from types import NoneType, UnionType
from typing import get_args, get_origin

_WORDS = {
    int: "an integer below 2**31",
    float: "a finite number",
    bool: "True or False",
    str: "a string",
    tuple: "a tuple",
    dict: "a section with a name",
    NoneType: "None",
    object: "a finite number",
}


def typed(name: str, value, kind) -> None:
    """Refuses a value that is not of a kind.

    Args:
      name: how the message calls it.
      value: anything.
      kind: int, float, bool, str, tuple, `tuple[kind, ...]`, a union of these or None,
        another class, or object for anything.

    Raises:
      ValueError: in one line. NaN and infinity fit nothing, integers fit float, a bool
        is no number, and a list is as good as a tuple.

    Example:
      >>> typed("widths", (64, 32), tuple[int, ...])
      >>> typed("widths", (64, "a"), tuple[int, ...])
      Traceback (most recent call last):
        ...
      ValueError: widths=(64, 'a'), expected a tuple, each an integer below 2**31
    """
    if not _fits(value, kind):
        text = " ".join(repr(value).split())
        text = text if len(text) < 60 else text[:57] + "..."
        raise ValueError(f"{name}={text}, expected {_words(kind)}")


def _fits(value, kind) -> bool:
    if isinstance(kind, UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        each = get_args(kind)[0]
        return _fits(value, tuple) and all(_fits(v, each) for v in value)
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, numbers.Integral) and value < 2**31
    if kind is float:
        return isinstance(value, numbers.Real) and math.isfinite(value)
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, (tuple, list) if kind is tuple else kind)


def _words(kind) -> str:
    if isinstance(kind, UnionType):
        return " or ".join(_words(one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return f"a tuple, each {_words(get_args(kind)[0])}"
    return _WORDS.get(kind) or f"a {kind.__name__}"


def one_line(error: Exception) -> str:
    """An error's message without line breaks or the quotes of a KeyError.

    ml_collections puts the traceback of a configuration file into its own message; what
    the file said stands after the last, indented, line of it.
    """
    plain = isinstance(error, KeyError) and error.args
    text = str(error.args[0] if plain else error)
    if "Traceback" in text:
        lines = text.rstrip().splitlines()
        last = max(i for i, line in enumerate(lines) if line.startswith("  "))
        kind, _, told = " ".join(lines[last + 1 :]).partition(": ")
        text = told or kind
    return " ".join(text.split()) or type(error).__name__
