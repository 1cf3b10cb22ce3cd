"""FedSparsify on Fashion-MNIST (2022, Table 2): MLP, 10 clients, T = 200.

python launch.py --config=configs/fedsparsify_fashion_mnist.py[:METHOD][,...][,mini]

METHOD is global (default), local, fedavg, fedprox, random, snip, grasp or prunefl. With
clients100, 10 of 100 clients take part. With iid the split is random; otherwise each
client has two classes. --config.density is 1 - S. As printed, round 200, one seed:
FedAvg .7489, FedSparsify-Global .740 / .735 / .749 / .735 / .687 at S = .8 / .85 / .9 /
.95 / .99. SNIP and GraSP score a random batch; `--config.first_stage.first_samples`
takes a client's first samples, which are of one class. For measured results see
docs/reproduction/fedsparsify.md.

`mini` has 2,000 training and 500 test images, and runs 20 rounds. It gave 62.2 %
(chance 10 %) with seed 0 in 18 s of processor time (2026-11-23).
"""

from sparsefl_jax.presets import fedsparsify


def get_config(arg: str = ""):
    """Returns the configuration of a comma-separated `arg`; see above."""
    options = fedsparsify.parse(arg)
    config = fedsparsify.base(options, classes=2)
    config.dataset = "fashion_mnist_sample" if "mini" in options else "fashion_mnist"
    config.input_scale, config.normalize = 256.0, False
    config.model.name = "mlp"
    config.optimizer.learning_rate = 0.02
    return config
