"""A run made in Python as a configuration: the names and settings of its parts."""

import dataclasses
import functools
import json
import sys
import zlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.models.base import Model
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.runs.config.defaults import PYTHON
from sparsefl_jax.runs.setup import Setup

_PLAIN = (bool, int, float, str, type(None))
_SETTINGS = ("eval_every", "chunk", "metric", "client_store", "memory_gb")


def describe(setup: Setup, name: str | None = None) -> dict:
    """Describes a run with the fields of a configuration, but for its seeds.

    Args:
      setup: the run.
      name: of the last stage's method; by default that of its factory.

    Returns:
      Plain values, from which nothing can be built: `source` is 'python'.

    Raises:
      ValueError: in one line, if a method, the network or a setting has no name.
    """
    *earlier, (main, numbers) = map(_stage, setup.stages)
    sections = [more | method for method, more in earlier]
    optimizer = main.pop("optimizer", {})
    return {
        "source": PYTHON,
        "dataset": setup.data.name,
        "num_clients": len(setup.data.train.size),
        "partition": {"name": PYTHON},
        "partition_seed": None,
        "model": _network(setup.model),
        "algorithm": main | ({} if name is None else {"name": name}),
        "optimizer": optimizer if isinstance(optimizer, dict) else {"name": optimizer},
        "first_stage": sections[0] if sections else {},
        "middle_stages": {str(i): s for i, s in enumerate(sections) if i},
        **numbers,
        **{field: getattr(setup, field) for field in _SETTINGS},
        "budgets": plain_value("budgets", setup.budgets) or (),
        "initial": plain_value("initial", setup.initial),
        "until": setup.until._asdict(),
        "system": plain_value("system", setup.system),
        "observe_rounds": tuple(setup.observe_rounds),
        "final_learning_rate": None,  # a schedule is one of the optimizer's arguments
        "lr_decay": None,
    }


def _stage(stage: Stage) -> tuple[dict, dict]:
    """Returns the method's name and arguments, and the numbers of the stage."""
    algorithm, numbers = stage.algorithm, stage._asdict()
    if not algorithm.name:
        raise ValueError(
            "a stage has a method without a name, expected that of a decorated "
            "factory: write @sfl.method above the function that returns the method"
        )
    settings = {k: v for k, v in algorithm.settings.items() if k != "model"}
    method = {"name": algorithm.name} | plain_value(algorithm.name, settings)
    del numbers["algorithm"]
    sampler = plain_value("sampler", numbers.pop("sampler"))
    return method, numbers | ({"sampler": sampler} if sampler else {})


def _network(model: Model) -> dict:
    if not model.name:
        raise ValueError(
            "the network has no name, expected one of models.build, or of a function "
            "decorated with @sfl.method, or Model(..., name='mine')"
        )
    sizes = [leaf.size for leaf in jax.tree.leaves(model.shapes()[0])]
    facts = {"dtype": model.dtype, "parameters": sum(sizes), "loss": model.loss}
    return plain_value("model", model) | plain_value("model", facts)


def plain_value(field: str, value: Any) -> Any:
    """Describes a setting: a plain value stays, and anything else has to have a name.

    Args:
      field: of the setting, in the message.
      value: a plain value, a tuple, list or dict of settings, what a decorated factory
        returned, a flax module, a partial, a function or class that can be imported, or
        a tree of arrays, of which a checksum is taken.

    Returns:
      Plain values.

    Raises:
      ValueError: it is something else, such as a function within a function.

    Example:
      >>> from sparsefl_jax.training import make_optimizer
      >>> told = plain_value("optimizer", make_optimizer("sgd", learning_rate=0.5))
      >>> told["name"], told["learning_rate"]
      ('sgd', 0.5)
      >>> plain_value("by", [0.1, np.zeros(3)]), plain_value("by", np.sum)
      ((0.1, 'ndarray a596f96a'), 'numpy:sum')
      >>> plain_value("loss", lambda logits: 0.0)
      Traceback (most recent call last):
      ValueError: loss is a function without a name, expected plain values, a function
      that can be imported, or what a function decorated with @sfl.method returns
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return {k: plain_value(f"{field}.{k}", v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return tuple(plain_value(field, v) for v in value)
    if getattr(value, "name", None) and hasattr(value, "settings"):
        return {"name": value.name} | plain_value(field, value.settings)
    if isinstance(value, functools.partial):
        made = {"args": value.args, "keywords": value.keywords}
        return {"name": plain_value(field, value.func)} | plain_value(field, made)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = ("parent", "name") if isinstance(value, nn.Module) else ()
        given = {
            item.name: getattr(value, item.name, None)
            for item in dataclasses.fields(value)
            if item.name not in own
            and getattr(value, item.name, None) is not item.default
        }
        given = plain_value(field, given if own else {"fields": given})
        return {"name": type(value).__name__} | given
    module, name = (getattr(value, key, "") for key in ("__module__", "__name__"))
    if value is getattr(sys.modules.get(module), name, None):
        return f"{module}:{name}"
    leaves, tree = jax.tree.flatten(value)
    leaves = [jax.random.key_data(v) if _is_key(v) else v for v in leaves]
    arrays = np.ndarray, jax.Array
    if not all(isinstance(leaf, (*_PLAIN, *arrays)) for leaf in leaves):
        raise ValueError(
            f"{field} is a {type(value).__name__} without a name, expected plain "
            "values, a function that can be imported, or what a function decorated "
            "with @sfl.method returns"
        )
    plain_leaves = [
        leaf if isinstance(leaf, _PLAIN) else checkpoint.checksum(leaf)
        for leaf in leaves
    ]
    digest = zlib.crc32(json.dumps([str(tree), plain_leaves]).encode())
    return f"{type(value).__name__} {digest:08x}"


def _is_key(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
