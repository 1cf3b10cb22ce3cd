"""Checks the fields of a configuration, and lists them for `--fields`.

One pass before anything is built: each field is known, of the right type, finite, in
range and of use. What an argument means is checked where it is used.
"""

import functools
import inspect
from collections.abc import Callable

import numpy as np

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.named import named
from sparsefl_jax.core.validate import above, at_least, closest, in_range, one_of, typed
from sparsefl_jax.models.base import DTYPES
from sparsefl_jax.runs import sinks
from sparsefl_jax.runs.config import defaults
from sparsefl_jax.runs.config.defaults import FIELDS, TABLES, naming, unknown_field
from sparsefl_jax.runs.config.methods import densities, refuse_others
from sparsefl_jax.runs.config.plain import Recorded, plain, refuse_python
from sparsefl_jax.runs.plan import checks
from sparsefl_jax.sparsity import masks, trees

INIT_WHAT = {
    "model": "weights and mask",
    "weights": "the weights, with nothing pruned",
    "mask": "the mask, on fresh weights",
}
_BOUNDS = {  # what refuses values, and the bound that it takes
    (at_least, 0): (
        *("seed", "partition_seed", "num_clients", "lr_delay", "checkpoint_minutes"),
    ),
    (at_least, 1): ("num_classes", "seeds", "lr_horizon", "deadline.over"),
    (above, 0): (
        *("memory_gb", "deadline.seconds", "until.gbit", "until.pflop", "until.hours"),
        *("fit.gbit", "fit.pflop", "fit.most"),
    ),
    (above, 1): ("fit.pilot",),
    (in_range, "(0, 1]"): ("density", "until.accuracy", "deadline.quantile"),
}
_FIT, _CLOSING = ("fit.gbit", "fit.pflop"), ("deadline.seconds", "deadline.quantile")
_GOES_WITH = {  # fields that are read only beside one of some others
    **dict.fromkeys(("lr_horizon", "lr_delay", "lr_decay"), ("final_learning_rate",)),
    **dict.fromkeys(("fit.pilot", "fit.most", "fit.by", "fit.measured"), _FIT),
    **dict.fromkeys(("until.hours", *_CLOSING), ("system",)),
    "deadline.over": _CLOSING,
    "init_what": ("init_from",),
}


def check(config) -> None:
    """Refuses a configuration with an invalid field.

    Args:
      config: as `defaults.default_config` makes it.

    Raises:
      ValueError: in one line, on a field that is unknown or missing, has another type,
        is not finite or is out of range, or is set without one that it goes with.

    Example:
      >>> config = defaults.default_config()
      >>> config.optimizer.learning_rate = float("nan")
      >>> check(config)
      Traceback (most recent call last):
        ...
      ValueError: optimizer.learning_rate=nan, expected a finite number
    """
    if not hasattr(config, "to_dict"):
        found = type(config).__name__
        raise ValueError(f"the configuration is a {found}, expected a ConfigDict")
    refuse_python(config)
    values, usual = config.to_dict(), defaults.default_config().to_dict()
    _known("", values, usual)
    for field, default in usual.items():
        if field not in values:
            raise ValueError(f"the configuration lacks the field {field!r}")
        if isinstance(default, dict):
            typed(field, values[field], dict)
            _check_section(field, values[field], default)
        elif values[field] is not None or default is not None:
            typed(field, values[field], defaults.kind(field))
    _check_ranges(config, flatten(values))
    _check_companions(config, flatten(values), flatten(usual))


def _known(section: str, names, allowed) -> None:
    """Refuses a name that is not allowed; suggests the nearest one."""
    for name in names:
        if name not in allowed:
            refuse_others(section[:-1], names, name)
            raise ValueError(unknown_field(section + name, allowed))


def _check_section(field: str, section: dict, default: dict) -> None:
    """Checks the values of a section; None counts as not set."""
    named_one = f"{field}.name" in FIELDS and field != "server_optimizer"
    if named_one and (section or default) and section.get("name") is None:
        raise ValueError(f"{field}.name is missing")
    known = defaults.kinds(field, section.get("name"))
    if field not in ("algorithm", "first_stage"):  # a factory knows best what it lacks
        _known(f"{field}.", section, known)
    for name, value in section.items():
        if value is not None:
            typed(f"{field}.{name}", value, known.get(name, object))


def _check_ranges(config, given: dict) -> None:
    """Refuses values out of range that no later check would catch."""
    for (refuse, bound), names in _BOUNDS.items():
        for field in names:
            if given.get(field) is not None:
                refuse(field, given[field], bound)
    if given.get("fit.by") is not None:
        one_of("fit.by", given["fit.by"], ("pilot",))
    if config.seed + config.seeds > 2**31:
        raise ValueError(
            f"seeds={config.seeds} from seed={config.seed}, expected all below 2**31"
        )
    one_of("init_what", config.init_what, sorted(INIT_WHAT))
    one_of("model.dtype", config.model.get("dtype", "float32"), DTYPES)
    sinks.check(config.sinks)


def _check_companions(config, given: dict, usual: dict) -> None:
    """Refuses fields that are set without one that they go with."""
    for field, value in given.items():
        others = _GOES_WITH.get(field, ())
        if field.startswith("server_optimizer.") and not field.endswith(".name"):
            others = ("server_optimizer.name",)
        alone = others and not any(given.get(other) for other in others)
        if alone and value is not None and value != usual.get(field):
            _unread(field, value, f": it goes with {' or '.join(others)}")
    held = densities(config)
    if config.density is not None and config.density not in held.values():
        others = [f"{field} is {value}" for field, value in held.items()]
        names = ", ".join(defaults.readers("algorithm", "density", "max_density"))
        none = f"{config.algorithm.get('name')!r} takes none; {names} do"
        _unread("density", config.density, f": {', '.join(others) or none}")


def _unread(field: str, value, why: str = ""):
    raise ValueError(f"{field}={value!r} is read by nothing here{why}")


def all_read(*names: str) -> Callable:
    """Makes a builder refuse those of some fields that are set and that it never read.

    Whoever sets a field wants something; a run that ignored it would look like an
    answer. The builder gets its configuration `Recorded`.

    Args:
      *names: fields and sections that this builder alone reads.

    Example:
      >>> @all_read("augment", "input_scale")
      ... def build(config):
      ...     return config.input_scale
      >>> config = defaults.default_config()
      >>> build(config)
      255.0
      >>> config.augment = ("flip",)
      >>> build(config)
      Traceback (most recent call last):
      ValueError: augment=('flip',) is read by nothing here
    """

    def decorate(build):
        @functools.wraps(build)
        def checked(config, *args, **kwargs):
            recorded = Recorded(config)
            built = build(recorded, *args, **kwargs)
            usual = flatten(plain(defaults.default_config()))
            for field, value in flatten(plain(recorded)).items():
                name = field.partition(".")[0]
                unread = name in names and name not in recorded.read
                if unread and value != usual.get(field):
                    _unread(field, value)
            return built

        return checked

    return decorate


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
        if section.get("name") not in TABLES["algorithm"]:
            continue  # one's own, whose density may be of anything
        with naming(field, ("prunable",)):
            layers = masks.prunable(params, tuple(section.get("prunable", "*")))
        size = int(trees.layer_sizes(params, layers).sum())
        for key in ("density", "max_density", "densities"):
            least = np.min(section.get(key) or 1.0)
            if int(least * size) < 1:
                raise ValueError(
                    f"{section['name']}: {key}={least:g}, expected at least "
                    f"{1 / size:.2g} to leave one of {size} weights"
                )


def check_stages(config, stages, model, traced) -> None:
    """Refuses epochs or a mask of the first stage that no later step reads.

    Raises:
      ValueError: in one line.
    """
    epochs = config.first_stage.get("epochs") or 1
    if epochs > 1 and not checks.reads_epochs(traced[0]):
        name = config.first_stage["name"]
        why = f": {name!r} takes the batches of one epoch, expected 1"
        _unread("first_stage.epochs", epochs, why)
    masked = any(field.startswith("first_stage") for field in densities(config))
    if masked and not checks.reads_mask(stages[1].algorithm, model):
        raise ValueError(
            f"first_stage.name={config.first_stage['name']!r}: its mask is read by "
            f"nothing here, as {config.algorithm['name']!r} starts from one of its own"
        )


def listing(section: str = "", config=None) -> str:
    """Returns fields with their types and defaults, and the line of `FIELDS` on each.

    Args:
      section: a section; a method, network or partition, whose documentation and
        arguments are listed; or '' for all fields.
      config: where sections have their names from, by default `default_config()`. Its
        values stand behind those that differ from the default.

    Raises:
      ValueError: there is no such section.

    Example:
      >>> print(listing("until"))
      until.gbit      float  None  ends the run after this traffic, 1e9 bits both ways
      until.pflop     float  None  ends the run after these training FLOPs, 1e15
      until.accuracy  float  None  ends the run at this accuracy, a share
      until.hours     float  None  ends the run after so many hours of the system's time
    """
    usual = defaults.default_config()
    config = usual if config is None else config
    sections = [name for name in config if hasattr(config[name], "to_dict")]
    if section in sections:
        name = config[section].get("name")
        return _doc(section, name) + _of_section(section, name, config[section])
    for field, table in TABLES.items():
        if section in table or (":" in section and _takes_as(table, section)):
            given = {"name": section}
            return _doc(field, section) + _of_section(field, section, given)
    if section:
        known = [*sections, *(name for t in TABLES.values() for name in t)]
        near = closest(section, known)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(
            f"--fields={section}{hint}, expected one of {', '.join(sections)}, or a "
            "name that --list prints"
        )
    head = "--config.NAME=VALUE sets a field, --config.SECTION.NAME=VALUE one of a "
    rows = [
        (name, defaults.kind(name), usual[name], meaning, config[name])
        for name, (_, meaning) in FIELDS.items()
        if "." not in name
    ]
    listed = [head + "section", _table(rows)]
    listed += [_of_section(n, config[n].get("name"), config[n]) for n in sections]
    return "\n\n".join(listed)


def _takes_as(table: dict[str, Callable], name: str) -> bool:
    """Tells whether a `module:function` begins with the arguments of a table."""
    first = next(iter(defaults.signature(named("--fields", name, {}))), None)
    return first in {next(iter(defaults.signature(e))) for e in table.values()}


def _doc(field: str, name: str | None) -> str:
    """Returns the documentation of a method, network or partition, '' of others."""
    if field not in TABLES or name is None:
        return ""
    return f"{name}: {inspect.getdoc(defaults.entry(field, name)) or ''}\n\n"


def _of_section(field: str, name: str | None, section) -> str:
    """Lists the fields of a section."""
    given = {key: p.default for key, p in defaults.parameters(field, name).items()}
    given |= defaults.default_config()[field].to_dict()
    rows = [
        (path, kind, given.get(key), FIELDS.get(path, (..., ""))[1], section.get(key))
        for key, kind in defaults.kinds(field, name).items()
        for path in [f"{field}.{key}"]
    ]
    order = list(FIELDS)
    rows.sort(key=lambda row: order.index(row[0]) if row[0] in FIELDS else len(order))
    return _table(rows)


def _table(rows: list[tuple]) -> str:
    """Aligns names, types, defaults and lines."""
    cells = []
    for name, kind, usual, line, now in rows:
        shown = "any" if kind is object else inspect.formatannotation(kind)
        default = "required" if usual is inspect.Parameter.empty else repr(usual)
        line += "" if now is None or now == usual else f" (here {now!r})"
        cells.append((name, shown, default, line))
    widths = [max((len(row[i]) for row in cells), default=0) for i in range(3)]
    return "\n".join(
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]])
        for row in cells
    )
