"""What a method's paper sets beside it: first stage, arguments, budgets of clients.

A study that names methods wants each of them as its paper runs it.
"""

from collections.abc import Callable
from functools import partial

from sparsefl_jax.config import defaults
from sparsefl_jax.config.fields import arguments

_ONE_CLIENT = {"num_rounds": 1, "cohort_size": 1, "epochs": 1}
# PruneFL's rule with a constant time: the density alone limits the mask.
_BY_DENSITY = {"constant_time": 1e9}


def _dense(config, share: int) -> dict:
    """Spends one of `share` parts of the rounds on a dense model before the method."""
    dense = max(1, config.num_rounds // share)
    config.num_rounds = max(1, config.num_rounds - dense)
    return {"first_stage": {"name": "fedavg", "num_rounds": dense}}


def _sensitivity(config) -> dict:
    return {"first_stage": {"name": "sensitivity", "num_rounds": 1, "epochs": 10}}


def _hetero(config) -> dict:
    """Brings FLASH's three densities, of which the largest is the configuration's."""
    top = config.density or 0.2
    tiers = (0.5 * top, 0.75 * top, top)
    budgets = tuple(zip(tiers, (0.3, 0.3, 0.4), strict=True))
    return _sensitivity(config) | {
        "algorithm": {"densities": tiers},
        "budgets": budgets,
    }


MASKS = ("snip", "grasp", "ssfl")  # stand for their mask, and FedAvg within it
BROUGHT: dict[str, Callable[..., dict]] = {
    "spdst": _sensitivity,
    "jmwst": _sensitivity,
    "hetero_spdst": _hetero,
    "hetero_jmwst": _hetero,
    "snip": lambda config: {"first_stage": _ONE_CLIENT | {"name": "snip"}},
    "grasp": lambda config: {"first_stage": _ONE_CLIENT | {"name": "grasp"}},
    "ssfl": lambda config: {  # all clients score the weights
        "first_stage": _ONE_CLIENT
        | {"name": "ssfl", "cohort_size": config.get_oneway_ref("num_clients")}
    },
    "prunefl": lambda config: {
        "first_stage": _ONE_CLIENT | _BY_DENSITY | {"name": "prunefl_initial"},
        "algorithm": _BY_DENSITY,
    },
    "magnitude": partial(_dense, share=2),
    "pqsu": partial(_dense, share=5),
    "heterofl": lambda config: {"budgets": ((0.5, 1.0),)},
    "fedrolex": lambda config: {"budgets": ((0.5, 1.0),)},
    "fiarse": lambda config: {"budgets": ((0.25, 1.0),)},
    "fjord": lambda config: {
        "algorithm": {"widths": (0.4, 0.45, 0.5, 0.55, 0.6), "draw": "round"}
    },
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
    method, stage = "spdst" if name in MASKS else name, config.first_stage.get("name")
    config.density = config.density if density is None else density
    if config.algorithm.name != method or (name in MASKS and stage != name):
        defaults.rename(config, "algorithm", method)
        brought = BROUGHT.get(name, lambda config: {})(config)
        first = brought.get("first_stage")
        if first is None:
            config.first_stage = {}
        elif stage != first["name"]:
            defaults.rename(config, "first_stage", first["name"])
            config.first_stage.update(first)
            patterns = config.algorithm.get("prunable")
            if patterns and "prunable" in arguments("first_stage", first["name"]):
                config.first_stage.prunable = patterns
        config.algorithm.update(brought.get("algorithm", {}))
        config.budgets = brought.get("budgets", ())
    if density is not None:
        for section in (config.first_stage, config.algorithm):
            for key in ("density", "max_density"):
                if key in section:
                    del section[key]
    if not defaults.densities(defaults.fill_in(config)):
        config.density = None
    return config
