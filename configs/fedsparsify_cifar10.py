"""FedSparsify on CIFAR-10 (2022, Table 1): CNN of six convolutions, T = 200.

python launch.py --config=configs/fedsparsify_cifar10.py[:METHOD][,...][,mini]

METHOD is global (default), local, fedavg, fedprox, random, snip, grasp or prunefl. With
clients100, 10 of 100 clients take part. With iid the split is random; otherwise each
client has five classes, and half of the clients hold the first five. Each client keeps
its momentum of 0.75, but for fedprox and prunefl, where it starts anew in every round.
--config.density is 1 - S. As printed, round 200, one seed: FedAvg
.75, FedSparsify-Global .752 / .755 / .749 / .751 / .70 at S = .8 / .85 / .9 / .95 /
.99. The paper normalises test images with their own statistics; this configuration uses
those of the training images. Not measured, because it needs a GPU.

`mini` has 2,000 training and 500 test images, a quarter of the channels, and runs 15
rounds of one epoch, which show the steps and train little. It gave 13.8 % at density
0.1 (best 22.8 %, chance 10 %) with seed 0 in 68 s of processor time (2026-11-23).
"""

from sparsefl_jax.presets import fedsparsify


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = fedsparsify.parse(arg)
    config = fedsparsify.base(options, classes=5, without_norm=("*", "!bn*"))
    config.dataset = "cifar10_sample" if "mini" in options else "cifar10"
    config.augment = ("crop", "flip")
    config.model.name = "fedsparsify_cnn"
    config.optimizer.learning_rate, config.optimizer.momentum = 0.005, 0.75
    if "mini" in options:
        config.num_rounds, config.epochs = 15, 1
        config.model.widths = (16, 16, 32, 32, 32, 32, 64)
    return config
