"""FLASC and its rivals on adapters of an MLP that has learnt digits: accuracy by bits.

python launch.py --study=studies/adapters.py:base --workdir=runs/adapters_base
python -m sparsefl_jax.export runs/adapters_base/base/seed_0 --index none
python launch.py --study=studies/adapters.py --workdir=runs/adapters
python -m benchmarks.adapters runs/adapters    # the table of docs/methods/flasc.md

The first two commands train the network on MNIST and write its weights. In the study
clients train adapters of its two hidden layers, and a new last layer, on Fashion-MNIST:
16,640 + 8,192 + 2,570 entries at rank 16. Points have equal rounds, and differ in bits.
`studies/adapters.py:tune` tries all rates on another seed.
"""

from sparsefl_jax.config import default_config
from sparsefl_jax.studies.points import Point

BASE = "runs/adapters_base/base/seed_0/model.safetensors"
ROUNDS, SEEDS, TUNING_SEED = 60, 3, 3
RATES = (0.03, 0.1, 0.3, 1.0)
# The best on the validation data of seed 3, where others than these diverge at 0.3; the
# two pruned ones have their second best, since seed 2 diverges at 0.3.
BEST, RATE = {"ffa-16": 1.0}, 0.1

RANK = {"rank": 16}  # alpha is the rank, so that s = 1 at all ranks
FFA = RANK | {"freeze": ("*lora_a*",)}
FEDAVG = {"name": "fedavg"}
FLASC = {"name": "flasc", "weighting": "examples"}
# Once, after a dense round.
PRUNED = {"name": "magnitude", "prunable": ("*",), "index": "packed"}
QUARTER, SIXTEENTH = {"density": 1 / 4}, {"density": 1 / 16}
MEAN = {"name": "sgd", "learning_rate": 1.0}  # adds the mean change
ADAM = {"name": "adam", "learning_rate": 0.01}
POINTS = {  # the method, its adapters, and the server's optimizer
    "rank-16": (FEDAVG, RANK, MEAN),
    "rank-4": (FEDAVG, {"rank": 4}, MEAN),
    "rank-1": (FEDAVG, {"rank": 1}, MEAN),
    "ffa-16": (FEDAVG, FFA, MEAN),
    "flasc-0.25": (FLASC | QUARTER, RANK, MEAN),
    "flasc-0.0625": (FLASC | SIXTEENTH, RANK, MEAN),
    "pruned-0.25": (PRUNED | QUARTER, RANK, None),
    "pruned-0.0625": (PRUNED | SIXTEENTH, RANK, None),
    "adam-rank-16": (FEDAVG, RANK, ADAM),
    "adam-flasc-0.25": (FLASC | QUARTER, RANK, ADAM),
    "adam-flasc-0.0625": (FLASC | SIXTEENTH, RANK, ADAM),
}


def get_study(arg: str = "") -> list[Point]:
    """Returns the points: every method at one learning rate, or at all that are tried.

    Args:
      arg: '' for the study, 'tune' for all rates on another seed, 'base' for the
        network that holds the adapters.

    Raises:
      ValueError: `arg` names no part of the study.
    """
    if arg not in ("", "tune", "base"):
        expected = "expected nothing, tune or base"
        raise ValueError(f"studies/adapters.py:{arg}, {expected}")
    if arg == "base":
        return [Point("base", _base())]
    return [
        Point(f"{name}-rate={rate:g}" if arg else name, _config(name, rate, bool(arg)))
        for name in POINTS
        for rate in (RATES if arg else (BEST.get(name, RATE),))
    ]


def _common(dataset: str):
    config = default_config()
    config.dataset, config.model = dataset, {"name": "mlp", "widths": (256, 256)}
    config.metric = "pooled"
    return config


def _base():
    """Ten clients with samples of all digits, which take part in every round."""
    config = _common("mnist")
    config.num_clients = config.cohort_size = 10
    config.num_rounds = config.eval_every = 5
    return config


def _config(name: str, rate: float, tuning: bool):
    algorithm, adapter, server = POINTS[name]
    config = _common("fashion_mnist")
    config.num_clients, config.cohort_size = 100, 10
    config.partition = {"name": "dirichlet", "alpha": 0.3}
    config.num_rounds, config.eval_every, config.val_fraction = ROUNDS, 5, 0.1
    config.optimizer.learning_rate = rate
    targets = {"targets": ("fc1/kernel", "fc2/kernel"), "whole": ("fc3/*",)}
    config.adapter.update(adapter | targets | {"base": BASE})
    config.algorithm = dict(algorithm)
    if server is None:
        config.first_stage, config.num_rounds = FEDAVG | {"num_rounds": 1}, ROUNDS - 1
    else:
        config.server_optimizer = dict(server)
    config.seed, config.seeds = (TUNING_SEED, 1) if tuning else (0, SEEDS)
    return config
