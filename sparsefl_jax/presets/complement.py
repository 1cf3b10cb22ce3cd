"""Shared by the experiments of Complement Sparsification (AAAI 2023)."""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets import methods
from sparsefl_jax.presets.options import parse_options

METHODS = ("cs", "fedavg", "prunefl", "pqsu")


def parse(arg: str, *exclusive: tuple[str, ...]) -> set[str]:
    """Returns the options of an argument, with further `exclusive` groups of them."""
    return parse_options(arg, METHODS, *exclusive, ("mini",))


def base(options: set[str], *, classes: int, rounds: int = 500):
    """Returns a configuration with a client per user, Adam, and five epochs.

    A fifth of each client's samples is held out.

    Args:
      options: as `parse` returns them.
      classes: the outputs of the network.
      rounds: T, which includes a first stage that trains a dense model; `mini` runs 20.
    """
    if "mini" in options:
        rounds = 20
    config = default_config()
    config.num_clients, config.cohort_size = 0, 10
    config.partition = {"name": "natural", "min_samples": 2}
    config.test_split, config.normalize = "within", False
    config.num_rounds, config.epochs, config.batch_size = rounds, 5, 64
    config.optimizer.name, config.optimizer.learning_rate = "adam", 0.01
    method = next((name for name in METHODS if name in options), "cs")
    if method in ("cs", "prunefl"):
        config.density = 0.5
    methods.choose(config, "complement" if method == "cs" else method)
    if method == "prunefl":  # as in its code for FEMNIST, whose rate of 0.25 diverges
        config.optimizer.name, config.optimizer.learning_rate = "sgd", 0.1
        config.epochs, config.batch_size = 1, 20
        config.first_stage.start_accuracy = 1.5 / classes
    if method == "pqsu":  # 0.7 of the filters leave half of IC's parameters
        config.algorithm.update(density=0.7, quantize="up")
    return config
