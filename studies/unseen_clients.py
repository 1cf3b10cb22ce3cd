"""The participation gap: accuracy of clients that train, and of those that never do.

python launch.py --study=studies/unseen_clients.py --workdir=runs/unseen_clients

An MLP on 2,000 Fashion-MNIST images that come with the package, and 20 clients, of
which four never train. docs/unseen_clients.md says what each method gives them.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.studies.points import Point

METHODS = ("fedavg", "finetune", "ditto", "spafl", "heterofl")


def get_study(arg: str = "") -> list[Point]:
    """Returns a point for each method, of three seeds."""
    return [Point(name, _config(name)) for name in METHODS]


def _config(name: str):
    config = default_config()
    config.dataset, config.num_clients = "fashion_mnist_sample", 20
    config.partition = {"name": "dirichlet", "alpha": 0.3, "min_samples": 20}
    config.unseen_fraction, config.seeds, config.metric = 0.2, 3, "clients"
    config.model = {"name": "mlp", "widths": (64, 64)}
    config.algorithm = {"name": name}
    config.num_rounds, config.cohort_size, config.epochs = 100, 8, 2
    config.eval_every = 10
    if name == "finetune":  # after as many rounds of FedAvg
        config.first_stage = {"name": "fedavg", "num_rounds": 100, "cohort_size": 8}
        config.num_rounds, config.cohort_size = 1, 16
    if name == "heterofl":  # the network has no normalisation after a Scaler
        config.algorithm = {"name": name, "scaler": False}
        config.budgets = ((0.5, 0.5), (1.0, 0.5))
    return config
