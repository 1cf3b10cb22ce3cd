"""Errors name the argument, its value and what is allowed."""

import inspect
import math
import re
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from sparsefl_jax.core.check import UserError, check, checkable, integer

SHARE, COUNT = Annotated[float, "(0, 1]"], Annotated[int, "[1, inf)"]
CHOICE = Literal["mean", "median"]


@pytest.mark.parametrize(
    "interval, inside, outside",
    [
        ("(0, 1]", (1e-9, 1), (0, 1.0000001, -1)),
        ("[0, 1)", (0, 0.9999999), (-1e-9, 1)),
        ("(0, 1)", (0.5,), (0, 1)),
        ("[0, 1]", (0, 1), (-1e-9, 2)),
    ],
)
def test_an_interval_holds_its_closed_ends_alone(interval, inside, outside):
    for value in inside:
        check("share", value, interval)
    for value in (*outside, math.nan):
        with pytest.raises(ValueError) as caught:
            check("share", value, interval)
        assert str(caught.value) == f"share={value}, expected in {interval}"


@pytest.mark.parametrize("value", [1, 1.5, 1e30])
def test_bounds_from_below(value):
    check("pad", value, "[1, inf)")
    check("pad", value, "(0.5, inf)")
    for wrong in (0.5, -value, math.nan, math.inf):
        with pytest.raises(
            UserError, match=rf"^pad={re.escape(str(wrong))}, expected at least 1$"
        ):
            check("pad", wrong, "[1, inf)")
        with pytest.raises(
            UserError, match=rf"^pad={re.escape(str(wrong))}, expected above 0.5$"
        ):
            check("pad", wrong, "(0.5, inf)")


@pytest.mark.parametrize("most, words", [(9, "in [2, 9]"), (None, "at least 2")])
def test_integers_of_a_range(most, words):
    for value in (2, 9, np.int64(3)):
        check("rounds", value, integer(2, most))
    for wrong in (1, *([10] if most else [])):
        with pytest.raises(UserError) as caught:
            check("rounds", wrong, integer(2, most))
        assert str(caught.value) == f"rounds={wrong}, expected {words}"
    for wrong in (2.5, 4.0, True, -math.inf, math.inf, math.nan):
        with pytest.raises(UserError) as caught:
            check("rounds", wrong, integer(2, most))
        assert str(caught.value).startswith(f"rounds={wrong}, expected an integer ")
        assert str(caught.value).endswith(words)


@pytest.mark.parametrize(
    "value, allowed, message",
    [
        ("c", ("a", None), "kind='c', expected one of a, None"),
        (3, (), "kind=3, expected one of none"),
        (["a"], {"a": 1}, r"kind=['a'], expected one of a"),
        ("alfa", ("beta", "alpha"), "kind='alfa' (did you mean 'alpha'?), expected"),
    ],
)
def test_what_is_none_of_the_allowed(value, allowed, message):
    with pytest.raises(ValueError) as caught:
        check("kind", value, allowed)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "kind, right, wrong, message",
    [
        (SHARE, 1, 2, "2, expected in (0, 1]"),
        (SHARE | None, None, 2, "2, expected in (0, 1]"),
        (SHARE, 0.5, math.nan, "nan, expected a finite number, in (0, 1]"),
        (SHARE | None, 1.0, "1", "'1', expected a finite number, in (0, 1] or None"),
        (COUNT, 1, 0, "0, expected at least 1"),
        (COUNT, 2, True, "True, expected an integer below 2**31, at least 1"),
        (
            CHOICE,
            "mean",
            "meen",
            "'meen' (did you mean 'mean'?), expected one of mean, ",
        ),
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
    assert checkable(kind)
    check("part", right, kind)
    with pytest.raises(ValueError) as caught:
        check("part", wrong, kind)
    assert str(caught.value).startswith(f"part={message}")


@pytest.mark.parametrize(
    "kind",
    [
        *(Any, Any | None, list[int], list, "float", inspect.Parameter.empty),
        *(tuple[int, float], Annotated[float, "seconds"], Annotated[Any, "(0, 1]"]),
    ],
)
def test_other_annotations_cannot_be_checked(kind):
    assert not checkable(kind)
