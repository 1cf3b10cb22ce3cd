"""Shared by the experiments of FedSparsify (2022, Tables 1, 2)."""

from sparsefl_jax.presets.options import parse_options
from sparsefl_jax.runs.config.defaults import default_config

METHODS = ("global", "local", "fedavg", "fedprox", "random", "snip", "grasp", "prunefl")
CLIENTS = ("clients10", "clients100")
PARTITIONS = ("iid", "noniid")
ONE_CLIENT = {"num_rounds": 1, "cohort_size": 1, "epochs": 1}


def parse(arg: str) -> set[str]:
    """Returns the options of a configuration's argument."""
    return parse_options(arg, METHODS, CLIENTS, PARTITIONS, ("mini",))


def base(options: set[str], *, classes: int, without_norm=("*",)):
    """Returns a configuration with cohorts of 10 and 200 rounds of 4 epochs.

    `mini` runs 20 rounds, with batches of 16.

    Args:
      options: as `parse` returns them.
      classes: the classes of each client in the non-IID split.
      without_norm: globs of all leaves except normalisation's, which SNIP prunes.
    """
    config = default_config()
    config.num_clients = 100 if "clients100" in options else 10
    config.cohort_size = 10
    config.partition = {"name": "shards", "k": classes}
    if "iid" in options:
        config.partition = {"name": "iid"}
    config.num_rounds, config.epochs, config.batch_size = 200, 4, 32
    config.eval_every = 1
    if "mini" in options:
        config.num_rounds, config.batch_size = 20, 16
    method = next((name for name in METHODS if name in options), "global")
    if method not in ("fedavg", "fedprox"):
        config.density = 0.1
    _ALGORITHMS[method](config)
    if method == "snip":
        config.first_stage.prunable = config.algorithm.prunable = without_norm
    return config


def _progressive(config, name="fedsparsify_global", **settings) -> None:
    rounds = config.get_oneway_ref("num_rounds")
    config.algorithm = {"name": name, "rounds": rounds} | settings
    config.algorithm.density = config.get_oneway_ref("density")


def _fedavg(config) -> None:
    config.algorithm = {"name": "fedavg", "keep_optimizer": True}


def _fedprox(config) -> None:
    config.algorithm = {"name": "fedprox", "mu": 0.001}


def _at_start(config, name: str, prunable=("*",), **settings) -> None:
    """Takes a mask from one random client before round 1, and freezes it.

    FedSparsify's released code scores the batch without dropout and with the running
    statistics of the network.
    """
    config.first_stage = ONE_CLIENT | {"name": name, "prunable": prunable} | settings
    config.first_stage.density = config.get_oneway_ref("density")
    config.algorithm = {"name": "spdst", "keep_optimizer": True, "prunable": prunable}


def _prunefl(config) -> None:
    """Limits the mask by the density alone, as a constant time decides nothing."""
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
