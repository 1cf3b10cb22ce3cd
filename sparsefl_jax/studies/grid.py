"""A sweep: combinations of fields' values, or random draws, as points of a study."""

import copy
import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from sparsefl_jax.config import changes, defaults, fields
from sparsefl_jax.config.defaults import fill_in
from sparsefl_jax.core.check import UserError
from sparsefl_jax.presets import methods
from sparsefl_jax.studies.points import Point

_DRAWN = r"(log|uniform)\("
_NUMBER = r"(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
_RANDOM = rf"{_DRAWN}{_NUMBER}, *{_NUMBER}\)x([1-9]\d*)"


def parse(text: str) -> dict[str, list]:
    """Parses the fields of a sweep and their values.

    Args:
      text: `FIELD=VALUE,VALUE; FIELD=...`. A value is a Python literal or plain text.
        Commas inside brackets do not separate values. `log(LOW,HIGH)xN` and
        `uniform(LOW,HIGH)xN` stay texts, see `draw`.

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


def draw(field: str, text: str, seed: int) -> list[float]:
    """Draws random values, to the six digits of points' names.

    Args:
      field: whose values they are; those of different fields are independent.
      text: `log(LOW,HIGH)xN` for N values with a uniform logarithm, or
        `uniform(LOW,HIGH)xN`. A larger N begins with the same values.
      seed: of the study.

    Raises:
      ValueError: the text says something else, or the range is not possible.

    Example:
      >>> draw("optimizer.learning_rate", "log(.01,1)x3", seed=0)
      [0.0138183, 0.0151548, 0.0411149]
    """
    found = re.fullmatch(_RANDOM, text)
    kind, low, high, count = found.groups() if found else ("", 0, 0, 0)
    low, high = float(low), float(high)
    if low >= high or (kind == "log" and low <= 0):
        raise UserError(
            f"--sweep has '{field}={text}', expected log(LOW,HIGH)xN with LOW > 0, or "
            "uniform(LOW,HIGH)xN; LOW < HIGH, N >= 1"
        )
    part = np.random.default_rng([seed, *field.encode()]).random(int(count))
    values = low * (high / low) ** part if kind == "log" else low + (high - low) * part
    return [float(f"{value:g}") for value in values]


def sweep(config, axes: Mapping[str, Sequence] | str) -> list[Point]:
    """Returns a point for each combination of values.

    A name of a method brings its first stage and arguments, see `methods.choose`. A
    field that a method does not take does not multiply its points: FedAvg has no
    density, and so one point. Random fields, see `draw`, are drawn together, once for
    each combination of the others. `seed` makes no points but the seeds of each.

    Args:
      config: a configuration; the points differ from it in the fields of the axes.
      axes: values by field, or the text of `parse`.

    Raises:
      ValueError: a field does not exist, no method takes it, the seeds have gaps, or
        random fields have different numbers of values.

    Example:
      >>> from sparsefl_jax.config import default_config
      >>> axes = {"algorithm.name": ["fedavg", "pdst"], "density": [0.05, 0.1]}
      >>> [point.name for point in sweep(default_config(), axes)]
      ['fedavg', 'pdst-density=0.05', 'pdst-density=0.1']
    """
    axes = dict(parse(axes) if isinstance(axes, str) else axes)
    seeds = _seeds(axes.pop("seed", None), config)
    order = sorted(axes, key=lambda name: (name != "algorithm.name", name != "density"))
    texts = {n: axes[n][0] for n in order if re.match(_DRAWN, str(*axes[n][:1]))}
    drawn = [draw(name, text, seeds[0]) for name, text in texts.items()]
    if len({len(values) for values in drawn}) > 1:
        raise UserError(f"--sweep draws {texts}, expected as many values of each")
    fixed = [name for name in order if name not in texts]
    points, used = {}, set()
    together = list(zip(*drawn, strict=True)) or [()]
    for *values, random in itertools.product(*map(axes.get, fixed), together):
        chosen = dict(zip([*fixed, *texts], (*values, *random), strict=True))
        point = copy.deepcopy(config)
        taken = _apply(point, chosen)
        used |= taken.keys()
        point.seed, point.seeds = seeds
        heads = {f: f"{f.rpartition('.')[2]}=" for f in taken if f[-5:] != ".name"}
        name = "-".join(heads.get(f, "") + _text(v) for f, v in taken.items())
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

    def is_taken(field: str) -> bool:
        if field == "density":
            return density is None or config.density is not None
        done = field in ("algorithm.name", *first)
        return done or _set(config, field, chosen[field])

    return {field: chosen[field] for field in chosen if is_taken(field)}


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
