"""FLASH on FEMNIST (TMLR 2023, Table 3): LEAF's CNN, 3400 users, 34 a round, T = 1000.

python launch.py --config=configs/flash_femnist.py[:METHOD][,PRESET][,no_stage1][,mini]

METHOD and PRESET are those of `flash_cifar10.py`. The first run downloads the data from
the hub; --config.dataset=FOLDER names a folder of LEAF's JSON files instead.
3400 users are drawn from all, a tenth of the characters of each is for testing, and
accuracy is that of all test characters together. The paper does not name the layers
that are pruned; pruning `conv2` and `fc1` gives its saving of 14.6. As printed at d =
0.1: dense 84.68 +- 0.20, NST 76.92 +- 0.42, PDST 76.01 +- 1.26, SPDST 82.70 +- 0.26,
JMWST (r_int = 1) 83.02 +- 0.21. Not measured, because the data set was not available.

`mini` has 960 digits of 48 writers, 12 a round, and a narrower network, and runs 40
rounds of five epochs. It gave 85.4 % (chance 10 %) with seed 0 in 24 s on 2 CPU cores
with compilation (commit bb93a0f, 2026-11-25).
"""

from sparsefl_jax.presets import flash


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = flash.parse(arg, extra=("mini",))
    mini = "mini" in options
    config = flash.base(options, cohort_size=12 if mini else 34)
    config.dataset, config.num_clients = "femnist", 3400
    config.partition = {"name": "natural", "min_samples": 2, "test_fraction": 0.1}
    config.test_split, config.metric = "within", "pooled"
    config.model.name = "femnist_cnn"
    config.num_rounds, config.batch_size = 1000, 16
    if mini:
        config.dataset, config.num_clients = "mnist_sample", 48
        config.partition.test_fraction = 0.2
        config.model.widths = (8, 16, 64)
        config.num_rounds, config.epochs, config.batch_size = 40, 5, 4
    if config.budgets:  # about 30, 30 and 40 %, as whole numbers of a round's clients
        shares = (0.25, 0.25, 0.5) if mini else (10 / 34, 10 / 34, 14 / 34)
        config.budgets = tuple(zip((0.1, 0.15, 0.2), shares, strict=True))
    return flash.finish(config, ("conv2/kernel", "fc1/kernel"))
