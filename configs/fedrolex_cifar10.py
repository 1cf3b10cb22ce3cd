"""FedRolex on CIFAR-10 (NeurIPS 2022, Table 3): pre-activation ResNet-18, T = 3200.

python launch.py --config=configs/fedrolex_cifar10.py[:METHOD][,low][,mini]

METHOD is fedrolex (default) or heterofl. 100 clients of two classes each, or of five
with `low`; 10 a round, two of each width 1, 1/2, 1/4, 1/8 and 1/16; batch 10, SGD at
2e-4 with momentum 0.9, weight decay 1e-3 and gradients clipped at 1. The accuracy is
that of the server's whole model on all test images.

As printed, for two classes and for five: FedRolex 69.44 +- 1.50 and 84.45 +- 0.36,
HeteroFL 63.90 +- 2.74 and 73.19 +- 1.71. Not measured: it needs a GPU. The released
code also cuts the rate to a quarter in rounds 800 and 1200, and draws every client's
width anew in each round.

`mini` has the data, network, clients and 60 rounds of `flash_cifar10.py:mini`, with 5
clients a round. It gave 30.4 % (chance 10 %) with seed 0, with 231 Mbit each way, in
46 s on 2 CPU cores with compilation (commit bb93a0f, 2026-11-25). heterofl has not been
run.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets import mini
from sparsefl_jax.presets.options import parse_options

METHODS = ("fedrolex", "heterofl")
WIDTHS = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, METHODS, ("low",), ("mini",))
    config = default_config()
    config.dataset, config.augment = "cifar10", ("crop", "flip")
    config.model = {"name": "resnet18", "variant": "preactivation", "norm": "static"}
    config.model.init = "torch"
    config.algorithm = {"name": "heterofl" if "heterofl" in options else "fedrolex"}
    config.budgets = tuple((width, 1 / len(WIDTHS)) for width in WIDTHS)
    classes = 5 if "low" in options else 2
    config.partition = {"name": "pathological", "classes_per_client": classes}
    config.num_rounds, config.batch_size = 3200, 10
    config.optimizer.update(learning_rate=2e-4, momentum=0.9)
    config.optimizer.update(weight_decay=1e-3, clip=1.0)
    config.metric = "pooled"
    if "mini" in options:
        config.partition = {"name": "lda", "alpha": 1.0}
        mini.cifar10(config)
        config.cohort_size = 5
        config.algorithm.scaler = False  # the network has no normalisation
    return config
