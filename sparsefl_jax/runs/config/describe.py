"""Describes a run made in Python by the fields of a configuration.

Its parts are told by the names and settings that decorated factories give them.
"""

import dataclasses
import json
import sys
import zlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.check import UserError
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.runs.config.build import OF_SETUP
from sparsefl_jax.runs.setup import Setup

_PLAIN = (bool, int, float, str, type(None))


def describe(setup: Setup, name: str | None = None) -> dict:
    """Describes a run with the fields of a configuration, except its seeds.

    Args:
      setup: the run.
      name: of the last stage's method; by default that of its factory.

    Returns:
      Plain values of a `Described`, from which the run cannot be built.

    Raises:
      ValueError: a method, the network or a setting has no name.
    """
    *earlier, (main, numbers) = map(_stage, setup.stages)
    sections = [more | method for method, more in earlier]
    optimizer, model = main.pop("optimizer", {}), setup.model
    sizes = [leaf.size for leaf in jax.tree.leaves(model.shapes()[0])]
    facts = {"dtype": model.dtype, "parameters": sum(sizes), "loss": model.loss}
    return {
        "dataset": setup.data.name,
        "num_clients": len(setup.data.train.size),
        "partition": {"name": "python"},
        "model": plain_value("model", model) | plain_value("model", facts),
        "algorithm": main | ({} if name is None else {"name": name}),
        "optimizer": optimizer if isinstance(optimizer, dict) else {"name": optimizer},
        "first_stage": sections[0] if sections else {},
        "middle_stages": {str(i): s for i, s in enumerate(sections) if i},
        **numbers,
        **{field: getattr(setup, field) for field in OF_SETUP},
        "budgets": plain_value("budgets", setup.budgets) or (),
        "initial": plain_value("initial", setup.initial),
        "until": setup.until._asdict(),
        "system": plain_value("system", setup.system),
    }


def _stage(stage: Stage) -> tuple[dict, dict]:
    """Returns the method's name and arguments, and the numbers of the stage."""
    numbers = stage._asdict()
    method = plain_value("algorithm", numbers.pop("algorithm"))
    method.pop("model", None)
    sampler = plain_value("sampler", numbers.pop("sampler"))
    return method, numbers | ({"sampler": sampler} if sampler else {})


def plain_value(field: str, value: Any) -> Any:
    """Describes a setting: plain values are kept, and anything else must have a name.

    Args:
      field: of the setting, in the message.
      value: a plain value; a tuple, list or dict of settings; the result of a decorated
        factory; a flax module; a function or class that can be imported; or a tree of
        arrays, which is described by a checksum.

    Returns:
      Plain values.

    Raises:
      ValueError: the value is none of these, such as a function within a function.

    Example:
      >>> from sparsefl_jax.training import make_optimizer
      >>> found = plain_value("optimizer", make_optimizer("sgd", learning_rate=0.5))
      >>> found["name"], found["learning_rate"]
      ('sgd', 0.5)
      >>> plain_value("by", [0.1, np.zeros(3)]), plain_value("by", np.sum)
      ((0.1, 'ndarray a596f96a'), 'numpy:sum')
      >>> plain_value("loss", lambda logits: 0.0)
      Traceback (most recent call last):
      sparsefl_jax.UserError: loss is a function without a name, expected plain values,
      a function
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
    if isinstance(value, nn.Module):
        given = {
            item.name: getattr(value, item.name, None)
            for item in dataclasses.fields(value)
            if item.name not in ("parent", "name")
            and getattr(value, item.name, None) is not item.default
        }
        return {"name": type(value).__name__} | plain_value(field, given)
    module, name = (getattr(value, key, "") for key in ("__module__", "__name__"))
    if value is getattr(sys.modules.get(module), name, None):
        return f"{module}:{name}"
    leaves, tree = jax.tree.flatten(value)
    arrays = np.ndarray, jax.Array
    sums = [checkpoint.checksum(v) if isinstance(v, arrays) else v for v in leaves]
    try:
        digest = zlib.crc32(json.dumps([str(tree), sums]).encode())
    except TypeError:
        raise UserError(
            f"{field} is a {type(value).__name__} without a name, expected plain "
            "values, a function that can be imported, or what a function decorated "
            "with @sfl.method returns"
        ) from None
    return f"{type(value).__name__} {digest:08x}"
