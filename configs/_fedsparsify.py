"""What FedSparsify's experiments share (2022, Tables 1, 2); no configuration."""

from configs import _options
from sparsefl_jax.runs.config.defaults import complete, default_config

METHODS = ("global", "local", "fedavg", "fedprox", "random", "snip", "grasp", "prunefl")
CLIENTS = ("clients10", "clients100")
PARTITIONS = ("iid", "noniid")
ONE_CLIENT = {"num_rounds": 1, "cohort_size": 1, "epochs": 1}


def parse(arg: str) -> set[str]:
    """The options of a configuration's argument, each known."""
    return _options.parse(arg, METHODS, CLIENTS, PARTITIONS)


def base(options: set[str], *, classes: int, without_norm=("*",)):
    """10 of 10 or of 100 clients, 200 rounds of 4 epochs, judged on the test set.

    Args:
      options: as `parse` gives them.
      classes: how many each client has in the non-IID split.
      without_norm: globs of the leaves but normalisation's, which SNIP prunes.
    """
    config = default_config()
    config.num_clients = 100 if "clients100" in options else 10
    config.cohort_size = 10
    config.partition = {"name": "shards", "k": classes}
    if "iid" in options:
        config.partition = {"name": "iid"}
    config.num_rounds, config.epochs, config.batch_size = 200, 4, 32
    config.eval_every = 1
    method = next((name for name in METHODS if name in options), "global")
    if method not in ("fedavg", "fedprox"):
        config.density = 0.1
    _ALGORITHMS[method](config)
    if method == "snip":
        config.first_stage.prunable = config.algorithm.prunable = without_norm
    return config


def finish(config):
    """All defaults."""
    return complete(config)


def _progressive(config, name="fedsparsify_global", **settings) -> None:
    rounds = config.get_oneway_ref("num_rounds")
    config.algorithm = {"name": name, "rounds": rounds} | settings
    config.algorithm.density = config.get_oneway_ref("density")


def _fedavg(config) -> None:
    config.algorithm = {"name": "fedavg", "keep_optimizer": True}


def _fedprox(config) -> None:
    config.algorithm = {"name": "fedprox", "mu": 0.001}


def _at_start(config, name: str, prunable=("*",), **settings) -> None:
    """A mask from one random client before round 1, frozen from then on.

    Its released code scores the batch without dropout and with the network's own
    statistics.
    """
    config.first_stage = ONE_CLIENT | {"name": name, "prunable": prunable} | settings
    config.first_stage.density = config.get_oneway_ref("density")
    config.algorithm = {"name": "spdst", "keep_optimizer": True, "prunable": prunable}


def _prunefl(config) -> None:
    """The density is what may be kept: time that is all constant decides nothing."""
    config.first_stage = ONE_CLIENT | {"name": "prunefl_initial"}
    config.algorithm = {"name": "prunefl", "half_life": 1000.0}
    for stage in (config.first_stage, config.algorithm):
        stage.constant_time = 1e9
        stage.max_density = config.get_oneway_ref("density")


_ALGORITHMS = {
    "global": _progressive,
    "local": lambda config: _progressive(config, "fedsparsify_local"),
    "random": lambda config: _progressive(config, criterion="random"),
    "fedavg": _fedavg,
    "fedprox": _fedprox,
    "snip": lambda config: _at_start(config, "snip", mode="inference"),
    "grasp": lambda config: _at_start(
        config, "grasp", mode="inference", temperature=1.0, halves=False
    ),
    "prunefl": _prunefl,
}
