"""What a method's paper sets beside it: first stage, arguments, budgets of clients.

A study that names methods wants each of them as its paper runs it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from sparsefl_jax.runs.config import defaults
from sparsefl_jax.runs.config.fields import arguments

_ONE_CLIENT = {"num_rounds": 1, "cohort_size": 1, "epochs": 1}
# PruneFL's rule with a constant time: the density alone limits the mask.
_BY_DENSITY = {"constant_time": 1e9}


class Brought(NamedTuple):
    """What a method brings."""

    method: str | None = None  # the method of the main stage, if it has another name
    first_stage: dict | Callable = {}  # or a function of the configuration
    arguments: dict | Callable = {}  # or a function of the configuration
    budgets: Callable = lambda config: ()


def _tiers(config) -> tuple[float, float, float]:
    """Returns FLASH's three densities, of which the largest is the configuration's."""
    top = config.density or 0.2
    return (0.5 * top, 0.75 * top, top)


def _until(config, times: int, parts: int, least: int):
    """Refers to `times` / `parts` of the rounds; `least` where that is too small."""
    if config.num_rounds * times // parts < least:
        return least
    return config.get_oneway_ref("num_rounds") * times // parts


def _dense(config, share: int) -> dict:
    """Spends one of `share` parts of the rounds on a dense model before the method."""
    dense = max(1, config.num_rounds // share)
    config.num_rounds = max(1, config.num_rounds - dense)
    return {"name": "fedavg", "num_rounds": dense}


_SENSITIVITY = {"name": "sensitivity", "num_rounds": 1, "epochs": 10}
_HETERO = Brought(
    first_stage=_SENSITIVITY,
    arguments=lambda config: {"densities": _tiers(config)},
    budgets=lambda config: tuple(zip(_tiers(config), (0.3, 0.3, 0.4), strict=True)),
)
_ADJUSTED = Brought(  # as long as in FedRTS's paper, until round 300 of 500
    arguments=lambda config: {"adjust_until": _until(config, 3, 5, 1)}
)
_HALF_WIDTH = Brought(budgets=lambda config: ((0.5, 1.0),))
BROUGHT = {
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
        arguments=lambda config: {"adjust_until": _until(config, 1, 2, 2)}
    ),
    "fedrts": _ADJUSTED,
    "fedtiny": _ADJUSTED,
    "fedmef": _ADJUSTED,
    "prunefl": Brought(
        first_stage=_ONE_CLIENT | _BY_DENSITY | {"name": "prunefl_initial"},
        arguments=_BY_DENSITY,
    ),
    "magnitude": Brought(first_stage=partial(_dense, share=2)),
    "pqsu": Brought(first_stage=partial(_dense, share=5)),
    "heterofl": _HALF_WIDTH,
    "fedrolex": _HALF_WIDTH,
    "fiarse": Brought(budgets=lambda config: ((0.25, 1.0),)),
    "fjord": Brought(
        arguments={"widths": (0.4, 0.45, 0.5, 0.55, 0.6), "draw": "round"}
    ),
}


def choose(config, name: str, density: float | None = None):
    """Turns a configuration into one of a method as its paper runs it.

    The method brings its first stage, the arguments that follow from the rest of the
    configuration, and the budgets of its clients. A first stage and budgets that it
    does not bring are removed, and other budgets are replaced. What else the
    configuration has set stays where the method takes it; so does everything if the
    method stays the same. 'snip', 'grasp' and 'ssfl' stand for their mask and then
    FedAvg within it; 'spdst' leaves such a mask as it is.

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
      >>> config.first_stage.name, config.density
      ('sensitivity', 0.05)
    """
    brought = BROUGHT.get(name, Brought())
    method = brought.method or name
    stage = config.first_stage.get("name")
    changes = config.algorithm.name != method or (brought.method and stage != name)
    config.density = config.density if density is None else density
    if changes:
        _bring(config, method, brought)
    if density is not None:
        for section in (config.first_stage, config.algorithm):
            for key in ("density", "max_density"):
                if key in section:
                    del section[key]
    if not defaults.densities(defaults.filled(config)):
        config.density = None
    return config


def _bring(config, method: str, brought: Brought) -> None:
    defaults.rename(config, "algorithm", method)
    given: Any = brought.first_stage
    given = given(config) if callable(given) else given
    if not given:
        config.first_stage = {}
    elif config.first_stage.get("name") != given["name"]:
        defaults.rename(config, "first_stage", given["name"])
        config.first_stage.update(given)
        patterns = config.algorithm.get("prunable")
        if patterns and "prunable" in arguments("first_stage", given["name"]):
            config.first_stage.prunable = patterns
    given = brought.arguments
    config.algorithm.update(given(config) if callable(given) else given)
    config.budgets = brought.budgets(config)
