"""Checks what users give; errors name the argument, its value and what is expected."""

import contextlib
import difflib
import functools
import inspect
import math
import numbers
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from sparsefl_jax.core import users_code

F = TypeVar("F", bound=Callable)
_WORDS = {
    int: "an integer below 2**31",
    float: "a finite number",
    bool: "True or False",
    str: "a string",
    tuple: "a tuple",
    dict: "a section with a name",
    NoneType: "None",
    object: "a finite value",
}


class UserError(ValueError):
    """A mistake in what a user has given; commands tell it in one line."""


UserError.__module__ = "sparsefl_jax"  # where users find it


def check(name: str, value: Any, kind: Any) -> None:
    """Checks a value's type, its range, or that it is one of some choices.

    Args:
      name: the argument's name in the message.
      value: any value.
      kind: an interval in mathematical notation, such as '(0, 1]' or '[0, inf)', for
        any number; a collection of choices; or a type: int, float, bool, str, tuple,
        `tuple[kind, ...]`, another class, or object for anything; `Annotated[kind,
        interval]`, see `integer`; a `Literal` of choices; a union of these or None.

    Raises:
      UserError: the value is not so. NaN lies in no interval. As a type, NaN and
        infinity are not accepted, nor is a bool as a number; an integer is accepted as
        a float, and a list as a tuple. Of choices, the message suggests the closest.

    Example:
      >>> check("widths", (64, 32), tuple[int, ...])
      >>> check("widths", (64, "a"), tuple[int, ...])
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: widths=(64, 'a'), expected a tuple, each an integer below
      2**31
      >>> check("density", 2, Annotated[float, "(0, 1]"] | None)
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: density=2, expected in (0, 1] or None
      >>> check("metric", "poled", ("auto", "pooled"))
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: metric='poled' (did you mean 'pooled'?), expected one of
      auto, pooled
    """
    if expected := _explain(value, kind):
        text = repr(value) if isinstance(value, str) else str(value)
        text = " ".join(text.split())
        text = text if len(text) < 60 else text[:57] + "..."
        choices = re.split(", | or ", expected.partition("one of ")[2])
        near = closest(value, choices)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(f"{name}={text}{hint}, expected {expected}")


def integer(least: int, most: int | None = None) -> Any:
    """Returns the kind of an integer from `least` to `most`; None for no bound.

    Example:
      >>> check("rounds", 1, integer(2, 1000))
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: rounds=1, expected in [2, 1000]
    """
    end = "inf)" if most is None else f"{most}]"
    return Annotated[int, f"[{least}, {end}"]


def can_check(kind: Any) -> bool:
    """Returns whether `check` can check an annotation.

    Callables, lists, sequences, protocols, `Any`, annotations that are strings, and
    those with other facts than a range cannot be checked.

    Example:
      >>> can_check(float), can_check(Literal["a", "b"] | None), can_check(Any)
      (True, True, False)
      >>> can_check(Annotated[float, "(0, 1]"]), can_check(Annotated[float, "seconds"])
      (True, False)
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return all(map(can_check, parts))
    if origin is Annotated:
        return can_check(parts[0]) and str(parts[1])[0] in "[("
    if origin is tuple:
        return parts[-1] is Ellipsis
    plain = type(kind) is type and kind not in (inspect.Parameter.empty, list)
    return plain or origin is Literal


def check_arguments(function: F) -> F:
    """Decorates a function, which checks the arguments that it is given.

    Each is checked by its annotation, if `can_check` says that it can be.

    Example:
      >>> @check_arguments
      ... def double(share: Annotated[float, "[0, 0.5]"]):
      ...     return 2 * share
      >>> double(0.8)
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: share=0.8, expected in [0, 0.5]
    """
    kinds = {n: p.annotation for n, p in inspect.signature(function).parameters.items()}

    @functools.wraps(function)
    def call(*args, **kwargs):
        for name, value in (dict(zip(kinds, args, strict=False)) | kwargs).items():
            if name in kinds and can_check(kinds[name]):
                check(name, value, kinds[name])
        return function(*args, **kwargs)

    return cast(F, call)


def unread(field: str, why: str) -> UserError:
    """Returns the error for a field that would have no effect.

    Example:
      >>> unread("max_tokens=9", "it goes with tokenizer")
      UserError('max_tokens=9 has no effect here: it goes with tokenizer')
    """
    return UserError(f"{field} has no effect here: {why}")


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


def _interval(interval: str) -> str:
    """Returns words for an interval.

    Example:
      >>> _interval("[1, inf)"), _interval("(0, inf)"), _interval("(0, 1]")
      ('at least 1', 'above 0', 'in (0, 1]')
    """
    if ", inf" in interval:
        least = interval[1:].partition(",")[0]
        return f"at least {least}" if interval[0] == "[" else f"above {least}"
    return f"in {interval}"


def _lies_in(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = low < value if interval[0] == "(" else low <= value
    below = value < high if interval[-1] == ")" else value <= high
    return above and below


def _explain(value: Any, kind: Any) -> str:
    """Returns words for a kind that a value does not fit, and '' if it does."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, str):
        return "" if _lies_in(value, kind) else _interval(kind)
    if origin is Literal or isinstance(kind, Collection):
        choices = list(parts or kind)
        known = ", ".join(map(str, choices)) or "none"
        return "" if value in choices else f"one of {known}"
    if origin in (Union, UnionType):
        expected = [_explain(value, one) for one in parts]
        return "" if "" in expected else " or ".join(expected)
    if origin is Annotated:
        expected = _explain(value, parts[0])
        within = f"{expected}, {_interval(parts[1])}"
        return within if expected else _explain(value, parts[1])
    if origin is tuple:
        items = value if isinstance(value, tuple | list) else [math.nan]  # fits no kind
        wrong = any(_explain(item, parts[0]) for item in items)
        return f"a tuple, each {_explain(math.nan, parts[0])}" if wrong else ""
    return "" if _is(value, kind) else _WORDS.get(kind) or f"a {kind.__name__}"


def _is(value: Any, kind: type) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, numbers.Integral) and value < 2**31
    if kind is float:
        return isinstance(value, numbers.Real) and math.isfinite(value)
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, (tuple, list) if kind is tuple else kind)


def words(kind: Any) -> str:
    """Returns what a value of a kind is, see `check`.

    Example:
      >>> words(Annotated[float, "(0, 1]"] | None)
      'a finite number, in (0, 1] or None'
    """
    return _explain(math.nan, kind)  # which fits no kind


@contextlib.contextmanager
def blame(what: object, kind: type[Exception] = UserError) -> Iterator[None]:
    """Turns every error within the context into one line that begins with its cause.

    An error that comes out of a user's own code stays as it is.

    Args:
      what: the cause, such as a file that may be damaged.
      kind: the class of the error that is raised.

    Example:
      >>> with blame("a.json"):
      ...     int("many")
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: a.json: invalid literal for int() with base 10: 'many'
    """
    try:
        yield
    except Exception as error:
        if kind is UserError and users_code.owns(error):
            raise
        raise kind(f"{what}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Returns an error's message without line breaks or the quotes of a KeyError."""
    plain = isinstance(error, KeyError) and error.args
    text = str(error.args[0] if plain else error)
    return " ".join(text.split()) or type(error).__name__
