"""ZeroFL on CIFAR-10 (ICLR 2022, Table 1): ResNet-18, 100 clients, T = 700.

python launch.py --config=configs/zerofl_cifar10.py[:UPLINK][,RATIO][,iid][,mini]

UPLINK is top_of_diff (default), diff_on_top or weights; RATIO, the mask ratio, is r0,
r1 or r2 (default) for 0, 0.1 or 0.2. Clients have LDA 1.0, or 1000 with `iid`. The
paper states neither batch size nor momentum: 16 and none here. --config.density is 1 -
sp. As printed for sp = 0.9 and r = 0 / 0.1 / 0.2: weights 73.87 79.84 81.04,
diff_on_top 73.22 79.58 79.74, top_of_diff 72.71 80.17 79.95; IID 76.52 82.14 82.62,
76.62 82.64 82.67 and 76.91 82.32 82.71. For sp = 0.95: 65.38 73.65 75.54, 66.05 73.03
73.08, 64.86 73.06 72.53; IID 68.66 76.15 76.96, 69.33 76.72 78.22, 69.21 76.44 77.69.
Not measured: a round takes about a minute on 2 CPU cores.

`mini` is a small version of the same pipeline: 2,000 training and 500 test images that
ship with the package, a small CNN, 20 clients, 60 rounds, sparse in all layers but the
first and the last. It is not a row of the paper. Measured with seed 0: 42.2 % (chance
10 %) at density 0.113, in 54 s on 2 CPU cores with compilation (2026-11-23). With
bitmaps as positions (`--config.algorithm.index=bitmap`) 2.31 Gbit travelled.
"""

from sparsefl_jax.algorithms.sparse_computing import UPLINKS
from sparsefl_jax.config import default_config
from sparsefl_jax.presets import mini
from sparsefl_jax.presets.options import parse_options

RATIOS = {"r0": 0.0, "r1": 0.1, "r2": 0.2}


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = parse_options(arg, UPLINKS, tuple(RATIOS), ("iid",), ("mini",))
    config = default_config()
    config.dataset, config.val_fraction = "cifar10", 0.1
    config.model.name = "resnet18"
    alpha = 1000.0 if "iid" in options else 1.0
    config.num_clients, config.partition = 100, {"name": "lda", "alpha": alpha}
    config.num_rounds, config.batch_size = 700, 16
    config.optimizer.learning_rate, config.final_learning_rate = 0.1, 0.01
    config.density = 0.1
    config.algorithm = {"name": "zerofl"}
    config.algorithm.uplink = next((u for u in UPLINKS if u in options), "top_of_diff")
    ratio = next((r for r in RATIOS if r in options), "r2")
    config.algorithm.mask_ratio = RATIOS[ratio]
    config.algorithm.prunable = ("layer*/conv*/kernel",)
    if "mini" in options:
        mini.cifar10(config)
        config.val_fraction = 0.0
        config.algorithm.prunable = ("conv[23]/kernel", "fc1/kernel")
    return config
