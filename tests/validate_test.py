"""Errors name the argument, its value and what is allowed."""

import math

import pytest

from sparsefl_jax.core import validate


@pytest.mark.parametrize(
    "interval, inside, outside",
    [
        ("(0, 1]", (1e-9, 1), (0, 1.0000001, -1)),
        ("[0, 1)", (0, 0.9999999), (-1e-9, 1)),
        ("(0, 1)", (0.5,), (0, 1)),
        ("[0, 1]", (0, 1), (-1e-9, 2)),
        ("(0, inf)", (1e30,), (0, math.inf)),
    ],
)
def test_an_interval_holds_its_closed_ends_alone(interval, inside, outside):
    for value in inside:
        validate.in_range("share", value, interval)
    for value in (*outside, math.nan):
        with pytest.raises(ValueError) as caught:
            validate.in_range("share", value, interval)
        assert str(caught.value) == f"share={value}, expected in {interval}"


@pytest.mark.parametrize("value", [1, 1.5, math.inf])
def test_bounds_from_below(value):
    validate.at_least("pad", value, 1)
    validate.above("pad", value, 0.5)
    for wrong in (0.5, -value, math.nan):
        with pytest.raises(ValueError, match=f"^pad={wrong}, expected at least 1$"):
            validate.at_least("pad", wrong, 1)
        with pytest.raises(ValueError, match=f"^pad={wrong}, expected above 0.5$"):
            validate.above("pad", wrong, 0.5)


@pytest.mark.parametrize("most, words", [(9, "from 2 to 9"), (None, "from 2")])
def test_integers_of_a_range(most, words):
    for value in (2, 9, 4.0):
        validate.whole("rounds", value, 2, most)
    for wrong in (1, 2.5, -math.inf, math.inf, math.nan, *([10] if most else [])):
        with pytest.raises(ValueError) as caught:
            validate.whole("rounds", wrong, 2, most)
        assert str(caught.value) == f"rounds={wrong}, expected an integer {words}"


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
        validate.one_of("kind", value, allowed)
    assert str(caught.value).startswith(message)
