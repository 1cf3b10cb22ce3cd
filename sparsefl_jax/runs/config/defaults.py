"""Configurations that can be changed: by files in `configs/`, flags and studies.

They are `ConfigDict`s. `freeze` checks one and makes a `Config` of it, as runs see it.
"""

import ast
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from ml_collections import config_dict

from sparsefl_jax.core.check import UserError, check, unread
from sparsefl_jax.runs.config.fields import (
    SECTIONS,
    TABLES,
    Config,
    arguments,
)
from sparsefl_jax.system import files, shipped

NONE = "none"  # as the name of a first stage: there is none


def default_config(**values: Any) -> Any:  # a ConfigDict
    """Returns all fields of a configuration as a `ConfigDict`, to be changed.

    A file in `configs/` starts from here. The sections `model`, `partition`,
    `algorithm`, `first_stage`, `optimizer` and `server_optimizer` take the keyword
    arguments of the entry given by their `name`. What they do not set has the entry's
    default, but a method's `density`, `max_density`, `rounds` and `clients` are those
    of the run. `--fields` lists all fields with their meanings; `runs.folder` lists
    those that may change when a run is resumed.

    Args:
      **values: fields with other values than their defaults, sections in whole.
    """
    return config_dict.ConfigDict(vars(Config(**values)), type_safe=False)


def complete(config):
    """Returns a configuration as it is, for files of earlier versions."""
    return config


def load_config(path: str) -> Any:  # a ConfigDict
    """Returns the configuration of a file, as `--config` names it.

    Args:
      path: FILE or FILE:OPTIONS; a path, or a file that comes with the package. It may
        be the `config.json` of a run.

    Raises:
      ValueError: there is no such file, or it has no `get_config`.

    Example:
      >>> load_config("flash_cifar10:mini,pdst").algorithm.name
      'pdst'
    """
    file, *options = shipped.find("config", "configs", path).split(":", 1)
    if file.endswith(".json"):
        config = default_config()
        config.update(files.read_json(Path(file), dict))
        return config
    get_config = runpy.run_path(file).get("get_config")
    if get_config is None:
        raise UserError(f"{file} has no get_config, expected it to return a ConfigDict")
    config = get_config(*options)
    check("what get_config returns", config, config_dict.ConfigDict)
    return config


def override(config, given: Mapping[str, Any]) -> list[str]:
    """Sets fields of a configuration by dotted name; names of sections come first.

    Args:
      config: a configuration, which changes.
      given: values, or the texts of flags.

    Returns:
      What the configuration had set and a new entry does not take, as `field=value`.

    Raises:
      ValueError: there is no such entry or field, or the method changes and nothing
        decides about the first stage.

    Example:
      >>> config = default_config()
      >>> config.algorithm = {"name": "fedprox", "mu": 0.5, "weighting": "uniform"}
      >>> override(config, {"algorithm.name": "fedavg", "seed": "3"})
      ['algorithm.mu=0.5']
      >>> config.algorithm.to_dict(), config.seed
      ({'name': 'fedavg', 'weighting': 'uniform'}, 3)
    """
    if "fit.by" in given:  # a budget would count as spent
        raise UserError(f"fit.by={given['fit.by']} is set by the run, expected none")
    spread = given.get("fit.evaluations") or config.fit.get("evaluations")
    if spread and "eval_every" in given:
        why = "fit.evaluations sets it"
        raise unread(f"eval_every={given['eval_every']}", why)
    left, names = [], [s for s in TABLES if given.get(f"{s}.name") is not None]
    for section in names:
        _check_first_stage(config, section, given[f"{section}.name"], given)
        left += rename(config, section, given[f"{section}.name"])
    for path, value in given.items():
        section, _, key = path.rpartition(".")
        if path in SECTIONS:
            check(path, value, dict)
        if section:
            check("config: section", section, SECTIONS)
        if section in TABLES and key == "name":
            continue
        where = config[section] if section else config
        known = arguments(section, given.get(f"{section}.name", where.get("name")))
        if key not in where:
            check(f"{section or 'config'}: field", key, known)
        kind = known[key].annotation if key in known else object
        where[key] = parse(value, kind) if isinstance(value, str) else value
    lost = names and config.density is not None and not takes_density(config)
    if lost and "density" not in given:
        left.append(f"density={config.density!r}")
        config.density = None
    return left


def parse(text: str, kind: Any = object) -> Any:
    """Returns the value of a text: a Python literal, or else the text.

    Args:
      text: of a flag; 'None' is no value.
      kind: the type of the field; a text stays a text for str.

    Example:
      >>> parse("1", float), parse("true", bool), parse("(8, 8)"), parse("1", str)
      (1.0, True, (8, 8), '1')
    """
    kinds = kind, *get_args(kind)
    if text == "None":
        return None
    if str in kinds or bool in kinds and text in ("true", "false"):
        return text if str in kinds else text == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    whole = type(value) is int and float in kinds and int not in kinds
    return float(value) if whole else value


def rename(config, section: str, name: str) -> list[str]:
    """Names another entry in a section, which keeps what the new entry takes.

    Args:
      config: a configuration, which changes.
      section: one of `fields.TABLES`.
      name: the new entry, or a user's `module:function`; 'none' for no first stage.

    Returns:
      What was set and is left out, as `field=value`.

    Raises:
      ValueError: there is no such entry.
    """
    old = config[section].to_dict()
    if (section, name) == ("first_stage", NONE):
        config[section] = {}
        return []
    taken = arguments(section, name)
    try:
        usual = arguments(section, old.get("name"))
    except ValueError:
        usual = {}
    own = {
        key: value
        for key, value in old.items()
        if key != "name"
        and value is not None
        and not (key in usual and value == usual[key].default)
    }
    config[section] = {"name": name} | {k: v for k, v in own.items() if k in taken}
    return [f"{section}.{k}={v!r}" for k, v in own.items() if k not in taken]


def takes_density(config) -> bool:
    """Returns whether a method of a configuration takes the density of the run."""
    sections = [(s, config[s].get("name")) for s in ("first_stage", "algorithm")]
    taken = [arguments(*each) for each in sections if each[1]]
    return any({"density", "max_density"} & each.keys() for each in taken)


def _check_first_stage(config, section: str, name: str, given: Mapping) -> None:
    """Checks that a first stage is not left to another method by mistake."""
    stage, method = config.first_stage.get("name"), config.algorithm.get("name")
    renamed = section == "algorithm" and name != method
    if renamed and stage and "first_stage.name" not in given:
        raise UserError(
            f"algorithm.name={name!r}: the first stage {stage!r} is that of "
            f"{method!r}; --config.first_stage.name={stage} keeps it, "
            f"--config.first_stage.name={NONE} leaves it out"
        )
