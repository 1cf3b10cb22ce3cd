"""Complement Sparsification on MNIST by writer: IC, 10 of 539 users, T = 200.

python launch.py --config=configs/complement_mnist.py[:METHOD][,mini]

METHOD is cs (default), fedavg, prunefl or pqsu. It replaces the paper's FEMNIST (AAAI
2023, Tables 3 and 5, Figure 5; `complement_femnist.py`) by ten digits of 539 real
writers, with the same head of 62 outputs, and runs 200 of the paper's 500 rounds.
The writers come with the package, the images by `tfds build mnist
--file_format=array_record`, or from the hub with --config.dataset=hf:ylecun/mnist.
--config.density is 1 - p; for pqsu, --config.algorithm.density is that of the filters.
As printed for FEMNIST, best round: FedAvg 76.3, CS 72.5 (p = .5), PruneFL 55.5, PQSU
57.9. For measured results see docs/reproduction/complement.md.

`mini` has 960 digits of 48 writers, and runs 20 rounds. It gave 64.6 % (chance 10 %;
`unpruned` 70.3 %) with seed 0 in 40 s of processor time (2026-11-23).
"""

from sparsefl_jax.presets import complement


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = complement.parse(arg)
    config = complement.base(options, classes=62, rounds=200)
    config.dataset, config.writers = "mnist", "mnist"
    if "mini" in options:
        config.dataset, config.writers = "mnist_sample", None
        config.batch_size = 8
    config.num_classes = 62
    config.model.name = "ic"
    return config
