"""FedRTS on CIFAR-10 (NeurIPS 2025, Table 4): ResNet-18, Dirichlet 0.5, T = 500.

python launch.py --config=configs/fedrts_cifar10.py[:METHOD][,mini]

METHOD is fedrts (default), fedtiny, fedmef, feddst or fedavg. The paper's density of
0.2 also counts biases, normalisation and the dense last layer. `--config.density`
counts only the prunable weights, of which it is 2220062 / 11159232. As printed for 0.2,
five runs: FedAvg 77.24, FedDST 68.31, FedRTS 73.41. The paper names 11.19 M parameters;
this network has 11.17 M. The released framework's own `resnet18`, of 175258 parameters,
is `--config.model.base=16 --config.model.stages=3 --config.density=0.1918` (33281 /
173488). Not measured: a round takes minutes on 2 CPU cores.

`mini` is a small version of the same pipeline on images that ship with the package: 20
clients, a small CNN, 60 rounds of two epochs. It is not a row of the paper. Measured
with seed 0: 40.4 % (chance 10 %) in 49 s on 2 CPU cores with compilation (2026-11-23).
fedmef, whose layers save half of their inputs, gave 42.2 % in 62 s (also with seed 0,
commit bb93a0f, 2026-11-25), and fedtiny 41.8 % in 120 s of processor time (commit
cb258cc, 2026-11-25).
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets import methods
from sparsefl_jax.presets.options import parse_options

METHODS = ("fedrts", "fedtiny", "fedmef", "feddst", "fedavg")


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, METHODS, ("mini",))
    config = default_config()
    method = next((name for name in METHODS if name in options), "fedrts")
    config.dataset, config.model.name = "cifar10", "resnet18"
    config.augment = ("crop", "flip", "cutout")
    config.num_clients, config.cohort_size = 100, 10
    config.partition = {"name": "dirichlet", "alpha": 0.5, "balanced": True}
    config.optimizer.learning_rate = 0.01
    config.num_rounds, config.epochs, config.batch_size = 500, 5, 64
    prunable = ("*conv*/kernel", "*shortcut/kernel")
    if "mini" in options:
        config.dataset, config.model.name = "cifar10_sample", "small_cnn"
        config.augment, config.num_clients = ("flip",), 20
        config.num_rounds, config.epochs, config.batch_size = 60, 2, 16
        config.optimizer.learning_rate = 0.05
        prunable = ("conv*/kernel", "fc1/kernel")
    if method == "fedavg":
        return config
    config.density = 2220062 / 11159232
    methods.choose(config, method)
    config.algorithm.prunable = prunable
    if method == "fedmef":
        config.algorithm.keep_inputs = 0.5
    return config
