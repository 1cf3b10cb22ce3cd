"""A sweep: every combination of some fields' values, as the points of a study."""

import copy
import itertools
import re
from collections.abc import Mapping, Sequence

from sparsefl_jax.config import changes, defaults, fields
from sparsefl_jax.config.defaults import fill_in
from sparsefl_jax.core.check import UserError
from sparsefl_jax.presets import methods
from sparsefl_jax.studies.points import Point


def parse(text: str) -> dict[str, list]:
    """Parses the fields of a sweep and their values.

    Args:
      text: `FIELD=VALUE,VALUE; FIELD=...`. A value is a Python literal or plain text.
        Commas inside brackets do not separate values.

    Raises:
      ValueError: a part is no field with values, or a field comes twice.

    Example:
      >>> parse("algorithm.name=fedavg,spdst; density=.05,.1; seed=0,1,2")
      {'algorithm.name': ['fedavg', 'spdst'], 'density': [0.05, 0.1], 'seed': [0, 1, 2]}
    """
    axes = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, values = map(str.strip, part.partition("="))
        if not (name and values) or "=" in values:
            raise UserError(f"--sweep has {part!r}, expected FIELD=VALUE,VALUE; ...")
        if name in axes:
            raise UserError(f"--sweep has {name!r} twice, expected all values at once")
        axes[name] = [defaults.parse(value) for value in split(values)]
    if not axes:
        raise UserError(f"--sweep={text!r}, expected FIELD=VALUE,VALUE; FIELD=...")
    return axes


def split(values: str) -> list[str]:
    """Splits at commas outside brackets."""
    parts = map(str.strip, re.split(r",(?![^(\[{]*[)\]}])", values))
    return [part for part in parts if part]


def sweep(config, axes: Mapping[str, Sequence] | str) -> list[Point]:
    """Returns a point for each combination of values.

    A name of a method brings its first stage and arguments, see `methods.choose`. A
    field that a method does not take does not multiply its points: FedAvg has no
    density, and so one point. `seed` makes no points but the seeds of each.

    Args:
      config: a configuration; the points differ from it in the fields of the axes.
      axes: values by field, or the text of `parse`.

    Raises:
      ValueError: a field does not exist, no method takes it, or the seeds have gaps.

    Example:
      >>> from sparsefl_jax.config import default_config
      >>> axes = {"algorithm.name": ["fedavg", "pdst"], "density": [0.05, 0.1]}
      >>> [point.name for point in sweep(default_config(), axes)]
      ['fedavg', 'pdst-density=0.05', 'pdst-density=0.1']
    """
    axes = dict(parse(axes) if isinstance(axes, str) else axes)
    seeds = _seeds(axes.pop("seed", None), config)
    order = sorted(axes, key=lambda name: (name != "algorithm.name", name != "density"))
    points, used = {}, set()
    for values in itertools.product(*(axes[name] for name in order)):
        chosen = dict(zip(order, values, strict=True))
        point = copy.deepcopy(config)
        taken = _apply(point, chosen)
        used |= taken.keys()
        point.seed, point.seeds = seeds
        name = "-".join(
            _text(value)
            if field.endswith(".name")
            else f"{field.rpartition('.')[2]}={_text(value)}"
            for field, value in taken.items()
        )
        same = points.setdefault(name or config.algorithm.name, point)
        if changes.differences(fill_in(same), fill_in(point)):
            raise UserError(f"--sweep: two points are both called {name!r}")
    if unread := [name for name in axes if name not in used]:
        raise UserError(f"--sweep: {unread[0]} is an argument of none of the methods")
    return [Point(*pair) for pair in points.items()]


def _seeds(seeds, config) -> tuple[int, int]:
    if seeds is None:
        return config.seed, config.seeds
    whole = seeds and all(type(seed) is int for seed in seeds)
    first = min(seeds) if whole else 0
    if not whole or sorted(seeds) != list(range(first, first + len(seeds))):
        raise UserError(f"--sweep: seed={list(seeds)}, expected seeds without a gap")
    return first, len(seeds)


def _apply(config, chosen: dict) -> dict:
    """Sets the fields that the method takes; returns these."""
    first = [field for field in ("num_clients", "num_rounds") if field in chosen]
    for field in first:  # what a method brings follows them
        _set(config, field, chosen[field])
    name = str(chosen.get("algorithm.name", config.algorithm.name))
    density = chosen.get("density")
    methods.choose(config, name, density)

    def taken(field: str) -> bool:
        if field == "density":
            return density is None or config.density is not None
        done = field in ("algorithm.name", *first)
        return done or _set(config, field, chosen[field])

    return {field: chosen[field] for field in chosen if taken(field)}


def _set(config, field: str, value) -> bool:
    """Sets a field; returns whether this point's method takes it."""
    section, _, key = field.rpartition(".")
    if key == "name" and section in fields.TABLES:
        defaults.rename(config, section, str(value))
        return True
    where = config.get(section, {})
    known = fields.arguments(section, where.get("name"))
    if section in ("algorithm", "first_stage") and key not in known:
        return False  # another method's argument
    defaults.override(config, {field: value})
    return True


def _text(value) -> str:
    """Writes a value so that it can be part of a folder's name."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]+", "_", text).strip("_")
