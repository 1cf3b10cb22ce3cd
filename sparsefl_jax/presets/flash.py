"""Shared by the experiments of FLASH (TMLR 2023, Table 1)."""

from sparsefl_jax.presets.options import parse_options
from sparsefl_jax.runs.config.defaults import complete, default_config

METHODS = (
    *("fedavg", "nst", "pdst", "spdst", "jmwst", "hetero_spdst", "hetero_jmwst"),
    *("fedspa", "fedspa_dst"),
)
TWO_STAGES = ("spdst", "jmwst", "hetero_spdst", "hetero_jmwst")


def parse(arg: str, extra=()) -> set[str]:
    """Returns the options of a configuration's argument."""
    return parse_options(arg, METHODS, ("paper", "release"), extra)


def base(options: set[str]):
    """Returns a configuration with 100 clients, LDA 0.1, 10 a round, one epoch.

    SGD's rate decays from 0.1 to 0.001.
    """
    config = default_config()
    method = next((name for name in METHODS if name in options), "spdst")
    release = "release" in options
    config.num_clients = 100
    config.partition = {"name": "lda", "alpha": 0.1}
    config.final_learning_rate = 0.001
    if release:  # its exponent is round / 1000, set after the round
        config.lr_horizon, config.lr_delay = 1000, 1
    config.algorithm = {"name": method}
    if method == "fedspa_dst":
        until = config.get_oneway_ref("num_rounds")
        dynamic = {"mask_update": "dst", "adjust_until": until}
        config.algorithm = {"name": "fedspa"} | dynamic
    if method == "fedavg":
        return config
    hetero = method.startswith("hetero")
    config.density = 0.2 if hetero else 0.1
    if hetero:
        config.algorithm.densities = (0.1, 0.15, 0.2)
        if method == "hetero_spdst" and release:
            config.algorithm.submask = "magnitude"
        config.budgets = ((0.1, 0.3), (0.15, 0.3), (0.2, 0.4))
    elif method != "spdst":  # the first stage's mask decides spdst's density
        config.algorithm.density = config.get_oneway_ref("density")
    if method in TWO_STAGES:
        config.first_stage = {
            "name": "sensitivity",
            "density": config.get_oneway_ref("density"),
            "num_rounds": 1,
            "cohort_size": 10,
            "epochs": 10,
        }
    return config


def finish(config, patterns):
    """Sets the leaves that can be pruned in both stages, and fills in all defaults."""
    if config.algorithm.name != "fedavg":
        config.algorithm.prunable = patterns
    if config.first_stage:
        config.first_stage.prunable = patterns
    return complete(config)
