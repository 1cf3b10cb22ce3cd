"""A run made in Python as a configuration: names, numbers and fingerprints.

The numbers and texts that a method's functions close over stand under their names, and
anything else as a fingerprint, so that another setup can be told from the same one.
Neither the code of a function nor the global variables that it reads are compared.
"""

import dataclasses
import functools
import inspect
import json
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from sparsefl_jax.core.algorithm import Algorithm, Stage
from sparsefl_jax.models.base import Model
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.runs.config.plain import PYTHON
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import initial_state

_PLAIN = (bool, int, float, str, type(None))
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_SETTINGS = ("eval_every", "chunk", "metric", "client_store", "memory_gb")


def describe(setup: Setup, name: str | None = None) -> dict:
    """Describes a run with the fields of a configuration, but for its seeds.

    Args:
      setup: the run.
      name: of the last stage's method; by default that of the factory that made it.

    Returns:
      Plain values, from which nothing can be built: `source` is 'python'.
    """
    *earlier, (main, numbers) = map(_stage, setup.stages)
    sections = [method | more for method, more in earlier]
    optimizer = main.pop("optimizer", {})
    return {
        "source": PYTHON,
        "dataset": setup.data.name,
        "num_clients": len(setup.data.train.size),
        "partition": {"name": PYTHON},
        "partition_seed": None,
        "model": _model(setup.model),
        "algorithm": main | ({} if name is None else {"name": name}),
        "optimizer": optimizer if isinstance(optimizer, dict) else {"name": optimizer},
        "first_stage": sections[0] if sections else {},
        "middle_stages": {str(i): s for i, s in enumerate(sections) if i},
        **numbers,
        **{field: getattr(setup, field) for field in _SETTINGS},
        "budgets": described(setup.budgets) or (),
        "initial": described(setup.initial),
        "until": setup.until._asdict(),
        "system": described(setup.system),
        "observe_rounds": tuple(setup.observe_rounds),
        "final_learning_rate": None,  # a schedule is one of the optimizer's arguments
        "lr_decay": None,
    }


def described(value: Any) -> Any:
    """Describes a value that a function closes over.

    Example:
      >>> from sparsefl_jax.training import make_optimizer
      >>> told = described(make_optimizer("sgd", learning_rate=0.5))
      >>> told["name"], told["learning_rate"]
      ('sgd', 0.5)
      >>> described([0.1, 0.2]), described(np.zeros(3))
      ((0.1, 0.2), 'ndarray 8d5333fc')
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple) and all(isinstance(v, _PLAIN) for v in value):
        return tuple(value)
    function = inspect.unwrap(value) if callable(value) else value
    if isinstance(function, _FUNCTIONS):
        name, inside = _name(function), _arguments(_captured(function))
        if name == "make_optimizer":  # as a configuration names it
            name = inside.pop("factory")
        return {"name": name} | inside if inside else name
    if isinstance(value, dict) and all(isinstance(v, _PLAIN) for v in value.values()):
        return dict(value)
    return f"{type(value).__name__} {_fingerprint(value):08x}"


def _arguments(values: Iterable[tuple[str, Any]]) -> dict:
    """Describes values; leaves out what is empty or described elsewhere."""
    found = {n: described(v) for n, v in values if not isinstance(v, Model | Algorithm)}
    return {name: value for name, value in found.items() if value not in (None, (), {})}


def _stage(stage: Stage) -> tuple[dict, dict]:
    """Returns the method's name and arguments, and the numbers of the stage."""
    numbers = stage._asdict()
    method = _method(numbers.pop("algorithm"))
    sampler = described(numbers.pop("sampler"))
    return method, numbers | ({"sampler": sampler} if sampler else {})


def _method(algorithm: Algorithm) -> dict:
    method = {"name": _factory(algorithm)}
    for field, function in zip(Algorithm._fields, algorithm, strict=True):
        captured = dict(_captured(function))
        inner = [v for v in captured.values() if isinstance(v, Algorithm)]
        for more in (_arguments(captured.items()), *map(_method, inner)):
            for name, value in more.items():
                if name != "name" and method.setdefault(name, value) != value:
                    method[f"{field}_{name}"] = value
    return method


def _factory(algorithm: Algorithm) -> str:
    """Returns the name of a factory: the one that calls the others involved, if any."""
    made = {}
    for function in algorithm:
        if "<locals>" in getattr(function, "__qualname__", ""):
            made[_name(function)] = function
    for name, function in made.items():
        factory = inspect.unwrap(function.__globals__.get(name, _name))
        if made.keys() - {name} <= set(factory.__code__.co_names):
            return name
    return _name(algorithm.update)


def _model(model: Model) -> dict:
    params = initial_state.initial_shapes(model).params
    modules = [v for v in _inside(model.apply) if isinstance(v, nn.Module)]
    return {
        "name": (_name(modules[0]) if modules else _name(model.apply)).lower(),
        "dtype": model.dtype,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "loss": described(model.loss),
        "fingerprint": f"{_fingerprint(model.apply):08x}",
    }


def _name(function: Any) -> str:
    """Returns the name of a function, or of the function that made it."""
    function = getattr(function, "func", function)  # of a partial
    if getattr(function, "__qualname__", "") == "<lambda>":  # there are many such
        return " ".join(["lambda of", *function.__code__.co_names])
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return name.split(".<locals>")[0].strip("_")


def _captured(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a function closes over, by name."""
    function = inspect.unwrap(function) if callable(function) else function
    if isinstance(function, functools.partial):
        yield from ((str(i), value) for i, value in enumerate(function.args))
        yield from function.keywords.items()
        yield from _captured(function.func)
    elif isinstance(function, types.MethodType):
        yield "self", function.__self__
    elif isinstance(function, types.FunctionType):
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # the name has no value yet
                continue
            if value is not function:
                yield name, value


def _inside(value: Any, seen: tuple = ()) -> Iterator[Any]:
    """Yields a value and all that it holds or closes over."""
    yield value
    if any(value is known for known in seen):
        return
    seen = (*seen, value)
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        parts = value
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        parts = [getattr(value, n, None) for n in names if n not in ("parent", "name")]
    else:
        parts = [item for _, item in _captured(value)]
    for part in parts:
        yield from _inside(part, seen)


def _fingerprint(value: Any) -> int:
    def token(part) -> Any:
        if isinstance(part, np.ndarray | np.generic | jax.Array):
            return checkpoint.checksum(part)
        return part if isinstance(part, _PLAIN) else _name(part)

    return zlib.crc32(json.dumps([token(part) for part in _inside(value)]).encode())
