"""Checks the fields of a configuration, and switches sections by flags.

Before anything is built, every field is known, has the right type, is finite, in range,
and has an effect. The meaning of an argument is checked where it is used.

`--config.algorithm.name=jmwst` changes only the method: arguments set by the file are
kept if the new method takes them, and the user has to decide about a first stage.
`presets.methods.choose` also sets the arguments of the method's paper.
"""

import contextlib
import re
from collections.abc import Container, Iterable, Iterator

from ml_collections import config_dict

from sparsefl_jax.core.check import UserError, check, closest, integer, unread
from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.runs import sinks
from sparsefl_jax.runs.config import defaults
from sparsefl_jax.runs.config.defaults import FIELDS, TABLES

_FIT, _CLOSING = ("fit.gbit", "fit.pflop"), ("deadline.seconds", "deadline.quantile")
_GOES_WITH = {  # fields that have an effect only with one of some others
    **dict.fromkeys(("lr_horizon", "lr_delay", "lr_decay"), ("final_learning_rate",)),
    **dict.fromkeys(("fit.pilot", "fit.most", "fit.evaluations", "fit.by"), _FIT),
    **dict.fromkeys(("until.hours", *_CLOSING), ("system",)),
    **{f: ("adapter.rank",) for f in FIELDS if f.startswith("adapter.")},
    **{f: ("server_optimizer.name",) for f in FIELDS if f.startswith("server_opt")},
    "deadline.over": _CLOSING,
    "init_what": ("init_from",),
}
_OR = {"lr_horizon": "lr_decay", "deadline.quantile": "deadline.seconds"}
NONE = "none"  # as the name of a first stage: there is none
_DENSITIES = ("density", "max_density")  # arguments that can refer to `density`


def check_fields(config) -> None:
    """Checks all fields of a configuration.

    Args:
      config: a configuration, see `defaults.default_config`.

    Raises:
      ValueError: a field is unknown or missing, has another type, is not finite or out
        of range, or has no effect without another one that is not set.

    Example:
      >>> config = defaults.default_config()
      >>> config.optimizer.learning_rate = float("nan")
      >>> check_fields(config)
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: optimizer.learning_rate=nan, expected a finite number
    """
    if not hasattr(config, "to_dict"):
        found = type(config).__name__
        raise UserError(f"the configuration is a {found}, expected a ConfigDict")
    check_buildable(config)
    values, usual = config.to_dict(), defaults.default_config().to_dict()
    _check_known("", values, usual)
    for field, default in usual.items():
        if field not in values:
            raise UserError(f"the configuration lacks the field {field!r}")
        if isinstance(default, dict):
            check(field, values[field], dict)
            _check_section(field, values[field], default)
        elif values[field] is not None or default is not None:
            check(field, values[field], defaults.kind(field))
    sinks.check_sinks(config.sinks)
    _check_together(config, flatten(values), flatten(usual))


def check_buildable(config) -> None:
    """Checks that a configuration can be built.

    Raises:
      ValueError: it describes parts that exist only in Python.
    """
    if getattr(config, "source", None) == defaults.PYTHON:
        raise UserError(
            "source='python': this run was made by sfl.experiment, which continues it "
            "if called again; a configuration cannot build it"
        )


def _check_known(section: str, names, allowed) -> None:
    """Checks that a name is allowed; the error suggests the nearest one."""
    for name in names:
        if name not in allowed:
            raise UserError(unknown_field(section + name, allowed))


def _check_section(field: str, section: dict, default: dict) -> None:
    """Checks the values of a section; None counts as not set."""
    named_one = f"{field}.name" in FIELDS and field != "server_optimizer"
    if named_one and (section or default) and section.get("name") is None:
        raise UserError(f"{field}.name is missing")
    known = defaults.arguments(field, section.get("name"))
    if field not in ("algorithm", "first_stage"):  # a factory knows best what it lacks
        _check_known(f"{field}.", section, known)
    for name, value in section.items():
        if value is not None:
            kind = known[name].annotation if name in known else object
            check(f"{field}.{name}", value, kind)


def _check_together(config, given: dict, usual: dict) -> None:
    """Checks fields by the values of others, without which some have no effect."""
    fitted = given.get("fit.gbit") or given.get("fit.pflop")
    if fitted and config.first_stage and not given.get("first_stage.num_rounds"):
        raise UserError("first_stage.num_rounds is missing, expected one with fit.*")
    check("seed", config.seed, integer(0, 2**31 - config.seeds))
    for field, value in given.items():
        others = _GOES_WITH.get(field, ())
        alone = others and not any(given.get(other) for other in others)
        if alone and value is not None and value != usual.get(field):
            raise unread(f"{field}={value!r}", f"it goes with {' or '.join(others)}")
    for field, other in _OR.items():
        if None not in (given.get(field), value := given.get(other)):
            raise unread(f"{field}={given[field]!r}", f"{other} is {value!r}")
    held = densities(config)
    if config.density is not None and config.density not in held.values():
        others = [f"{field} is {value}" for field, value in held.items()]
        none = f"{config.algorithm.get('name')!r} takes none"
        raise unread(f"density={config.density!r}", ", ".join(others) or none)


def check_unset(config, *fields: str) -> None:
    """Checks that fields without an effect have their default values.

    Example:
      >>> config = defaults.default_config()
      >>> config.augment = ("flip",)
      >>> check_unset(config, "input_scale", "augment")
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: augment=('flip',) has no effect here: nothing reads it
    """
    usual = flatten(defaults.plain(defaults.default_config()))
    given = flatten(defaults.plain(config))
    for field in fields:
        if given.get(field) != usual.get(field):
            raise unread(f"{field}={given[field]!r}", "nothing reads it")


@contextlib.contextmanager
def naming(section: str, arguments: Container[str]) -> Iterator[None]:
    """Adds the section to the name of an argument in the error of a factory.

    Example:
      >>> with naming("algorithm", ("density",)):
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


def unknown_field(name: str, allowed: Iterable[str]) -> str:
    """Returns the message for an unknown field, with suggestions and all known names.

    Args:
      name: the field, with its section and a dot if it is in one.
      allowed: the names of fields in the section or the configuration.

    Example:
      >>> print(unknown_field("sead", ["seed", "epochs"]))
      the configuration has no field 'sead'; did you mean 'seed'? it has epochs, seed
    """
    if name in defaults.GONE:
        return f"{name} is gone: {defaults.GONE[name]}"
    section, _, _ = name.rpartition(".")
    meant = nearest(name, allowed)
    hint = f"did you mean {meant!r}? " if meant not in (None, name) else ""
    there = f"{section or 'it'} has {', '.join(sorted(allowed))}"
    return f"the configuration has no field {name!r}; {hint}{there}"


def nearest(name: str, allowed: Iterable[str] = ()) -> str | None:
    """Returns the field whose last name is spelt most like that of another one.

    Example:
      >>> nearest("seed"), nearest("momentun"), nearest("xyzzy")
      ('seed', 'optimizer.momentum', None)
    """
    section, dot, leaf = name.rpartition(".")
    known = {path.rpartition(".")[2]: path for path in reversed(FIELDS)}
    known |= {path: path for path in FIELDS if "." not in path}
    known |= {own: f"{section}{dot}{own}" for own in allowed}
    return next((known[near] for near in closest(leaf, known)), None)


def densities(config) -> dict[str, float]:
    """Returns the densities that `density` may set, by field."""
    sections = {"first_stage": config.first_stage, "algorithm": config.algorithm}
    return {
        f"{name}.{key}": section[key]
        for name, section in sections.items()
        for key in _DENSITIES
        if section.get(key) is not None
    }


def drop_density(config) -> None:
    """Sets `density` to None if no stage refers to it."""
    if config.density not in densities(config).values():
        with config.ignore_type():
            config.density = None


def switch(config, field: str, name: str):
    """Turns a section into that of another entry; keeps the arguments that were set.

    Defaults of the old entry are removed, as are arguments that the new one does not
    take. Arguments without a default become None and can be set; a new `density` refers
    to that of the configuration.

    Args:
      config: a configuration.
      field: a section, one of `defaults.TABLES`.
      name: the new entry, or a user's `module:function`; 'none' for no first stage.

    Returns:
      `config`.

    Raises:
      ValueError: there is no such entry.

    Example:
      >>> config = defaults.default_config()
      >>> config.algorithm = {"name": "fedprox", "mu": 0.5, "weighting": "uniform"}
      >>> config = defaults.complete(config)
      >>> new = switch(config, "algorithm", "fedavg").algorithm
      >>> new.weighting, "mu" in new
      ('uniform', False)
    """
    section, old = config[field], config[field].get("name")
    if (field, name) == ("first_stage", NONE):
        config[field] = config_dict.create(name=config_dict.placeholder(str))
        return config
    taken = defaults.arguments(field, name).keys() - {"name"}
    before, now = (defaults.usual(field, n) for n in (old, name))
    new = {}
    for key in taken:
        if section.get(key) not in (None, before.get(key)):
            new[key] = section.get_oneway_ref(key)
        elif key == "density" and (key not in now or config.density is not None):
            new[key] = config.get_oneway_ref(key)
        elif key not in now:
            new[key] = config_dict.placeholder(object)
    with config.unlocked(), config.ignore_type():
        config[field] = config_dict.create(**now | {"name": name} | new)
    return config


def settle(config) -> None:
    """Drops a first stage that is called 'none', once all flags are set."""
    stage = getattr(config, "first_stage", None)  # `check` refuses what lacks it
    if stage and stage.get("name") == NONE:
        config.first_stage = {}


def follow(config, given: dict[str, str]) -> None:
    """Switches sections to the entries that flags name, so other flags can set them.

    Args:
      config: the configuration of a file.
      given: the flags' values by field.

    Raises:
      ValueError: there is no such entry or field, or the method changes and no flag
        decides about the first stage.

    Example:
      >>> config = defaults.default_config()
      >>> config.first_stage = {"name": "snip", "density": 0.1}
      >>> config.algorithm = {"name": "spdst"}
      >>> follow(config, {"algorithm.name": "fedavg"})
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: algorithm.name='fedavg': the first stage 'snip' is that
      of 'spdst'; --config.first_stage.name=snip keeps it,
      --config.first_stage.name=none leaves it out
    """  # noqa: E501
    if "fit.by" in given:  # a budget would count as spent
        raise UserError(f"fit.by={given['fit.by']} is set by the run, expected none")
    spread = given.get("fit.evaluations")
    if "eval_every" in given and (spread or config.fit.get("evaluations")):
        what = f"eval_every={given['eval_every']}"
        raise unread(what, "fit.evaluations sets it")
    if names := {f: given[f"{f}.name"] for f in TABLES if f"{f}.name" in given}:
        _rename(config, names)
    for path in given:
        field, _, key = path.rpartition(".")
        section = config.get(field) if field else config
        if not hasattr(section, "to_dict"):
            raise UserError(unknown_field(path, config))
        name = section.get("name")
        if field.endswith("optimizer"):
            name = given.get(f"{field}.name", name)
        if name and key in defaults.arguments(field, name):
            if key not in section or section.get_type(key) is type(None):
                with config.unlocked(), config.ignore_type():
                    section[key] = config_dict.placeholder(object)
        elif key not in section:
            raise UserError(unknown_field(path, section))


def _rename(config, names: dict[str, str]) -> None:
    method, stage = (config[s].get("name") for s in ("algorithm", "first_stage"))
    for field, name in names.items():
        switch(config, field, name)
    if config.algorithm.name != method and stage and "first_stage" not in names:
        raise UserError(
            f"algorithm.name={config.algorithm.name!r}: the first stage {stage!r} is "
            f"that of {method!r}; --config.first_stage.name={stage} keeps it, "
            f"--config.first_stage.name={NONE} leaves it out"
        )
    drop_density(config)
