"""A configuration as plain values, which is all that a run knows of it."""

import json
from types import SimpleNamespace
from typing import Any

PYTHON = "python"  # the `source` of a run that `sfl.experiment` was given the parts of


def plain(config: Any) -> dict:
    """Returns a configuration as JSON holds it, with tuples for lists.

    Args:
      config: a `ConfigDict`, the result of `values`, one that is `Recorded`, or a
        dictionary.

    Example:
      >>> plain({"prunable": ["*kernel"]})
      {'prunable': ('*kernel',)}
    """
    config = config.config if isinstance(config, Recorded) else config
    config = vars(config) if isinstance(config, SimpleNamespace) else config
    known = isinstance(config, dict)
    text = json.dumps(config) if known else config.to_json_best_effort()
    return _with_tuples(json.loads(text))


def values(config: Any) -> SimpleNamespace:
    """Returns a configuration with a plain value for each field; sections are dicts."""
    return SimpleNamespace(**plain(config))


class Recorded:
    """Plain values of a configuration that remember which fields are read.

    Attributes:
      config: the values themselves.
      read: the names of the fields and sections that were read.

    Example:
      >>> config = Recorded(SimpleNamespace(seed=1, fit={"gbit": 2.0}))
      >>> config.fit["gbit"], config.read
      (2.0, {'fit'})
    """

    def __init__(self, config: Any):
        self.config, self.read = values(config), set()

    def __getattr__(self, field: str) -> Any:
        value = getattr(self.config, field)
        self.read.add(field)
        return value


def replaced(config: SimpleNamespace, **fields: Any) -> SimpleNamespace:
    """Returns a copy of `values` with other values of some fields.

    Example:
      >>> replaced(SimpleNamespace(seed=1, seeds=3), seeds=1)
      namespace(seed=1, seeds=1)
    """
    return SimpleNamespace(**vars(config) | fields)


def stages(config: Any) -> list[dict]:
    """Returns the section of each stage, in order.

    Example:
      >>> main, first = {"name": "spdst"}, {"name": "sensitivity"}
      >>> stages(SimpleNamespace(algorithm=main, first_stage=first))
      [{'name': 'sensitivity'}, {'name': 'spdst'}]
    """
    middle = getattr(config, "middle_stages", {}).values()
    return [s for s in (config.first_stage, *middle, config.algorithm) if s]


def refuse_python(config: Any) -> None:
    """Refuses a configuration that describes parts which exist in Python only.

    Raises:
      ValueError: in one line.
    """
    if getattr(config, "source", None) == PYTHON:
        raise ValueError(
            "source='python': this run was made by sfl.experiment, which goes on with "
            "it if called again; a configuration cannot build it"
        )


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
