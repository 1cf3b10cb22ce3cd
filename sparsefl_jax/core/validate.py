"""Refuses values that an argument does not take: one line with what it does take."""

import difflib
import math
import numbers
from collections.abc import Iterable
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


def in_range(name: str, value: float, interval: str) -> None:
    """Refuses a number outside an interval.

    Args:
      name: how the message calls it.
      value: the number; NaN lies in no interval.
      interval: as mathematics writes it, such as '(0, 1]'.

    Raises:
      ValueError: in one line.

    Example:
      >>> in_range("density", 1.0, "(0, 1]")
      >>> in_range("density", 0.0, "(0, 1]")
      Traceback (most recent call last):
        ...
      ValueError: density=0.0, expected in (0, 1]
    """
    low, high = map(float, interval[1:-1].split(","))
    above = low < value if interval[0] == "(" else low <= value
    below = value < high if interval[-1] == ")" else value <= high
    if not (above and below):
        raise ValueError(f"{name}={value}, expected in {interval}")


def at_least(name: str, value: float, least: float) -> None:
    """Refuses a number below `least`.

    Raises:
      ValueError: in one line.

    Example:
      >>> at_least("epochs", 0, 1)
      Traceback (most recent call last):
        ...
      ValueError: epochs=0, expected at least 1
    """
    if not value >= least:
        raise ValueError(f"{name}={value}, expected at least {least}")


def above(name: str, value: float, bound: float) -> None:
    """Refuses a number that is not above `bound`.

    Raises:
      ValueError: in one line.

    Example:
      >>> above("scale", 0.0, 0)
      Traceback (most recent call last):
        ...
      ValueError: scale=0.0, expected above 0
    """
    if not value > bound:
        raise ValueError(f"{name}={value}, expected above {bound}")


def one_of(name: str, value, allowed: Iterable) -> None:
    """Refuses a value that is none of those allowed, and names the closest of these.

    Raises:
      ValueError: in one line.

    Example:
      >>> one_of("metric", "poled", ("auto", "pooled"))
      Traceback (most recent call last):
        ...
      ValueError: metric='poled' (did you mean 'pooled'?), expected one of auto, pooled
    """
    allowed = list(allowed)
    if value in allowed:
        return
    near = closest(value, allowed)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    words = ", ".join(map(str, allowed)) or "none"
    raise ValueError(f"{name}={value!r}{hint}, expected one of {words}")


def closest(value, known: Iterable, count: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that are spelt most like a value, the closest first.

    Args:
      value: what was given.
      known: the names; what is no string is left out.
      count: how many to return at most.
      cutoff: how alike they have to be, in [0, 1].

    Example:
      >>> closest("adma", ("sgd", "adam"))
      ['adam']
    """
    names = [name for name in known if isinstance(name, str)]
    return difflib.get_close_matches(str(value), names, n=count, cutoff=cutoff)


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
