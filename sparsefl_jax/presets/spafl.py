"""Shared by the experiments of SpaFL (NeurIPS 2024, Tables 2, 3, 5)."""

from sparsefl_jax.config import default_config
from sparsefl_jax.config.fields import arguments
from sparsefl_jax.core.check import UserError
from sparsefl_jax.presets import methods
from sparsefl_jax.presets.options import parse_options

METHODS = ("spafl", "local", "fedavg", "fedpm", "heterofl", "fjord")
VARIANTS = {"without13": "spafl", "thresholds_only": "spafl", "initial": "fedpm"}
PRESETS = ("paper", "release")
OWN = ("spafl", "local_only")  # the official code has no other method


def parse(arg: str) -> set[str]:
    """Returns the options of an argument; refuses a variant of another method."""
    options = parse_options(arg, METHODS, tuple(VARIANTS), PRESETS, ("mini",))
    for variant in options & VARIANTS.keys():
        if VARIANTS[variant] != _method(options):
            raise UserError(f"option {variant!r}, expected with {VARIANTS[variant]}")
    return options


def _method(options: set[str]) -> str:
    return next((name for name in METHODS if name in options), "spafl")


def base(
    options: set[str],
    *,
    rate: float,
    rates: dict,
    release: dict,
    alpha: float,
    prunable,
):
    """Returns the shared part: 100 clients, 10 a round, each evaluated every round.

    Args:
      options: as `parse` gives them.
      rate: the learning rate, Table 5.
      rates: those of methods with another one.
      release: the arguments of `spafl` that give the official code.
      alpha: weight of the regulariser.
      prunable: globs of the kernels that have thresholds.
    """
    config = default_config()
    config.num_clients, config.cohort_size = 100, 10
    config.eval_every, config.metric = 1, "clients"
    method = _method(options)
    config.optimizer.learning_rate = rates.get(method, rate)
    if method == "fedpm":
        config.optimizer.name = "adam"
    elif method not in ("heterofl", "fjord"):  # not stated; see spafl_optimizers
        config.optimizer.momentum = 0.9
    if method in ("spafl", "local"):
        config.algorithm = release if "release" in options else {"clamp": True}
        config.algorithm.name = "spafl" if method == "spafl" else "local_only"
        config.algorithm.alpha, config.algorithm.prunable = alpha, prunable
    else:
        methods.choose(config, method)  # at half the width, or 0.4 to 0.6 for fjord
    if method == "spafl":
        config.algorithm.extract = "without13" not in options
        config.algorithm.thresholds_only = "thresholds_only" in options
    if method in ("fedavg", "fjord"):  # FjORD's own mean is by samples
        config.algorithm.weighting = "uniform"
    if "initial" in options:
        config.algorithm["weights"] = "initial"
    return config


def finish(config):
    """Gives networks that HeteroFL trains static BatchNorm."""
    taken = arguments("model", config.model.name)
    if config.algorithm.name == "heterofl" and "norm" in taken:
        config.model.norm = "static"
    return config
