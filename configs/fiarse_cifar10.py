"""FIARSE, FedRolex and HeteroFL on CIFAR-10 (FIARSE, NeurIPS 2024, Table 1).

python launch.py --config=configs/fiarse_cifar10.py[:METHOD][,mini]

METHOD is fiarse (default), masked, which is FIARSE with the gradient of the released
code, heterofl, or fedrolex. ResNet-18, 100 clients of Dirichlet 0.3, 800 rounds of four
local epochs, about 100 steps of batch 20, SGD at 0.1. A quarter of the clients each can
hold all weights, 1/4, 1/16 and 1/64 of them; for heterofl and fedrolex these are the
widths 1, 1/2, 1/4 and 1/8. A round draws 12 clients, three of each size; the paper
draws 10 of all clients. `--config.metric=pooled` tests the server's models on all test
images, for FIARSE those of the four sizes too.

As printed, accuracy on the clients' own data, and on all test images, both as means
over the sizes: FIARSE 77.04 (its four cells average 77.40) and 73.75, HeteroFL 68.88
and 66.05, FedRolex 67.18 and 65.98. Not measured: it needs a GPU.

`mini` has the data, network, 20 clients and 60 rounds of `flash_cifar10.py:mini`, with
Dirichlet 1.0 and 8 clients a round. It gave 35.9 % (mean over clients, chance 10 %)
with seed 0, with 460 Mbit up and 471 Mbit down, in 68 s on 2 CPU cores with compilation
(commit bb93a0f, 2026-11-25). The other methods have not been run.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.presets import mini
from sparsefl_jax.presets.options import parse_options

SIZES = (1.0, 1 / 4, 1 / 16, 1 / 64)
METHODS = {
    "fiarse": {"name": "fiarse", "sizes": SIZES},
    "masked": {"name": "fiarse", "sizes": SIZES, "gradient": "masked"},
    "heterofl": {"name": "heterofl"},
    "fedrolex": {"name": "fedrolex"},
}


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, tuple(METHODS), ("mini",))
    method = next((name for name in METHODS if name in options), "fiarse")
    config = default_config()
    config.dataset, config.augment = "cifar10", ("crop", "flip")
    config.model = {"name": "resnet18", "norm": "static", "init": "torch"}
    config.partition = {"name": "dirichlet", "alpha": 0.3, "balanced": True}
    config.num_rounds, config.epochs, config.batch_size = 800, 4, 20
    config.cohort_size, config.algorithm = 12, METHODS[method]
    if "mini" in options:
        mini.cifar10(config)
        config.cohort_size = 8
    sliced = method in ("heterofl", "fedrolex")
    held = (size**0.5 if sliced else size for size in SIZES)
    config.budgets = tuple((budget, 1 / 4) for budget in held)
    if sliced and "mini" in options:
        config.algorithm.scaler = False  # the network has no normalisation
    return config
