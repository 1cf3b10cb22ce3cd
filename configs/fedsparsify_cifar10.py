"""FedSparsify on CIFAR-10 (2022, Table 1): CNN of six convolutions, T = 200.

python launch.py --config=configs/fedsparsify_cifar10.py[:METHOD][,...]

METHOD is global (default), local, fedavg, fedprox, random, snip, grasp or prunefl; with
clients100 10 of 100 take part, with iid the split is at random, else five classes a
client: half of the clients hold the first five. Momentum 0.75 stays with the client.
What is left is --config.density, 1 - S. Round 200, one seed: FedAvg .75,
FedSparsify-Global .752 / .755 / .749 / .751 / .70 at S = .8 / .85 / .9 / .95 / .99. The
paper's test images have statistics of their own, here those of the training images. Not
measured: it needs a GPU.
"""

from configs import _fedsparsify as fedsparsify


def get_config(arg: str = ""):
    """The configuration of a comma-separated `arg`; see above."""
    config = fedsparsify.base(
        fedsparsify.parse(arg), classes=5, without_norm=("*", "!bn*")
    )
    config.dataset = "cifar10"
    config.augment = ("crop", "flip")
    config.model.name = "fedsparsify_cnn"
    config.optimizer.learning_rate, config.optimizer.momentum = 0.005, 0.75
    return fedsparsify.finish(config)
