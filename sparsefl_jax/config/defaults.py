"""Configurations: changed by files in `configs/`, flags and studies; frozen for a run.

What files and flags change is a `ConfigDict`. `freeze` checks it and makes a `Config`
of it, the one value that a run sees: every field is known, has the right type, is
finite, in range, and has an effect. The meaning of an argument is checked where it is
used.
"""

import ast
import contextlib
import dataclasses
import inspect
import json
import re
import runpy
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from ml_collections.config_dict import ConfigDict

from sparsefl_jax.config.fields import (
    MEANINGS,
    OPTIONAL,
    SECTIONS,
    TABLES,
    Config,
    Described,
    arguments,
)
from sparsefl_jax.core.check import UserError, check, integer, unread
from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.system import files, shipped, sinks

NONE = "none"  # as the name of a section that may be empty
_FIT, _CLOSING = ("fit.gbit", "fit.pflop"), ("deadline.seconds", "deadline.quantile")
_GOES_WITH = {  # fields that have an effect only with one of some others
    **dict.fromkeys(("lr_delay", "lr_decay"), ("final_learning_rate",)),
    **dict.fromkeys(("fit.pilot", "fit.most", "fit.evaluations", "fit.by"), _FIT),
    **dict.fromkeys(("until.hours", *_CLOSING), ("system",)),
    **{f: ("adapter.rank",) for f in MEANINGS if f.startswith("adapter.")},
    **{f: ("server_optimizer.name",) for f in MEANINGS if f.startswith("server_opt")},
    "deadline.over": _CLOSING,
    "init_what": ("init_from",),
    "lr_horizon": ("final_learning_rate", "schedule.name"),
}
_OR = {
    "lr_horizon": "lr_decay",
    "deadline.quantile": "deadline.seconds",
    "final_learning_rate": "schedule.name",
}
_DENSITIES = ("density", "max_density")  # arguments that the run's `density` sets


def default_config(**values: Any) -> Any:  # a ConfigDict
    """Returns all fields of a configuration as a `ConfigDict`, to be changed.

    A file in `configs/` starts from here. The sections `model`, `partition`,
    `algorithm`, `first_stage`, `optimizer` and `server_optimizer` take the keyword
    arguments of the entry given by their `name`. What they do not set has the entry's
    default, but a method's `density`, `max_density`, `rounds` and `clients`, and a
    network's `folder`, are those of the run. `--fields` lists all fields with their
    meanings; `config.changes` lists those that may change when a run is resumed.

    Args:
      **values: fields with other values than their defaults, sections in whole.
    """
    return ConfigDict(vars(Config(**values)), type_safe=False)


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
    check("what get_config returns", config, ConfigDict)
    return config


def override(config, given: Mapping[str, Any]) -> list[str]:
    """Sets fields of a configuration by dotted name; names of sections come first.

    It does what `--config.FIELD=VALUE` does: a section that is named anew has the
    defaults of the new entry, and keeps what was set if that takes it. An assignment
    such as `config.model.name = "conv4"` changes nothing else in the section.

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
    spread = given.get("fit.evaluations") or config.fit.get("evaluations")
    if spread and "eval_every" in given:
        raise unread(f"eval_every={given['eval_every']}", "fit.evaluations sets it")
    stage, method = config.first_stage.get("name"), config.algorithm.get("name")
    changes = given.get("algorithm.name", method) != method
    if changes and stage and "first_stage.name" not in given:
        raise UserError(
            f"algorithm.name={given['algorithm.name']!r}: the first stage {stage!r} is "
            f"that of {method!r}; --config.first_stage.name={stage} keeps it, "
            f"--config.first_stage.name={NONE} leaves it out"
        )
    left, names = [], [s for s in TABLES if given.get(f"{s}.name") is not None]
    for section in names:
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
    lost = names and config.density is not None and not densities(fill_in(config))
    if lost and "density" not in given:
        left.append(f"density={config.density!r}")
        config.density = None
    return left


def parse(text: str, kind: Any = object) -> Any:
    """Returns the value of a text: a Python literal, or else the text.

    Args:
      text: of a flag; 'None' is no value.
      kind: the type of the field; a text stays a text for str, and may be the only one
        of a tuple.

    Example:
      >>> parse("1", float), parse("true", bool), parse("(8, 8)"), parse("1", str)
      (1.0, True, (8, 8), '1')
      >>> parse("('a', 'b')", tuple[str, ...]), parse("px*", tuple[str, ...])
      (('a', 'b'), ('px*',))
    """
    kinds = kind, *get_args(kind)
    if text == "None":
        return None
    several = get_origin(kind) is tuple
    if str in kinds and not several or bool in kinds and text in ("true", "false"):
        return text if str in kinds else text == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return (text,) if several else text
    whole = type(value) is int and float in kinds and int not in kinds
    return float(value) if whole else value


def rename(config, section: str, name: str) -> list[str]:
    """Names another entry in a section, which keeps what the new entry takes.

    Args:
      config: a configuration, which changes.
      section: one of `fields.TABLES`.
      name: the new entry, or a user's `module:function`; 'none' for none.

    Returns:
      What was set and is left out, as `field=value`.

    Raises:
      ValueError: there is no such entry.
    """
    old = config[section].to_dict()
    if section in OPTIONAL and name == NONE:
        config[section] = {}
        return []
    if section in OPTIONAL and ":" not in name:
        check(f"{section}.name", name, (*TABLES[section], NONE))
    taken, usual = arguments(section, name), arguments(section, old.get("name"))
    own = {
        key: value
        for key, value in old.items()
        if key != "name"
        and value is not None
        and not (key in usual and value == usual[key].default)
    }
    config[section] = {"name": name} | {k: v for k, v in own.items() if k in taken}
    return [f"{section}.{k}={v!r}" for k, v in own.items() if k not in taken]


def freeze(config) -> Config:
    """Returns a configuration with a plain value for each field.

    Sections get the defaults of the entries that they name, and of the run what these
    entries take: its `density`, its number of `rounds` and of `clients`, its `folder`.

    Args:
      config: a configuration, see `defaults.default_config`; a `Config` is returned as
        it is.

    Raises:
      ValueError: a field is unknown, has another type, is not finite or out of range,
        or has no effect without another one that is not set.

    Example:
      >>> config = default_config(density=0.1, algorithm={"name": "pdst"})
      >>> freeze(config).algorithm["density"]
      0.1
      >>> config.optimizer.learning_rate = float("nan")
      >>> freeze(config)
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: optimizer.learning_rate=nan, expected a finite number
    """
    check("config", config, Config | ConfigDict)
    config = fill_in(config)
    if isinstance(config, Described):
        raise UserError(
            "source='python': this run was made by sfl.experiment, which continues it "
            "if called again; a configuration cannot build it"
        )
    for name, parameter in arguments("").items():
        check(name, getattr(config, name), parameter.annotation)
    for name in SECTIONS:
        _check_section(name, getattr(config, name))
    sinks.check_sinks(config.sinks)
    _check_together(config)
    return config


def fill_in(config) -> Config:
    """Returns a configuration with what named entries take, before any check.

    Args:
      config: a `ConfigDict`, the content of a `config.json`, whose missing fields have
        their defaults, or a `Config`. Unknown fields that are empty, of an earlier
        version, are left out.

    Raises:
      ValueError: a field is unknown.
    """
    if isinstance(config, Config):
        return config
    values = plain(config)
    kind = Described if values.get("source") else Config
    usual = vars(kind())
    values = {k: v for k, v in values.items() if k in usual or v not in (None, ())}
    for name, value in values.items():
        check("config: field", name, usual)
        if name in SECTIONS:
            check(name, value, dict)
            usual[name].pop("name", None)
            values = values | {name: usual[name] | value}
    config = kind(**values)
    if kind is Described:
        return config
    seen = config.num_clients - round(config.unseen_fraction * config.num_clients)
    of_run = {"rounds": config.num_rounds, "clients": seen, "folder": config.tokenizer}
    of_run |= dict.fromkeys(_DENSITIES, config.density)
    sections = {name: _fill(name, getattr(config, name), of_run) for name in TABLES}
    return dataclasses.replace(config, **sections)


def _check_section(name: str, section: dict) -> None:
    """Checks the values of a section; None counts as not set."""
    named = name in (*TABLES, "optimizer") and (section or name not in OPTIONAL)
    if named and section.get("name") is None:
        raise UserError(f"{name}.name is missing")
    known = arguments(name, section.get("name"))
    for key, value in section.items():
        if value is not None:
            check(f"{name}: field", key, known)
            check(f"{name}.{key}", value, known[key].annotation)


def _fill(name: str, section: dict, of_run: dict[str, Any]) -> dict:
    """Returns a section with what its entry takes from the run and by default."""
    try:
        known = arguments(name, section.get("name")) if section else {}
    except UserError:  # `_check_section` names the entry
        return section
    filled = dict(section)
    for key, parameter in known.items():
        default = parameter.default
        if default is inspect.Parameter.empty or key in (*_DENSITIES, "rounds"):
            default = of_run.get(key) or default
        if filled.get(key) is None and default not in (inspect.Parameter.empty, None):
            filled[key] = default
    return filled


def _check_together(config: Config) -> None:
    """Checks fields by the values of others, without which some have no effect."""
    given, usual = flatten(vars(config)), flatten(vars(Config()))
    fitted = given.get("fit.gbit") or given.get("fit.pflop")
    if fitted and config.first_stage and not given.get("first_stage.num_rounds"):
        raise UserError("first_stage.num_rounds is missing, expected one with fit.*")
    check("seed", config.seed, integer(0, 2**31 - config.seeds))
    for field, value in given.items():
        others = _GOES_WITH.get(field, ())
        alone = field not in others and not any(map(given.get, others))
        if others and alone and value is not None and value != usual.get(field):
            raise unread(f"{field}={value!r}", f"it goes with {' or '.join(others)}")
    for field, other in _OR.items():
        if None not in (given.get(field), value := given.get(other)):
            raise unread(f"{field}={given[field]!r}", f"{other} is {value!r}")
    held = densities(config)
    if config.density is not None and config.density not in held.values():
        others = [f"{field} is {value}" for field, value in held.items()]
        none = f"{config.algorithm.get('name')!r} takes none"
        raise unread(f"density={config.density!r}", ", ".join(others) or none)


def check_unset(config: Config, *fields: str) -> None:
    """Checks that fields without an effect have their default values.

    Example:
      >>> check_unset(Config(augment=("flip",)), "input_scale", "augment")
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: augment=('flip',) has no effect here: nothing reads it
    """
    usual, given = flatten(vars(Config())), flatten(vars(config))
    for field in fields:
        if given.get(field) != usual.get(field):
            raise unread(f"{field}={given[field]!r}", "nothing reads it")


@contextlib.contextmanager
def name_section(section: str, arguments: Container[str]) -> Iterator[None]:
    """Adds the section to the name of an argument in the error of a factory.

    Example:
      >>> with name_section("algorithm", ("density",)):
      ...     raise UserError("density=2, expected in (0, 1]")
      Traceback (most recent call last):
      sparsefl_jax.UserError: algorithm.density=2, expected in (0, 1]
    """
    try:
        yield
    except UserError as error:
        named_first = re.match(r"\w*", str(error))[0]
        if named_first not in arguments:
            raise
        raise UserError(f"{section}.{error}") from error


def densities(config: Config) -> dict[str, float]:
    """Returns the densities of the stages that `density` may set, by field."""
    sections = {"first_stage": config.first_stage, "algorithm": config.algorithm}
    return {
        f"{name}.{key}": section[key]
        for name, section in sections.items()
        for key in _DENSITIES
        if section.get(key) is not None
    }


def plain(config: Any) -> dict:
    """Returns a configuration as JSON holds it, with tuples for lists.

    Args:
      config: a `ConfigDict`, a `Config`, or a dictionary.

    Example:
      >>> plain({"prunable": ["*kernel"]})
      {'prunable': ('*kernel',)}
    """
    if hasattr(config, "to_json_best_effort"):
        return _with_tuples(json.loads(config.to_json_best_effort()))
    return _with_tuples(config if isinstance(config, dict) else vars(config))


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    known = isinstance(value, list | tuple)
    return tuple(map(_with_tuples, value)) if known else value
