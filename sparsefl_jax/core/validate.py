"""Checks values; each error names the argument, its value and what is expected."""

import contextlib
import difflib
import math
import numbers
from collections.abc import Iterable, Iterator
from inspect import Parameter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

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


def typed(name: str, value: Any, kind: Any) -> None:
    """Checks the type of a value, and its range or that it is one of some choices.

    Args:
      name: the argument's name in the message.
      value: any value.
      kind: int, float, bool, str, tuple, `tuple[kind, ...]`, another class, or object
        for anything; `Annotated[kind, interval]` with an interval as in `in_range`; a
        `Literal` of choices; or a union of these or None.

    Raises:
      ValueError: the type or the value is wrong. NaN and infinity are not accepted, nor
        is a bool as a number; an integer is accepted as a float, and a list as a tuple.

    Example:
      >>> typed("widths", (64, 32), tuple[int, ...])
      >>> typed("widths", (64, "a"), tuple[int, ...])
      Traceback (most recent call last):
        ...
      ValueError: widths=(64, 'a'), expected a tuple, each an integer below 2**31
      >>> typed("density", 2, Annotated[float, "(0, 1]"] | None)
      Traceback (most recent call last):
        ...
      ValueError: density=2, expected in (0, 1]
    """
    if _fits(value, kind):
        return
    for one in _members(kind):
        if get_origin(one) is Literal:
            one_of(name, value, get_args(one))
        if get_origin(one) is Annotated and _fits(value, get_args(one)[0]):
            in_range(name, value, get_args(one)[1])
    text = " ".join(repr(value).split())
    text = text if len(text) < 60 else text[:57] + "..."
    raise ValueError(f"{name}={text}, expected {_words(kind)}")


def checkable(kind: Any) -> bool:
    """Returns whether `typed` can check an annotation.

    Callables, lists, sequences, protocols, `Any`, annotations that are strings, and
    those with other facts than a range cannot be checked.

    Example:
      >>> checkable(float), checkable(Literal["a", "b"] | None), checkable(Any)
      (True, True, False)
      >>> checkable(Annotated[float, "(0, 1]"]), checkable(Annotated[float, "seconds"])
      (True, False)
    """
    if len(members := _members(kind)) > 1:
        return all(map(checkable, members))
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return checkable(parts[0]) and str(parts[1])[0] in "[("
    if origin is tuple:
        return parts[-1] is Ellipsis
    plain = type(kind) is type and kind not in (Parameter.empty, list)
    return plain or origin is Literal


def in_range(name: str, value: float, interval: str) -> None:
    """Checks that a number lies in an interval.

    Args:
      name: the argument's name in the message.
      value: the number; NaN lies in no interval.
      interval: in mathematical notation, such as '(0, 1]' or '[0, inf)'.

    Raises:
      ValueError: it does not.

    Example:
      >>> in_range("density", 1.0, "(0, 1]")
      >>> in_range("density", 0.0, "(0, 1]")
      Traceback (most recent call last):
        ...
      ValueError: density=0.0, expected in (0, 1]
    """
    if not _lies_in(value, interval):
        raise ValueError(f"{name}={value}, expected in {interval}")


def at_least(name: str, value: float, least: float) -> None:
    """Checks that a number is at least `least`.

    Raises:
      ValueError: it is smaller.

    Example:
      >>> at_least("epochs", 0, 1)
      Traceback (most recent call last):
        ...
      ValueError: epochs=0, expected at least 1
    """
    if not value >= least:
        raise ValueError(f"{name}={value}, expected at least {least}")


def above(name: str, value: float, bound: float) -> None:
    """Checks that a number is above `bound`.

    Raises:
      ValueError: it is not.

    Example:
      >>> above("scale", 0.0, 0)
      Traceback (most recent call last):
        ...
      ValueError: scale=0.0, expected above 0
    """
    if not value > bound:
        raise ValueError(f"{name}={value}, expected above {bound}")


def whole(name: str, value: float, least: int, most: int | None = None) -> None:
    """Checks that a number is an integer from `least` to `most`.

    Args:
      name: the argument's name in the message.
      value: the number; 4.0 is accepted as 4.
      least: the smallest integer allowed.
      most: the largest integer allowed; None for no bound.

    Raises:
      ValueError: it is not.

    Example:
      >>> whole("rounds", 200, 2, 1000)
      >>> whole("rounds", 2.5, 2, 1000)
      Traceback (most recent call last):
        ...
      ValueError: rounds=2.5, expected an integer from 2 to 1000
    """
    bound = math.inf if most is None else most
    if not (least <= value <= bound and math.isfinite(value) and value == int(value)):
        end = "" if most is None else f" to {most}"
        raise ValueError(f"{name}={value}, expected an integer from {least}{end}")


def one_of(name: str, value: Any, allowed: Iterable) -> None:
    """Checks that a value is one of those allowed.

    Raises:
      ValueError: it is not; the message suggests the closest one that is allowed, if
        any is spelled alike.

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


def unread(field: str, why: str) -> ValueError:
    """Returns the error for a field that would have no effect.

    Example:
      >>> unread("hf.hash=9", "'mnist' has no texts")
      ValueError("hf.hash=9 has no effect here: 'mnist' has no texts")
    """
    return ValueError(f"{field} has no effect here: {why}")


def closest(
    value: Any, known: Iterable, count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Returns the known names whose spelling is closest to a value, closest first.

    Args:
      value: the value that was given.
      known: the names; entries that are not strings are ignored.
      count: maximum number of names to return.
      cutoff: minimum similarity, in [0, 1].

    Example:
      >>> closest("adma", ("sgd", "adam"))
      ['adam']
    """
    names = [name for name in known if isinstance(name, str)]
    return difflib.get_close_matches(str(value), names, n=count, cutoff=cutoff)


def _lies_in(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = low < value if interval[0] == "(" else low <= value
    below = value < high if interval[-1] == ")" else value <= high
    return above and below


def _members(kind) -> tuple:
    """Returns the kinds of a union, or the one that is none."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _fits(value, kind) -> bool:
    if len(members := _members(kind)) > 1:
        return any(_fits(value, one) for one in members)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in parts
    if origin is Annotated:
        return _fits(value, parts[0]) and _lies_in(value, parts[1])
    if origin is tuple:
        return _fits(value, tuple) and all(_fits(v, parts[0]) for v in value)
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
    if len(members := _members(kind)) > 1:
        return " or ".join(map(_words, members))
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin is Annotated:
        return f"{_words(parts[0])} in {parts[1]}"
    if origin is tuple:
        return f"a tuple, each {_words(parts[0])}"
    return _WORDS.get(kind) or f"a {kind.__name__}"


@contextlib.contextmanager
def blaming(what: object, kind: type[Exception] = ValueError) -> Iterator[None]:
    """Turns every error within the context into one line that begins with its cause.

    Args:
      what: the cause, such as a file that may be damaged.
      kind: the class of the error that is raised.

    Example:
      >>> with blaming("config.json"):
      ...     int("many")
      Traceback (most recent call last):
        ...
      ValueError: config.json: invalid literal for int() with base 10: 'many'
    """
    try:
        yield
    except Exception as error:
        raise kind(f"{what}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Returns an error's message without line breaks or the quotes of a KeyError."""
    plain = isinstance(error, KeyError) and error.args
    text = str(error.args[0] if plain else error)
    return " ".join(text.split()) or type(error).__name__
