"""Methods are written by the arguments of `Algorithm`."""

import inspect
import re

import pytest

import sparsefl_jax as sfl
from sparsefl_jax.core import algorithm
from tests.reference.by_hand import needed

DOCSTRING = " ".join(algorithm.Algorithm.__doc__.split())
CALLED = re.compile(r"\b(\w+): (?:optional, )?`\((.*?)\)")
# What the functions of `Algorithm` are called with, as its docstring says.
ARGUMENTS = {
    field: re.sub(r": \w+|,", "", arguments)
    for field, arguments in CALLED.findall(DOCSTRING)
}


def names(function) -> str:
    """The arguments that a function is called with, those without a default."""
    parameters = inspect.signature(function).parameters.values()
    return " ".join(p.name for p in parameters if p.default is p.empty)


@pytest.mark.parametrize("name", sfl.ALGORITHMS)
def test_a_method_has_the_arguments_that_its_functions_are_called_with(name):
    factory = sfl.ALGORITHMS[name]
    parts = sfl.testing.tiny_model(), sfl.training.make_optimizer()
    method = factory(*parts, **needed(factory))
    values = {"clients", "privacy", "name", "settings"}
    assert vars(method).keys() == {*ARGUMENTS} | values
    for field, arguments in ARGUMENTS.items():
        if (function := getattr(method, field)) is not None:
            assert names(function) == arguments, field
