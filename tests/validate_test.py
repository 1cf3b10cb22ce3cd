"""Errors name the argument, its value and what is allowed."""

import inspect
import math
from typing import Annotated, Any, Literal

import pytest

from sparsefl_jax.core import validate

SHARE, COUNT = Annotated[float, "(0, 1]"], Annotated[int, "[1, inf)"]
CHOICE = Literal["mean", "median"]


def test_nan_lies_in_no_interval():
    with pytest.raises(ValueError, match=r"^share=nan, expected in \[0, inf\)$"):
        validate.in_range("share", math.nan, "[0, inf)")


@pytest.mark.parametrize("wrong", [-math.inf, math.inf, math.nan])
def test_what_is_not_finite_is_no_integer(wrong):
    with pytest.raises(ValueError, match=f"^rounds={wrong}, expected an integer from"):
        validate.whole("rounds", wrong, 2)


@pytest.mark.parametrize(
    "value, allowed, message",
    [
        ("c", ("a", None), "kind='c', expected one of a, None"),
        (3, (), "kind=3, expected one of none"),
        (["a"], {"a": 1}, r"kind=['a'], expected one of a"),
    ],
)
def test_what_is_none_of_the_allowed(value, allowed, message):
    with pytest.raises(ValueError) as caught:
        validate.one_of("kind", value, allowed)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "kind, right, wrong, message",
    [
        (SHARE, 1, 2, "2, expected in (0, 1]"),
        (SHARE | None, None, 2, "2, expected in (0, 1]"),
        (SHARE, 0.5, math.nan, "nan, expected a finite number in (0, 1]"),
        (SHARE | None, 1.0, "1", "'1', expected a finite number in (0, 1] or None"),
        (COUNT, 1, 0, "0, expected in [1, inf)"),
        (COUNT, 2, True, "True, expected an integer below 2**31 in [1, inf)"),
        (CHOICE | None, None, 3, "3, expected one of mean, median"),
        (
            tuple[SHARE, ...],
            (1, 0.5),
            (2.0,),
            "(2.0,), expected a tuple, each a finite",
        ),
        (tuple[CHOICE, ...], ["mean"], ("x",), "('x',), expected a tuple, each one of"),
        (int | str, "x", None, "None, expected an integer below 2**31 or a string"),
    ],
)
def test_an_annotation_says_what_is_allowed(kind, right, wrong, message):
    assert validate.checkable(kind)
    validate.typed("part", right, kind)
    with pytest.raises(ValueError) as caught:
        validate.typed("part", wrong, kind)
    assert str(caught.value).startswith(f"part={message}")


@pytest.mark.parametrize(
    "kind",
    [
        *(Any, Any | None, list[int], list, "float", inspect.Parameter.empty),
        *(tuple[int, float], Annotated[float, "seconds"], Annotated[Any, "(0, 1]"]),
    ],
)
def test_other_annotations_cannot_be_checked(kind):
    assert not validate.checkable(kind)
