"""What SpaFL's experiments share (NeurIPS 2024, Tables 2, 3, 5); no configuration."""

from configs import _options
from sparsefl_jax.runs.config.defaults import complete, default_config

METHODS = ("spafl", "local", "fedavg", "fedpm", "heterofl", "fjord")
VARIANTS = {"without13": "spafl", "thresholds_only": "spafl", "initial": "fedpm"}
PRESETS = ("paper", "release")
OWN = ("spafl", "local_only")  # SpaFL's clients, the only ones of the official code


def parse(arg: str) -> set[str]:
    """The options of a configuration's argument: all known, a variant its method's."""
    options = _options.parse(arg, METHODS, tuple(VARIANTS), PRESETS)
    for variant in options & VARIANTS.keys():
        if VARIANTS[variant] != _method(options):
            raise ValueError(f"option {variant!r}, expected with {VARIANTS[variant]}")
    return options


def _method(options: set[str]) -> str:
    return next((name for name in METHODS if name in options), "spafl")


def base(options: set[str], *, rates: dict, release: dict, alpha: float, prunable):
    """100 clients, 10 a round, judged by the mean over clients after every round.

    Args:
      options: as `parse` gives them.
      rates: the learning rate of every method, Table 5.
      release: the arguments of `spafl` by which the official code differs.
      alpha: weight of the regulariser.
      prunable: globs of the kernels that have thresholds.
    """
    config = default_config()
    config.num_clients, config.cohort_size = 100, 10
    config.eval_every, config.metric = 1, "clients"
    method = _method(options)
    config.optimizer.learning_rate = rates[method]
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
        settings.pop("divisor", None)
        return {"name": "local_only"} | settings
    settings["extract"] = "without13" not in options
    settings["thresholds_only"] = "thresholds_only" in options
    if options & {"without13", "thresholds_only"}:
        settings.pop("divisor", None)
    return {"name": "spafl"} | settings


def _fedavg(config) -> None:
    config.optimizer.momentum = 0.9
    config.algorithm = {"name": "fedavg", "weighting": "uniform"}


def _fedpm(config) -> None:
    config.optimizer.name = "adam"
    config.algorithm = {"name": "fedpm"}


def _heterofl(config) -> None:
    """Everyone has half the width; momentum, decay and clipping of its own paper."""
    _sliced(config)
    config.budgets = ((0.5, 1.0),)
    config.algorithm = {"name": "heterofl"}


def _fjord(config) -> None:
    """A width from U(0.4, 0.6) by client and round; mean and optimizer of HeteroFL.

    With its own (by samples; no momentum, no clipping) it ends 1.5 points below the
    paper on Fashion-MNIST; with momentum but no clipping it diverges there.
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
    """All defaults, and static BatchNorm where HeteroFL meets a network with any."""
    config = complete(config)
    if config.algorithm.name == "heterofl" and config.model.get("norm") == "batch":
        config.model.norm = "static"
    return config
