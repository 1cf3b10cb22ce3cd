"""A configuration's fields: known, of the right type, finite and in range.

One pass over all of them before anything is built. What an argument means is checked
where it is used; here stands only what has no such place.
"""

import inspect
from types import UnionType

import numpy as np
import optax

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.validate import above, at_least, in_range, one_of, typed
from sparsefl_jax.models.base import DTYPES
from sparsefl_jax.runs import sinks
from sparsefl_jax.runs.config import defaults, guess, registry, unread
from sparsefl_jax.runs.config.plain import refuse_python
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.training import local

INIT_WHAT = {
    "model": "weights and mask",
    "weights": "the weights, with nothing pruned",
    "mask": "the mask, on fresh weights",
}
_TUPLES = {  # fields whose default is empty, so that it does not tell of what
    "augment": tuple[str, ...],
    "budgets": tuple[tuple[float, ...], ...],
    "observe_rounds": tuple[int, ...],
    "sinks": tuple[str, ...],
}
_BOUNDS = {  # what refuses a value, and the bound it takes
    "seed": (at_least, 0),
    "partition_seed": (at_least, 0),
    "num_clients": (at_least, 0),
    "num_classes": (at_least, 1),
    "seeds": (at_least, 1),
    "lr_horizon": (at_least, 1),
    "lr_delay": (at_least, 0),
    "checkpoint_minutes": (at_least, 0),
    "deadline.over": (at_least, 1),
    "memory_gb": (above, 0),
    "deadline.seconds": (above, 0),
    "until.gbit": (above, 0),
    "until.pflop": (above, 0),
    "until.hours": (above, 0),
    "fit.gbit": (above, 0),
    "fit.pflop": (above, 0),
    "fit.pilot": (above, 1),
    "fit.most": (above, 0),
    "density": (in_range, "(0, 1]"),
    "until.accuracy": (in_range, "(0, 1]"),
    "deadline.quantile": (in_range, "(0, 1]"),
}


def check(config) -> None:
    """Refuses a configuration with an invalid field.

    Args:
      config: as `defaults.default_config` makes it.

    Raises:
      ValueError: in one line, on a field that is unknown or missing, has another type,
        is not finite or is out of range, or is set and read by nothing.

    Example:
      >>> config = defaults.default_config()
      >>> config.optimizer.learning_rate = float("nan")
      >>> check(config)
      Traceback (most recent call last):
        ...
      ValueError: optimizer.learning_rate=nan, expected a finite number
    """
    default = defaults.default_config()
    if not hasattr(config, "to_dict"):
        found = type(config).__name__
        raise ValueError(f"the configuration is a {found}, expected a ConfigDict")
    refuse_python(config)
    values = config.to_dict()
    _known("", values, default)
    for field, usual in default.to_dict().items():
        if field not in values:
            raise ValueError(f"the configuration lacks the field {field!r}")
        if isinstance(usual, dict):
            typed(field, values[field], dict)
            _check_section(field, values[field], default[field])
        elif values[field] is not None or usual is not None:
            typed(field, values[field], kind(field))
    _check_ranges(config)
    unread.check(config)


def _known(section: str, names, allowed) -> None:
    """Refuses a name that is not allowed; suggests the nearest one."""
    for name in names:
        if name not in allowed:
            registry.refuse_unread(section[:-1], names, name)
            raise ValueError(guess.unknown_field(section + name, allowed))


def _check_section(field: str, section: dict, default) -> None:
    """Checks the values of a section; None counts as not set."""
    nameless = ("until", "fit", "deadline", "server_optimizer", "privacy", "hf")
    named = field not in nameless and (section or default)
    if named and section.get("name") is None:
        raise ValueError(f"{field}.name is missing")
    known = kinds(field, section.get("name"))
    if field not in ("algorithm", "first_stage"):  # a factory knows best what it lacks
        _known(f"{field}.", section, known)
    for name, value in section.items():
        if value is not None:
            typed(f"{field}.{name}", value, known.get(name, object))


def parameters(field: str, name: str | None) -> dict[str, inspect.Parameter]:
    """Returns the arguments that a section may hold beside its name.

    Args:
      field: the section.
      name: the entry that it names, if any.
    """
    found = {}
    if name is not None:
        typed(f"{field}.name", name, str)
    if field.endswith("optimizer"):
        factory = getattr(optax, name or "", None)
        found |= inspect.signature(factory).parameters if callable(factory) else {}
        found |= registry.arguments(local.make_optimizer)
        found.pop("schedule")
    elif field in registry.TABLES and name is not None:
        found |= registry.arguments(registry.factory(field, name))
    return found


def kinds(field: str, name: str | None) -> dict:
    """Returns the type of each argument that a section may hold, and of its name."""
    found = {key: _kind(p) for key, p in parameters(field, name).items()}
    if field in registry.TABLES:
        found |= {"name": str} | registry.SECTION_WIDE.get(field, {})
    usual = defaults.default_config()[field]
    return found | {key: usual.get_type(key) for key in usual}


def kind(field: str):
    """Returns the type of a field that is no section."""
    return _TUPLES.get(field, defaults.default_config().get_type(field))


def _kind(parameter):
    """Returns the type of an argument, by its annotation or else by its default."""
    given, usual = parameter.annotation, parameter.default
    if given in (int, float, bool, str) or isinstance(given, UnionType):
        return given
    if isinstance(usual, tuple) and usual:
        return tuple[type(usual[0]), ...]
    return type(usual) if isinstance(usual, int | float | str | tuple) else object


def check_densities(config, model) -> None:
    """Refuses a density that would leave nothing of the network.

    Args:
      config: a configuration that `check` lets pass.
      model: its `Model`.

    Raises:
      ValueError: in one line.
    """
    params, _ = model.shapes()
    for field in ("first_stage", "algorithm"):
        section = getattr(config, field)
        if section.get("name") not in registry.TABLES["algorithm"]:
            continue  # one's own, whose density may be of anything
        with registry.naming(field, ("prunable",)):
            layers = masks.prunable(params, tuple(section.get("prunable", "*")))
        size = int(trees.layer_sizes(params, layers).sum())
        for key in ("density", "max_density", "densities"):
            least = np.min(section.get(key) or 1.0)
            if int(least * size) < 1:
                raise ValueError(
                    f"{section['name']}: {key}={least:g}, expected at least "
                    f"{1 / size:.2g} to leave one of {size} weights"
                )


def _check_ranges(config) -> None:
    """Refuses values out of range that no later check would catch."""
    given = {k: v for k, v in flatten(config.to_dict()).items() if v is not None}
    for field in filter(given.__contains__, _BOUNDS):
        refuse, bound = _BOUNDS[field]
        refuse(field, given[field], bound)
    if "fit.by" in given:
        one_of("fit.by", given["fit.by"], ("pilot",))
    if config.seed + config.seeds > 2**31:
        raise ValueError(
            f"seeds={config.seeds} from seed={config.seed}, expected all below 2**31"
        )
    one_of("init_what", config.init_what, sorted(INIT_WHAT))
    one_of("model.dtype", config.model.get("dtype", "float32"), DTYPES)
    sinks.check(config.sinks)
