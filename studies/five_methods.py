"""Five methods on Fashion-MNIST at two densities, two seeds each.

python launch.py --study=studies/five_methods.py --workdir=runs/five_methods

An MLP on 2,000 images that come with the package, dealt to 20 clients.
"""

from sparsefl_jax.runs.config.defaults import complete, default_config
from sparsefl_jax.studies import sweep

METHODS = ("fedavg", "complement", "fedsparsify_global", "jmwst", "spdst")


def get_study(arg: str = ""):
    """Returns the points: every method at every density that it can have."""
    config = default_config()
    config.dataset = "fashion_mnist_sample"
    config.partition = {"name": "dirichlet", "alpha": 0.5}
    config.num_clients, config.cohort_size, config.epochs = 20, 5, 2
    config.model.name = "mlp"
    config.num_rounds, config.eval_every = 60, 3
    axes = {"algorithm.name": METHODS, "density": (0.05, 0.2), "seed": (0, 1)}
    return sweep(complete(config), axes)
