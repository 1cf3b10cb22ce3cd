"""Shared by the experiments of Complement Sparsification (AAAI 2023)."""

from sparsefl_jax.presets.options import parse_options
from sparsefl_jax.runs.config.defaults import default_config

METHODS = ("cs", "fedavg", "prunefl", "pqsu")
MINI_ROUNDS = 20


def parse(arg: str, *exclusive: tuple[str, ...]) -> set[str]:
    """Returns the options of an argument, with further `exclusive` groups of them."""
    return parse_options(arg, METHODS, *exclusive, ("mini",))


def base(options: set[str], *, classes: int, rounds: int = 500):
    """Returns a configuration with a client per user, Adam, and five epochs.

    A fifth of each client's samples is held out.

    Args:
      options: as `parse` returns them.
      classes: the outputs of the network.
      rounds: T, which includes a first stage that trains a dense model; `mini` runs
        `MINI_ROUNDS`.
    """
    if "mini" in options:
        rounds = MINI_ROUNDS
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


def _complement(config) -> None:
    config.algorithm = {"name": "complement"}
    config.algorithm.density = config.get_oneway_ref("density")


def _fedavg(config) -> None:
    config.algorithm = {"name": "fedavg"}


def _prunefl(config) -> None:
    """Trains by plain SGD on batches of 20, as in PruneFL's code for FEMNIST.

    That code has a rate of 0.25, at which the first client's training of IC diverges.
    The density alone limits the mask, because a constant time decides nothing.
    """
    config.optimizer.name, config.optimizer.learning_rate = "sgd", 0.1
    config.epochs, config.batch_size = 1, 20
    config.first_stage = {"name": "prunefl_initial", "num_rounds": 1, "cohort_size": 1}
    config.algorithm = {"name": "prunefl"}
    for stage in (config.first_stage, config.algorithm):
        stage.constant_time = 1e9
        stage.max_density = config.get_oneway_ref("density")


def _pqsu(config) -> None:
    """Spends a fifth of the rounds on the dense model that is then pruned.

    0.7 of the filters leave half of IC's parameters, because removing an output also
    removes the inputs that read it.
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
