"""Edge-case configurations run two rounds, or are refused in one line."""

import math
import warnings

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sparsefl_jax.config import defaults
from sparsefl_jax.data.holdout import TEST_SPLITS
from sparsefl_jax.runs import experiment, simulate
from tests.refusals import change

pytestmark = pytest.mark.slow

ONE_OF = st.sampled_from
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}

OPTIMIZERS = ("adafactor", "adamw", "lion", "noisy_sgd", "rprop", "sgd", "sm3")


PARTITIONS = (
    {"name": "iid"},
    {"name": "lda", "alpha": 1e-300},
    {"name": "quantity", "alpha": 1e300},
    {"name": "pathological", "classes_per_client": 1},
    {"name": "dirichlet", "alpha": 1e-3, "min_samples": 1},
    {"name": "dirichlet", "alpha": 1.0, "min_samples": 3, "balanced": True},
    {"name": "shards", "k": 2},
    {"name": "natural", "min_samples": 4},
)


METHODS = (
    {"name": "fedavg", "keep_optimizer": True},
    {"name": "fedprox", "mu": 0.0},
    {"name": "spdst", "prunable": ("*",), "index": "coo"},
    {"name": "pdst", "density": 0.05, "allocation": "erk"},
    {"name": "pdst", "density": 1.0, "prunable": ("fc1/kernel",), "index": "csr"},
    {"name": "nst", "density": 0.999, "prune_rate": 1.0},
    {"name": "jmwst", "density": 0.05, "prune_rate": 0.0, "r_int": 100},
    {"name": "hetero_spdst", "densities": (0.5,)},
    {"name": "hetero_jmwst", "densities": (0.05, 1.0), "submask": "magnitude"},
)


STAGE = {"name": "sensitivity", "num_rounds": 1, "cohort_size": 1, "prune_rate": 1.0}

VALID = {
    "dataset": ("images", "images", "features", "one_class"),
    "partition": PARTITIONS,
    "algorithm": METHODS,
    "first_stage": (
        {},
        STAGE | {"density": 0.01},
        STAGE | {"density": 0.5, "group": 2},
    ),
    "model": tuple({"name": "mlp", "widths": w} for w in ((), (1,), (3, 4))),
    "num_clients": (1, 2, 3, 5, 8, 24),
    "cohort_size": (1, 2, 3, 5),
    "epochs": (1, 2),
    "batch_size": (1, 3, 8, 64),
    "chunk": ("auto", "1", "2", "99"),
    "val_fraction": (0.0, 0.1, 0.5, 0.99),
    "test_split": tuple(TEST_SPLITS),
    "augment": ((), ("flip",), ("crop", "flip")),
    "optimizer.name": OPTIMIZERS,
    "optimizer.learning_rate": (1e-8, 0.1, 10.0, 1e30),
    "optimizer.weight_decay": (0.0, 0.1),
    "optimizer.clip": (0.0, 1e-6, 1.0),
    "final_learning_rate": (None, 1e-3),
    "lr_horizon": (None, 1, 1000),
}

SECTIONS = ("partition", "algorithm", "first_stage", "model")


@st.composite
def changes(draw):
    """Draws valid values by dotted field."""
    drawn = {field: draw(ONE_OF(values)) for field, values in VALID.items()}
    if drawn["partition"]["name"] == "natural":
        drawn["num_clients"] = draw(ONE_OF((0, 1, 5)))
    if drawn["final_learning_rate"] is None:
        drawn["lr_horizon"] = None
    drawn["cohort_size"] = min(drawn["cohort_size"], drawn["num_clients"] or 5)
    if drawn["optimizer.name"] == "sgd":
        drawn["optimizer.momentum"] = draw(ONE_OF((None, 0.0, 0.9)))
    if drawn["algorithm"]["name"].startswith("fed"):
        drawn["server_optimizer.name"] = draw(ONE_OF((None, *OPTIMIZERS)))
    return drawn


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """24 + 9 samples by 5 users, as images, as features, and of one class alone."""
    folder = tmp_path_factory.mktemp("tiny")
    rng = np.random.default_rng(0)
    y, y_test = rng.permutation(np.arange(24) % 3), np.arange(9) % 3
    images = rng.integers(0, 256, (33, 2, 3, 1), dtype=np.uint8)
    users = {"users": np.arange(24) % 5, "users_test": np.arange(9) % 4}
    for name, x, share in (
        ("images", images, 1),
        ("features", rng.normal(size=(33, 6)), 1),
        ("one_class", images, 0),
    ):
        arrays = {"x": x[:24], "y": y * share, "x_test": x[24:], "y_test": y_test}
        arrays["y_test"] = y_test * share
        np.savez(folder / f"{name}.npz", **arrays, **users)
    return folder


def configure(folder, drawn: dict):
    """Returns a configuration with the drawn values."""
    config = defaults.default_config()
    config.num_rounds = 2
    for section in SECTIONS:
        config[section] = drawn[section]
    change(config, {k: v for k, v in drawn.items() if k not in SECTIONS})
    config.dataset = str(folder / f"{drawn['dataset']}.npz")
    return config


def run(folder, drawn) -> bool:
    """Runs values that are not refused and checks all numbers; tells whether it ran."""
    try:
        with warnings.catch_warnings(action="ignore"):
            setup, _ = experiment.build(configure(folder, drawn))
    except ValueError as error:
        assert str(error) and "\n" not in str(error)
        return False
    try:
        result = simulate.run(jax.random.key(0), **setup._asdict())
    except FloatingPointError as error:
        assert "round" in str(error) and "\n" not in str(error)
        return True
    rounds = [r for r in result.metrics if r["phase"] == "train"]
    assert [r["round"] for r in rounds][-2:] == [1, 2]
    values = jax.tree.leaves(result.metrics)
    assert all(math.isfinite(v) for v in values if isinstance(v, int | float))
    return True


@settings(max_examples=200, **QUIET)
@given(changes())
def test_much_of_what_is_built_runs(folder, drawn):
    assume(run(folder, drawn))
