"""FedProx on the embedded CIFAR-10 sample: a baseline that is not from a paper.

python launch.py --config=configs/fedprox_cifar10.py[:mini]

20 clients with LDA 0.1, 10 a round, mu = 0.01, a small CNN; a minute on 2 CPU cores.
`--config.algorithm.mu=0.0` is FedAvg. `mini` runs 20 rounds instead
of 40. It gave 22.8 % (chance 10 %) with seed 0 in 26 s of processor time (2026-11-23).
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets.options import parse_options


def get_config(arg: str = ""):
    """Returns the configuration of an `arg`, "mini" or nothing."""
    options = parse_options(arg, ("mini",))
    config = default_config()
    config.dataset = "cifar10_sample"
    config.augment = ("flip",)
    config.num_clients = 20
    config.partition = {"name": "lda", "alpha": 0.1}
    config.algorithm = {"name": "fedprox", "mu": 0.01}
    config.optimizer.learning_rate = 0.05
    config.num_rounds, config.batch_size = 20 if options else 40, 16
    return config
