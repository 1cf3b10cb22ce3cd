"""Methods for unequal clients at equal tiers: accuracy of what each tier can hold.

python launch.py --study=studies/unequal_clients.py:tune --workdir=runs/unequal_tune
python launch.py --study=studies/unequal_clients.py --workdir=runs/unequal
python -m benchmarks.unequal runs/unequal_tune runs/unequal   # docs/unequal_clients.md

A quarter of the clients each can hold all weights of an MLP for Fashion-MNIST, 1/4,
1/16 and 1/64 of them. docs/unequal_clients.md has the setting and the results.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.studies.points import Point

SIZES = (1.0, 1 / 4, 1 / 16, 1 / 64)  # shares of the weights
HIDDEN = 256
UNITS = (256, 77, 20, 5)  # the most units of a layer whose weights fit these shares
WIDTHS = tuple(units / HIDDEN for units in UNITS)
RATES = (0.1, 0.3)
RATE = 0.1  # at 0.3 FedAvg diverges on the tuning seed, and HeteroFL on seed 2
SEEDS, TUNING_SEED = 3, 3

UNIFORM = {"weighting": "uniform"}
# The Scaler of HeteroFL precedes a normalisation, which this network does not have.
SLICED = {"scaler": False}
NESTED = {"densities": SIZES[::-1], "index": "packed"}
METHODS = {  # the method's arguments, and the clients' budgets
    "fedavg": ({"name": "fedavg"} | UNIFORM, None),
    "heterofl": ({"name": "heterofl"} | SLICED, WIDTHS),
    "fedrolex": ({"name": "fedrolex"} | SLICED, WIDTHS),
    "fjord": ({"name": "fjord", "widths": WIDTHS[::-1]} | UNIFORM, WIDTHS),
    "fiarse": ({"name": "fiarse"}, SIZES),
    "fiarse-masked": ({"name": "fiarse", "gradient": "masked"}, SIZES),
    "hetero_spdst": ({"name": "hetero_spdst"} | NESTED, SIZES),
    "hetero_jmwst": ({"name": "hetero_jmwst"} | NESTED, SIZES),
}


def get_study(arg: str = "") -> list[Point]:
    """Returns the points: every method at one learning rate, or at all that are tried.

    Args:
      arg: '' for the study, 'tune' for all rates on another seed.

    Raises:
      ValueError: `arg` names no part of the study.
    """
    if arg not in ("", "tune"):
        raise ValueError(f"studies/unequal_clients.py:{arg}, expected nothing or tune")
    return [
        Point(f"{name}-rate={rate:g}" if arg else name, _config(name, rate, bool(arg)))
        for name in METHODS
        for rate in (RATES if arg else (RATE,))
    ]


def _config(name: str, rate: float, tuning: bool):
    algorithm, budgets = METHODS[name]
    config = default_config()
    config.dataset, config.num_clients, config.cohort_size = "fashion_mnist", 100, 8
    config.partition = {"name": "dirichlet", "alpha": 0.3}
    config.model = {"name": "mlp", "widths": (HIDDEN, HIDDEN)}
    config.algorithm = dict(algorithm)
    if budgets:
        config.budgets = tuple((budget, 1 / len(budgets)) for budget in budgets)
    config.num_rounds, config.batch_size, config.eval_every = 100, 32, 100
    config.optimizer.learning_rate, config.final_learning_rate = rate, rate / 10
    config.val_fraction, config.metric = 0.1, "pooled"
    config.seed, config.seeds = (TUNING_SEED, 1) if tuning else (0, SEEDS)
    return config
