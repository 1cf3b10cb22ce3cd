"""What Complement Sparsification's experiments share (AAAI 2023); no configuration."""

from configs import _options
from sparsefl_jax.runs.config.defaults import complete, default_config

METHODS = ("cs", "fedavg", "prunefl", "pqsu")
PARTICIPATION = ("all", "users10")


def parse(arg: str) -> set[str]:
    """The options of a configuration's argument, each known."""
    return _options.parse(arg, METHODS, PARTICIPATION)


def base(options: set[str], *, classes: int, rounds: int = 500):
    """Each user a client with a fifth of its samples held out; Adam, five epochs.

    Args:
      options: as `parse` gives them.
      classes: outputs of the network.
      rounds: T, of both stages together where the first trains a dense model.
    """
    config = default_config()
    config.num_clients, config.cohort_size = 0, 10
    config.partition = {"name": "natural", "min_samples": 2}
    config.test_split, config.normalize = "within", False
    config.num_rounds, config.epochs, config.batch_size = rounds, 5, 64
    config.optimizer.name, config.optimizer.learning_rate = "adam", 0.01
    method = next((name for name in METHODS if name in options), "cs")
    if method in ("cs", "prunefl"):
        config.density = 0.5
    _ALGORITHMS[method](config)
    if method == "prunefl":
        config.first_stage.start_accuracy = 1.5 / classes
    return config


def finish(config):
    """All defaults."""
    return complete(config)


def _complement(config) -> None:
    config.algorithm = {"name": "complement"}
    config.algorithm.density = config.get_oneway_ref("density")


def _fedavg(config) -> None:
    config.algorithm = {"name": "fedavg"}


def _prunefl(config) -> None:
    """Plain SGD on batches of 20, as in PruneFL's code for FEMNIST.

    That has a rate of 0.25, at which the first client's training of IC diverges. The
    density is what may be kept: time that is all constant decides nothing.
    """
    config.optimizer.name, config.optimizer.learning_rate = "sgd", 0.1
    config.epochs, config.batch_size = 1, 20
    config.first_stage = {"name": "prunefl_initial", "num_rounds": 1, "cohort_size": 1}
    config.algorithm = {"name": "prunefl"}
    for stage in (config.first_stage, config.algorithm):
        stage.constant_time = 1e9
        stage.max_density = config.get_oneway_ref("density")


def _pqsu(config) -> None:
    """A fifth of the rounds trains the dense model that is then pruned.

    0.7 of the filters leave half of IC's parameters, as inputs go with outputs.
    """
    dense = config.num_rounds // 5
    config.first_stage = {"name": "fedavg", "num_rounds": dense}
    config.num_rounds -= dense
    config.algorithm = {"name": "pqsu", "density": 0.7, "quantize": "up"}


_ALGORITHMS = {
    "cs": _complement,
    "fedavg": _fedavg,
    "prunefl": _prunefl,
    "pqsu": _pqsu,
}
