"""Shared by the experiments of SpaFL (NeurIPS 2024, Tables 2, 3, 5)."""

from sparsefl_jax.presets.options import parse_options
from sparsefl_jax.runs.config.defaults import complete, default_config

METHODS = ("spafl", "local", "fedavg", "fedpm", "heterofl", "fjord")
VARIANTS = {"without13": "spafl", "thresholds_only": "spafl", "initial": "fedpm"}
PRESETS = ("paper", "release")
OWN = ("spafl", "local_only")  # the official code has no other method


def parse(arg: str) -> set[str]:
    """Returns the options of an argument; refuses a variant of another method."""
    options = parse_options(arg, METHODS, tuple(VARIANTS), PRESETS, ("mini",))
    for variant in options & VARIANTS.keys():
        if VARIANTS[variant] != _method(options):
            raise ValueError(f"option {variant!r}, expected with {VARIANTS[variant]}")
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
    if method in ("spafl", "local"):
        config.optimizer.momentum = 0.9
        config.algorithm = _thresholds(options, method, release, alpha, prunable)
    else:
        _BASELINES[method](config)
    if "initial" in options:
        config.algorithm["weights"] = "initial"
    return config


def _thresholds(options, method, release, alpha, prunable) -> dict:
    settings = {"clamp": True} if "release" not in options else dict(release)
    settings |= {"alpha": alpha, "prunable": prunable}
    if method == "local":
        return {"name": "local_only"} | settings
    settings["extract"] = "without13" not in options
    settings["thresholds_only"] = "thresholds_only" in options
    return {"name": "spafl"} | settings


def _fedavg(config) -> None:
    config.optimizer.momentum = 0.9
    config.algorithm = {"name": "fedavg", "weighting": "uniform"}


def _fedpm(config) -> None:
    config.optimizer.name = "adam"
    config.algorithm = {"name": "fedpm"}


def _heterofl(config) -> None:
    """Sets half the width for all; momentum, decay and clipping of HeteroFL's paper."""
    _sliced(config)
    config.budgets = ((0.5, 1.0),)
    config.algorithm = {"name": "heterofl"}


def _fjord(config) -> None:
    """Sets a width from U(0.4, 0.6) per client and round; HeteroFL's mean, optimizer.

    The reproduction has a row for FjORD's own: by samples, no momentum, no clipping.
    """
    _sliced(config)
    widths = (0.4, 0.45, 0.5, 0.55, 0.6)
    own = {"widths": widths, "draw": "round", "weighting": "uniform"}
    config.algorithm = {"name": "fjord"} | own


def _sliced(config) -> None:
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay, config.optimizer.clip = 5e-4, 1.0


_BASELINES = {
    "fedavg": _fedavg,
    "fedpm": _fedpm,
    "heterofl": _heterofl,
    "fjord": _fjord,
}


def finish(config):
    """Adds all defaults, and static BatchNorm to networks that HeteroFL trains."""
    config = complete(config)
    if config.algorithm.name == "heterofl" and config.model.get("norm") == "batch":
        config.model.norm = "static"
    return config
