"""A section of a configuration becomes that of another method, network or partition.

`--config.algorithm.name=jmwst` changes the method alone: what a file has set stays
where the new one takes it, and a first stage is asked for. A study that names methods
wants each of them as its paper runs it, and so calls `choose`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import config_dict

from sparsefl_jax.runs.config import defaults

NONE = "none"  # as the name of a first stage: there is none
_DENSITIES = ("density", "max_density")  # arguments that can refer to `density`
_SET_BY_THE_RUN = {"fit.by", "fit.measured"}  # a budget would count as spent


def switch(config, field: str, name: str):
    """Turns a section into that of another entry; keeps the arguments that were set.

    What the old entry had by default goes, as does what the new one does not take.
    Arguments without a default can be set and are None; a new `density` is the
    configuration's.

    Args:
      config: a configuration.
      field: a section, one of `defaults.TABLES`.
      name: the new entry, of one's own as `module:function`; 'none' for no first stage.

    Returns:
      `config`.

    Raises:
      ValueError: there is no such entry.

    Example:
      >>> config = defaults.default_config()
      >>> config.algorithm = {"name": "fedprox", "mu": 0.5, "weighting": "uniform"}
      >>> config = defaults.complete(config)
      >>> sorted(switch(config, "algorithm", "fedavg").algorithm.items())
      [('keep_optimizer', False), ('name', 'fedavg'), ('weighting', 'uniform')]
    """
    section, old = config[field], config[field].get("name")
    if (field, name) == ("first_stage", NONE):
        config[field] = config_dict.create(name=config_dict.placeholder(str))
        return config
    defaults.factory(field, name)  # refuses one that is not there
    usual, now = (defaults.default_arguments(field, n) for n in (old, name))
    new = {}
    for key in defaults.kinds(field, name).keys() - {"name"}:
        if section.get(key) not in (None, usual.get(key)):
            new[key] = section.get_oneway_ref(key)
        elif key == "density" and (key not in now or config.density is not None):
            new[key] = config.get_oneway_ref(key)
        elif key not in now:
            new[key] = config_dict.placeholder(object)
    with config.unlocked(), config.ignore_type():
        config[field] = config_dict.create(name=name, **new)
        return defaults.complete(config)


def settle(config):
    """Drops a first stage that is called 'none'."""
    stage = getattr(config, "first_stage", None)  # `fields` refuses what lacks it
    if stage and stage.get("name") == NONE:
        config.first_stage = {}
    return config


def densities(config) -> dict[str, float]:
    """Returns the densities that `density` may set, by field."""
    sections = {"first_stage": config.first_stage, "algorithm": config.algorithm}
    return {
        f"{name}.{key}": section[key]
        for name, section in sections.items()
        for key in _DENSITIES
        if section.get(key) is not None
    }


def follow(config, given: dict[str, str]) -> None:
    """Switches sections as flags name them, and makes what the other flags set settable.

    Args:
      config: as a file makes it.
      given: the flags' values by field.

    Raises:
      ValueError: in one line, if there is no such entry or field, a flag sets what only
        another entry takes, or nothing is said of the first stage of another method.

    Example:
      >>> config = defaults.default_config()
      >>> config.first_stage = {"name": "snip", "density": 0.1}
      >>> config.algorithm = {"name": "spdst"}
      >>> follow(config, {"algorithm.name": "fedavg"})
      Traceback (most recent call last):
        ...
      ValueError: algorithm.name='fedavg': the first stage 'snip' is that of 'spdst'; --config.first_stage.name=snip keeps it, --config.first_stage.name=none leaves it out
    """  # noqa: E501
    for field in _SET_BY_THE_RUN & given.keys():
        raise ValueError(f"{field}={given[field]} is set by the run, expected no value")
    names = {f: given[f"{f}.name"] for f in defaults.TABLES if f"{f}.name" in given}
    if names:
        _rename(config, names)
    for path, value in given.items():
        field, _, key = path.rpartition(".")
        section = config.get(field) if field else config
        if not hasattr(section, "to_dict"):
            raise ValueError(defaults.unknown_field(path, config))
        name = section.get("name")
        if field.endswith("optimizer"):
            name = given.get(f"{field}.name", name)
        if name and key in defaults.kinds(field, name):
            if key not in section or section.get_type(key) is type(None):
                with config.unlocked(), config.ignore_type():
                    section[key] = config_dict.placeholder(object)
        elif key not in section:
            refuse_others(field, {"name": name, key: value}, key)
            raise ValueError(defaults.unknown_field(path, section))


def _rename(config, names: dict[str, str]) -> None:
    method, stage = (config[s].get("name") for s in ("algorithm", "first_stage"))
    for field, name in names.items():
        switch(config, field, name)
    if config.algorithm.name != method and stage and "first_stage" not in names:
        raise ValueError(
            f"algorithm.name={config.algorithm.name!r}: the first stage {stage!r} is "
            f"that of {method!r}; --config.first_stage.name={stage} keeps it, "
            f"--config.first_stage.name={NONE} leaves it out"
        )
    _drop_density(config)


def refuse_others(field: str, section: dict, key: str) -> None:
    """Refuses an argument that only other entries of a section take.

    Raises:
      ValueError: names those that do.

    Example:
      >>> refuse_others("partition", {"name": "iid", "k": 2}, "k")
      Traceback (most recent call last):
        ...
      ValueError: partition.k=2 is not read by 'iid' but by shards
    """
    names = defaults.readers(field, key) if field in defaults.TABLES else []
    if names and section["name"] not in names:
        raise ValueError(
            f"{field}.{key}={section[key]!r} is not read by {section['name']!r} but by "
            f"{', '.join(names)}"
        )


def _drop_density(config) -> None:
    """Sets `density` to None if no stage refers to it."""
    if config.density not in densities(config).values():
        with config.ignore_type():
            config.density = None


_ONE_CLIENT = {"num_rounds": 1, "cohort_size": 1, "epochs": 1}
# PruneFL's rule with a constant time: the density alone limits the mask.
_BY_DENSITY = {"constant_time": 1e9}


class Brought(NamedTuple):
    """What a method brings."""

    method: str | None = None  # the method of the main stage, if it has another name
    first_stage: dict | Callable = {}  # or a function of the configuration
    arguments: dict | Callable = {}  # or a function of the configuration
    budgets: Callable = lambda config: ()


def _density(config) -> dict:
    """Refers to the configuration's density, if it has one."""
    return {"density": config.get_oneway_ref("density")} if config.density else {}


def _tiers(config) -> tuple[float, float, float]:
    """Returns FLASH's three densities, of which the largest is the configuration's."""
    top = config.density or 0.2
    return (0.5 * top, 0.75 * top, top)


def _until(config, share: tuple[int, int], least: int):
    """Refers to a share of the rounds, as a fraction; `least` where it is too small."""
    times, parts = share
    if config.num_rounds * times // parts < least:
        return least
    return config.get_oneway_ref("num_rounds") * times // parts


def _dense_fifth(config) -> dict:
    """Spends a fifth of the rounds on a dense model, and the others on PQSU."""
    dense = max(1, config.num_rounds // 5)
    config.num_rounds = max(1, config.num_rounds - dense)
    return {"name": "fedavg", "num_rounds": dense}


_SENSITIVITY = {"name": "sensitivity", "num_rounds": 1, "epochs": 10}
_PROGRESSIVE = Brought(
    arguments=lambda config: {"rounds": config.get_oneway_ref("num_rounds")}
)
_HETERO = Brought(
    first_stage=_SENSITIVITY,
    arguments=lambda config: {"densities": _tiers(config)},
    budgets=lambda config: tuple(zip(_tiers(config), (0.3, 0.3, 0.4), strict=True)),
)
_ADJUSTED = Brought(  # as long as in FedRTS's paper, until round 300 of 500
    arguments=lambda config: {"adjust_until": _until(config, (3, 5), 1)}
)
BROUGHT = {
    "compressed": Brought(arguments=_density),
    "spdst": Brought(first_stage=_SENSITIVITY),
    "jmwst": Brought(first_stage=_SENSITIVITY),
    "hetero_spdst": _HETERO,
    "hetero_jmwst": _HETERO,
    "snip": Brought("spdst", _ONE_CLIENT | {"name": "snip"}),
    "grasp": Brought("spdst", _ONE_CLIENT | {"name": "grasp"}),
    "ssfl": Brought(  # all clients score the weights
        "spdst",
        lambda config: {
            "name": "ssfl",
            "num_rounds": 1,
            "epochs": 1,
            "cohort_size": config.get_oneway_ref("num_clients"),
        },
    ),
    "feddst": Brought(  # readjusts until halfway, as its released code does
        arguments=lambda config: {"adjust_until": _until(config, (1, 2), 2)}
    ),
    "fedrts": _ADJUSTED,
    "fedtiny": _ADJUSTED,
    "fedsparsify_global": _PROGRESSIVE,
    "fedsparsify_local": _PROGRESSIVE,
    "prunefl": Brought(
        first_stage=_ONE_CLIENT | _BY_DENSITY | {"name": "prunefl_initial"},
        arguments=_BY_DENSITY,
    ),
    "pqsu": Brought(first_stage=_dense_fifth),
    "heterofl": Brought(budgets=lambda config: ((0.5, 1.0),)),
    "fjord": Brought(
        arguments={"widths": (0.4, 0.45, 0.5, 0.55, 0.6), "draw": "round"}
    ),
}


def choose(config, name: str, density: float | None = None):
    """Turns a configuration into one of a method as its paper runs it.

    The method brings its first stage, the arguments that follow from the rest of the
    configuration, and the budgets of its clients. What the configuration has set stays
    where the method takes it; so does everything if the method stays the same. 'snip',
    'grasp' and 'ssfl' stand for their mask and then FedAvg within it.

    Args:
      config: a configuration, which changes.
      name: of a method, or of one's own as `module:function`.
      density: the share of the weights that stay; None leaves it as it is. A method
        that takes no density ignores it, and `config.density` is None then.

    Returns:
      `config`.

    Raises:
      ValueError: there is no such method.

    Example:
      >>> config = defaults.default_config()
      >>> config = choose(config, "jmwst", density=0.05)
      >>> config.first_stage.name, config.first_stage.density
      ('sensitivity', 0.05)
    """
    brought = BROUGHT.get(name, Brought())
    method = brought.method or name
    stage = config.first_stage.get("name")
    changes = config.algorithm.name != method or (brought.method and stage != name)
    if density is not None:
        with config.ignore_type():
            config.density = density
    if changes:
        _bring(config, method, brought)
    if density is not None:
        config.update_from_flattened_dict(dict.fromkeys(densities(config), density))
    _drop_density(config)
    return config


def _bring(config, method: str, brought: Brought) -> None:
    switch(config, "algorithm", method)
    given: Any = brought.first_stage
    given = given(config) if callable(given) else given
    if not given:
        config.first_stage = {}
    elif config.first_stage.get("name") != given["name"]:
        switch(config, "first_stage", given["name"])
        _set(config, "first_stage", given)
        patterns = config.algorithm.get("prunable")
        if patterns and "prunable" in config.first_stage:
            config.first_stage.prunable = patterns
    arguments = brought.arguments
    _set(config, "algorithm", arguments(config) if callable(arguments) else arguments)
    with config.ignore_type():
        config.budgets = brought.budgets(config)


def _set(config, section: str, values: dict) -> None:
    taken = defaults.parameters(section, config[section].name)
    with config.unlocked(), config.ignore_type():
        for key, value in values.items():
            config[section][key] = value
        if "max_density" in taken and config.density is not None:
            config[section].max_density = config.get_oneway_ref("density")
