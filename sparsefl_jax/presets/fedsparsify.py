"""Shared by the experiments of FedSparsify (2022, Tables 1, 2)."""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets import methods
from sparsefl_jax.presets.options import parse_options

_METHODS = {  # what each is called here, and what its two stages have of their own
    "global": ("fedsparsify_global", {}, {}),
    "local": ("fedsparsify_local", {}, {}),
    "fedavg": ("fedavg", {"keep_optimizer": True}, {}),
    "fedprox": ("fedprox", {"mu": 0.001}, {}),
    "random": ("fedsparsify_global", {"criterion": "random"}, {}),
    # The released code scores the batch without dropout and with running statistics.
    "snip": ("snip", {"keep_optimizer": True}, {"mode": "inference"}),
    "grasp": (
        "grasp",
        {"keep_optimizer": True, "prunable": ("*",)},
        {"mode": "inference", "temperature": 1.0, "halves": False, "prunable": ("*",)},
    ),
    "prunefl": ("prunefl", {"half_life": 1000.0}, {}),
}
METHODS = tuple(_METHODS)
CLIENTS = ("clients10", "clients100")
PARTITIONS = ("iid", "noniid")


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
    name, main, first = _METHODS[method]
    methods.choose(config, name)
    config.algorithm.update(main)
    config.first_stage.update(first)
    if method == "snip":
        config.first_stage.prunable = config.algorithm.prunable = without_norm
    return config
