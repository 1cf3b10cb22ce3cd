"""SparsyFed on CIFAR-10 (ICLR 2025): ResNet-18, 100 clients, T = 700.

python launch.py --config=configs/sparsyfed_cifar10.py[:METHOD][,mini]

METHOD is sparsyfed (default), topk (exponent 1 and no sparse inputs, the paper's
baseline) or fedavg. The settings are those of the authors' working repository: LDA 0.1,
10 clients a round, one epoch, batch 16, weight decay 0.001 and no momentum, rate 0.5 to
0.01, density 0.05, exponent 1.25, no augmentation. Pixels are normalised by the data
set's mean and deviation, there by 0.5 and 0.5. The paper's tables were not seen when
this was written, so no row is stated. Not measured: a round takes about a minute on 2
CPU cores.

`mini` is a small version of the same pipeline: 2,000 training and 500 test images that
ship with the package, a small CNN, 20 clients, 60 rounds, density 0.1 without the first
and the last layer. It is not a row of the paper. Measured with seed 0: 35.4 % (chance
10 %) at density 0.113, in 46 s on 2 CPU cores with compilation (2026-11-23); topk
31.0 % at density 0.114. With bitmaps as positions (`--config.algorithm.index=bitmap`)
0.42 and 0.52 Gbit travelled.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets import mini
from sparsefl_jax.presets.options import parse_options

METHODS = ("sparsyfed", "topk", "fedavg")


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, METHODS, ("mini",))
    method = next((name for name in METHODS if name in options), "sparsyfed")
    config = default_config()
    config.dataset = "cifar10"
    config.model = {"name": "resnet18", "dtype": "float32", "init": "lecun_truncated"}
    config.num_clients, config.partition = 100, {"name": "lda", "alpha": 0.1}
    config.num_rounds, config.batch_size = 700, 16
    config.optimizer.weight_decay = 0.001
    if "mini" in options:
        mini.cifar10(config)
    else:  # its rounds count from 1: round t has the rate 0.5 * 0.02 ** ((t + 1) / T)
        config.optimizer.learning_rate = 0.5 * 0.02 ** (1 / 700)
        config.final_learning_rate, config.lr_horizon = 0.01, 699
    if method == "fedavg":
        return config
    config.density = 0.05
    config.algorithm = {"name": "sparsyfed"}
    if "mini" in options:  # its small head would be pruned whole
        config.density = 0.1
        config.algorithm.prunable = ("conv[23]/kernel", "fc1/kernel")
    if method == "topk":
        config.algorithm.exponent, config.algorithm.sparse_inputs = 1.0, False
    return config
