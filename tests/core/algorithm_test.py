"""How methods are written: by the arguments of `Algorithm`, and short."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import sparsefl_jax as sfl
from sparsefl_jax.core import algorithm
from tests.reference.by_hand import needed

PACKAGE = Path(sfl.__file__).parent
FILES = sorted(p for f in ("algorithms", "core") for p in (PACKAGE / f).rglob("*.py"))
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


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_factory_has_at_most_90_lines_and_a_file_350(path):
    text = path.read_text()
    assert text.count("\n") <= 350
    for function in ast.parse(text).body:
        if isinstance(function, ast.FunctionDef):
            lines = function.end_lineno - function.lineno + 1
            first = function.body[0]
            if ast.get_docstring(function) is not None:
                lines -= first.end_lineno - first.lineno + 1
            assert lines <= 90, function.name
