"""A section of a configuration becomes that of another entry, as on the command line.

What a file has set stays where the new entry takes it, and follows the field that it
referred to. A first stage belongs to the method that it prepares: who names another
method says what becomes of it.
"""

import inspect

from ml_collections import config_dict

from sparsefl_jax.runs.config import defaults, fields, registry, unread

NONE = "none"  # as the name of a first stage: there is none
_SET_BY_THE_RUN = {"by", "measured"}  # of `fit`; a budget would count as spent


def switch(config, field: str, name: str):
    """Turns a section into that of another entry; keeps the arguments it shares.

    What the old entry had by default goes, as does what the new one does not take; what
    a file has set stays. Arguments without a default can be set and are None; a new
    `density` is the configuration's.

    Args:
      config: a configuration.
      field: a section, one of `configuration.TABLES`.
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
    section, new = config[field], {}
    if (field, name) == ("first_stage", NONE):
        config[field] = config_dict.create(name=config_dict.placeholder(str))
        return config
    old = section.to_dict()
    usual = registry.default_arguments(field, old.pop("name", None))
    taken = registry.arguments(registry.factory(field, name))
    wide = registry.SECTION_WIDE.get(field, ())
    for key in (*wide, *taken):
        given = old.get(key) is not None
        if given and (key in wide or old[key] != usual.get(key)):
            new[key] = section.get_oneway_ref(key)
            continue
        free = key in wide or taken[key].default in (inspect.Parameter.empty, None)
        if key == "density" and (free or config.density is not None):
            new[key] = config.get_oneway_ref(key)
        elif free:
            new[key] = config_dict.placeholder(object)
    with config.unlocked(), config.ignore_type():
        config[field] = config_dict.create(name=name, **new)
        return defaults.complete(config)


def rename(config, names: dict[str, str]) -> None:
    """Switches sections and drops what only the old method reads.

    Args:
      config: as a file makes it.
      names: new entries by section.

    Raises:
      ValueError: there is no such entry, or there is a first stage for another method
        of which nothing is said.

    Example:
      >>> config = defaults.default_config()
      >>> config.first_stage = {"name": "snip", "density": 0.1}
      >>> config.algorithm = {"name": "spdst"}
      >>> rename(config, {"algorithm": "fedavg", "first_stage": "none"})
      >>> config.algorithm.name, config.first_stage.name
      ('fedavg', None)
    """
    method, stage = (config[s].get("name") for s in ("algorithm", "first_stage"))
    for field, name in names.items():
        switch(config, field, name)
    renamed = config.algorithm.name != method
    if renamed and stage is not None and "first_stage" not in names:
        raise ValueError(
            f"algorithm.name={config.algorithm.name!r}: the first stage {stage!r} is "
            f"that of {method!r}; --config.first_stage.name={stage} keeps it, "
            f"--config.first_stage.name={NONE} leaves it out"
        )
    if config.density not in unread.densities(config).values():
        with config.ignore_type():
            config.density = None


def follow(config, given: dict[str, dict[str, str]]) -> None:
    """Applies renaming flags; refuses arguments that only other entries read.

    Args:
      config: as a file makes it.
      given: values by section and key.

    Raises:
      ValueError: in one line.
    """
    for name in _SET_BY_THE_RUN & given.get("fit", {}).keys():
        raise ValueError(
            f"fit.{name}={given['fit'][name]} is set by the run, expected no value"
        )
    tables, every = registry.TABLES, given
    given = {field: flags for field, flags in given.items() if field in tables}
    if names := {f: flags["name"] for f, flags in given.items() if "name" in flags}:
        rename(config, names)
    for field, flags in given.items():
        section = config[field]
        for key in flags.keys() - set(section) if section.get("name") else ():
            named = flags | {"name": section.name}
            registry.refuse_unread(field, named, key)
    _admit(config, every)


def _admit(config, given: dict[str, dict[str, str]]) -> None:
    """Adds arguments that sections may hold and do not set, so that they can be."""
    for field, flags in given.items():
        section = config.get(field)
        if not hasattr(section, "to_dict") or not section.get("name"):
            continue
        known = fields.kinds(field, flags.get("name", section.name))
        for key in flags.keys() & known.keys():
            if key not in section or section.get_type(key) is type(None):
                with config.unlocked(), config.ignore_type():
                    section[key] = config_dict.placeholder(object)


def settle(config):
    """Drops a first stage that is called 'none'."""
    stage = getattr(config, "first_stage", None)  # `fields` refuses what lacks it
    if stage and stage.get("name") == NONE:
        config.first_stage = {}
    return config
