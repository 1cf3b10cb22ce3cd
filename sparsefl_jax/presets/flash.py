"""Shared by the experiments of FLASH (TMLR 2023, Table 1)."""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets import methods, mini
from sparsefl_jax.presets.options import parse_options

METHODS = (
    *("fedavg", "nst", "pdst", "spdst", "jmwst", "hetero_spdst", "hetero_jmwst"),
    *("fedspa", "fedspa_dst"),
)
TWO_STAGES = ("spdst", "jmwst", "hetero_spdst", "hetero_jmwst")


def parse(arg: str, extra=()) -> set[str]:
    """Returns the options of a configuration's argument."""
    others = [name for name in METHODS if name not in TWO_STAGES]
    without = ("no_stage1", *others)  # there is none to leave out
    return parse_options(arg, METHODS, ("paper", "release"), without, extra)


def base(options: set[str], cohort_size: int = 10):
    """Returns a configuration with 100 clients, LDA 0.1, one epoch a round.

    As many clients take part in stage 1, of ten epochs, as in a round.

    SGD's rate decays from 0.1 to 0.001. With `no_stage1` one client spends an epoch on
    a first stage that learns nothing (Table 6): the mask that it leaves is random, and
    equally dense in every layer.
    """
    config = default_config()
    method = next((name for name in METHODS if name in options), "spdst")
    release = "release" in options
    config.num_clients, config.cohort_size = 100, cohort_size
    config.partition = {"name": "lda", "alpha": 0.1}
    config.final_learning_rate = 0.001
    if release:  # its exponent is round / 1000, set after the round
        config.lr_horizon, config.lr_delay = 1000, 1
    if method == "fedavg":
        return config
    hetero = method.startswith("hetero")
    config.density = 0.2 if hetero else 0.1
    methods.choose(config, "fedspa" if method == "fedspa_dst" else method)
    if method == "fedspa_dst":
        config.algorithm.mask_update = "dst"
    if hetero:
        config.algorithm.densities = (0.1, 0.15, 0.2)
        if method == "hetero_spdst" and release:
            config.algorithm.submask = "magnitude"
        config.budgets = ((0.1, 0.3), (0.15, 0.3), (0.2, 0.4))
    if method in TWO_STAGES:
        config.first_stage.cohort_size = cohort_size
        if "no_stage1" in options:
            config.first_stage.update(cohort_size=1, epochs=1, prune_rate=0.0)
    return config


def cifar10(config, options: set[str]) -> None:
    """Sets CIFAR-10, ResNet-18 and 600 rounds, or what `mini` has instead."""
    config.dataset, config.augment = "cifar10", ("crop", "flip")
    config.model.name, config.num_rounds = "resnet18", 600
    if "mini" in options:
        mini.cifar10(config)


def finish(config, patterns):
    """Sets the leaves that can be pruned in both stages."""
    if config.algorithm.name != "fedavg":
        config.algorithm.prunable = patterns
    if config.first_stage:
        config.first_stage.prunable = patterns
    return config
