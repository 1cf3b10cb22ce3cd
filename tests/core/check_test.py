"""Errors name the argument, its value and what is allowed."""

import math
from typing import Annotated, Literal

import numpy as np
import pytest

from sparsefl_jax.core.check import UserError, can_check, check, integer

SHARE, COUNT = Annotated[float, "(0, 1]"], Annotated[int, "[1, inf)"]
CHOICE = Literal["mean", "median"]


@pytest.mark.parametrize(
    "allowed, inside, outside, said",
    [
        ("(0, 1]", (1e-9, 1), (0, 1.0000001, math.nan), "in (0, 1]"),
        ("[0, 1)", (0, 0.9999999), (-1e-9, 1, math.nan), "in [0, 1)"),
        ("[1, inf)", (1, 1e30), (0.5, math.nan, math.inf), "at least 1"),
        ("(0.5, inf)", (1, 1e30), (0.5, math.inf), "above 0.5"),
        (integer(2, 9), (2, np.int64(9)), (1, 10), "in [2, 9]"),
        (("a", None), ("a", None), ("c", ["a"]), "one of a, None"),
    ],
)
def test_a_check_holds_its_closed_ends_and_says_what_is_allowed(
    allowed, inside, outside, said
):
    for value in inside:
        check("share", value, allowed)
    for value in outside:
        with pytest.raises(UserError) as caught:
            check("share", value, allowed)
        assert str(caught.value) == f"share={value!r}, expected {said}"


@pytest.mark.parametrize("wrong", [2.5, 4.0, True, -math.inf, math.nan])
def test_what_is_no_integer_is_refused(wrong):
    with pytest.raises(UserError, match=f"rounds={wrong}, expected an integer .*2$"):
        check("rounds", wrong, integer(2, None))


@pytest.mark.parametrize(
    "kind, right, wrong, message",
    [
        (SHARE | None, None, 2, "2, expected in (0, 1]"),
        (COUNT, 2, True, "True, expected an integer below 2**31, at least 1"),
        (CHOICE, "mean", "meen", "'meen' (did you mean 'mean'?), expected one of mean"),
        (tuple[CHOICE, ...], ["mean"], ("x",), "('x',), expected a tuple, each one of"),
    ],
)
def test_an_annotation_says_what_is_allowed(kind, right, wrong, message):
    assert can_check(kind)
    check("part", right, kind)
    with pytest.raises(ValueError) as caught:
        check("part", wrong, kind)
    assert str(caught.value).startswith(f"part={message}")
