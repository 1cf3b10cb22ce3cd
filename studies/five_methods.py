"""Five methods on Fashion-MNIST at two densities, two seeds each, at equal bits.

python launch.py --study=studies/five_methods.py --workdir=runs/five_methods

`--study=studies/five_methods.py:my_module:my_method` adds a method, built in or yours.

An MLP on 2,000 images that come with the package, divided among 20 clients.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.studies import sweep

METHODS = ("fedavg", "complement", "fedsparsify_global", "jmwst", "spdst")


def get_study(arg: str = ""):
    """Returns the points: every method at every density that it can have.

    Each may spend 0.5 Gbit, both ways and all clients together, in which FedAvg trains
    13 rounds. A pilot run measures how many rounds each sparse method can train.
    Complement Sparsification runs at an aggregation ratio of 7; its paper allows up to
    1 / learning rate, which is 10. At the 1.5 of its experiments, which had 500 rounds,
    the weights that clients send do not outgrow those that the server keeps.
    """
    config = default_config()
    config.dataset = "fashion_mnist_sample"
    config.partition = {"name": "dirichlet", "alpha": 0.5}
    config.num_clients, config.cohort_size, config.epochs = 20, 5, 2
    config.model.name = "mlp"
    config.fit.gbit, config.eval_every = 0.5, 3
    methods = (*METHODS, *filter(None, arg.split(",")))
    axes = {"algorithm.name": methods, "density": (0.1, 0.3), "seed": (0, 1)}
    points = sweep(config, axes)
    for point in points:
        if point.config.algorithm.name == "complement":
            point.config.algorithm.aggregation_ratio = 7.0
    return points
