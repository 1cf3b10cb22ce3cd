"""SSFL on CIFAR-10 (TMLR 2026): ResNet-18 with group norm, LDA 0.3, T = 999.

python launch.py --config=configs/ssfl_cifar10.py[:METHOD][,mini]

METHOD is ssfl (default), a mask from one batch of all clients and then `spdst` within
it; random, the same with a random mask; or fedavg. As printed for d = 0.5, five runs:
SSFL 88.29, FedAvg 86.04. The paper says 1000 rounds, its code runs 999. Its partition
takes classes for clients in turn, this one client after client. Other rows:
`--config.density=0.05`. Not measured: a round takes minutes on 2 CPU cores.

`mini` is a small version of the same pipeline on images that ship with the package: 20
clients, a small CNN, 60 rounds of two epochs. It is not a row of the paper. Measured
with seed 0: 46.4 % (chance 10 %) in 39 s on 2 CPU cores with compilation (2026-11-23).
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets import methods
from sparsefl_jax.presets.options import parse_options

METHODS = ("ssfl", "random", "fedavg")


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, METHODS, ("mini",))
    config = default_config()
    method = next((name for name in METHODS if name in options), "ssfl")
    config.dataset, config.augment = "cifar10", ("crop", "flip")
    config.model = {"name": "resnet18", "dtype": "float32", "norm": "group"}
    config.model.init = "torch"
    config.num_clients, config.cohort_size = 100, 10
    config.partition = {"name": "lda", "alpha": 0.3}
    config.optimizer.weight_decay, config.optimizer.clip = 5e-4, 10.0
    config.lr_decay, config.final_learning_rate = 0.998, 1e-8
    config.num_rounds, config.epochs, config.batch_size = 999, 5, 16
    if "mini" in options:
        config.dataset, config.augment = "cifar10_sample", ("flip",)
        config.model = {"name": "small_cnn", "dtype": "float32"}
        config.num_clients, config.num_rounds, config.epochs = 20, 60, 2
    else:  # its rounds count from 1: round t has the rate 0.1 * 0.998^(t + 1)
        config.optimizer.learning_rate = 0.1 * 0.998
    if method != "fedavg":
        config.density = 0.5
        methods.choose(config, "pdst" if method == "random" else "ssfl")
    return config
