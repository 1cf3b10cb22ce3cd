"""Dense and sparse training on slow devices: by rounds, and by hours.

python launch.py --study=studies/slow_phones.py --workdir=runs/slow_phones

An MLP on 2,000 Fashion-MNIST images that come with the package, and 20 clients.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.studies import sweep

METHODS = ("fedavg", "spdst", "jmwst")


def get_study(arg: str = ""):
    """Returns the points: three methods on boards, and on phones with a deadline.

    Half of the boards are on NB-IoT, and a round waits for them. The slower half of the
    phones cannot train the dense network before the deadline.
    """
    config = default_config()
    config.dataset = "fashion_mnist_sample"
    config.partition = {"name": "dirichlet", "alpha": 0.5}
    config.num_clients, config.cohort_size, config.epochs = 20, 5, 2
    config.model.name, config.num_rounds, config.eval_every = "mlp", 40, 2
    config.metric = "clients"
    axes = {"algorithm.name": METHODS, "density": (0.1,), "seed": (0, 1)}
    points = sweep(config, {"system": ("iot",)} | axes)
    phones = {"system": ("mobile",), "deadline.quantile": (0.5,)}
    return points + sweep(config, phones | axes)
