"""Bad configurations and setups: each is refused in one line, before compilation."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from ml_collections import config_dict

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.runs import experiment, simulate
from sparsefl_jax.runs.config.defaults import default_config, freeze
from sparsefl_jax.runs.setup import Limits, Setup, check_setup
from tests.refusals import change, refused
from tests.tiny import tiny_config

NAN, INF = math.nan, math.inf
HETERO = {"name": "hetero_jmwst"}

# What is changed in a configuration that runs, and what the line must say.
REFUSED = [
    # unknown and missing names
    ({"algorithm.name": "spdts"}, "did you mean 'spdst'"),
    ({"model.name": "resnet19"}, "did you mean 'resnet18'"),
    ({"model.dtype": "float16"}, "model.dtype='float16' (did you mean 'bfloat16'?)"),
    ({"optimizer.name": "sdg"}, "did you mean 'sgd'"),
    ({"optimizer.name": "scale"}, "optimizer.name='scale'"),
    ({"optimizer.name": "lbfgs"}, "optimizer.name='lbfgs'"),
    ({"dataset": "cifar1o"}, "cifar10"),
    ({"init_what": "masks"}, "did you mean 'mask'"),
    ({"sinks": ("tensorbord",)}, "did you mean 'tensorboard'"),
    ({"augment": ("rotate",)}, "augment='rotate'"),
    ({"algorithm.index": "csc"}, "index='csc'"),
    (
        {"algorithm.prunable": ("conv9/kernel",)},
        "algorithm.prunable: 'conv9/kernel' matches no leaf",
    ),
    ({"algorithm.prunable": ()}, "algorithm.prunable=()"),
    ({"algorithm": {"name": "json:dumps"}}, "algorithm.name='json:dumps'"),
    ({"algorithm": {"name": "json:__name__"}}, "is not a callable object"),
    ({"algorithm": {"name": ".x:y"}}, "algorithm.name='.x:y'"),
    ({"algorithm": {"name": "builtins:max"}}, "algorithm.name='builtins:max'"),
    ({"algorithm": {}}, "algorithm.name is missing"),
    ({"first_stage": {"density": 0.5}}, "first_stage.name is missing"),
    ({"algorithm": {"name": "pdst"}}, "argument: 'density'"),
    # misspelt fields
    ({"num_round": 3}, "config: field='num_round' (did you mean 'num_rounds'"),
    ({"until.gbits": 3.0}, "until: field='gbits' (did you mean 'gbit'"),
    (
        {"first_stage.densty": 0.9},
        "first_stage: field='densty' (did",
    ),
    ({"partition.seed": 1}, "partition: field='seed'"),
    ({"model.num_classes": 9}, "model: field='num_classes'"),
    ({"optimizer.schedule": "cosine"}, "optimizer: field='schedule'"),
    # wrong types
    ({"cohort_size": 2.5}, "cohort_size=2.5, expected an integer"),
    ({"num_rounds": None}, "num_rounds=None, expected an integer"),
    ({"seed": 2**31}, "seed=2147483648, expected an integer below 2**31"),
    ({"normalize": "no"}, "normalize='no', expected True or False"),
    ({"augment": "flip"}, "augment='flip', expected a tuple"),
    ({"dataset": 3}, "dataset=3, expected a string"),
    ({"model": "mlp"}, "model='mlp', expected a section"),
    ({"model.widths": (16, "a")}, "model.widths=(16, 'a')"),
    ({"algorithm": {"name": "fedprox", "mu": True}}, "algorithm.mu=True"),
    ({"algorithm": {"name": "fedavg", "keep_optimizer": 1}}, "keep_optimizer=1"),
    ({"algorithm": HETERO | {"densities": 0.5}}, "algorithm.densities=0.5"),
    ({"budgets": (0.5, 1)}, "budgets=(0.5, 1), expected a tuple, each a tuple"),
    # not finite
    ({"optimizer.learning_rate": NAN}, "optimizer.learning_rate=nan"),
    ({"optimizer.learning_rate": INF}, "optimizer.learning_rate=inf"),
    ({"final_learning_rate": NAN}, "final_learning_rate=nan"),
    ({"until.gbit": NAN}, "until.gbit=nan"),
    # out of range
    ({"seed": -1}, "seed=-1, expected at least 0"),
    ({"partition_seed": -1}, "partition_seed=-1"),
    ({"seeds": 0}, "seeds=0, expected at least 1"),
    ({"seeds": 2, "seed": 2**31 - 1}, "seed=2147483647, expected in [0, "),
    ({"num_clients": -1}, "num_clients=-1"),
    ({"cohort_size": 0}, "cohort_size=0, expected at least 1"),
    ({"cohort_size": 9}, "cohort_size=9, expected at most the number of clients, 8"),
    ({"batch_size": 0}, "batch_size=0"),
    ({"epochs": 0}, "epochs=0"),
    ({"num_rounds": 0}, "num_rounds=0"),
    ({"first_stage.num_rounds": 0}, "num_rounds=0"),
    ({"eval_every": 0}, "eval_every=0"),
    ({"chunk": "0"}, "chunk='0'"),
    ({"chunk": "many"}, "chunk='many'"),
    ({"density": 1.5}, "density=1.5, expected in (0, 1]"),
    ({"first_stage.group": 7}, "m=7, but 'fc1/kernel' has 6 inputs"),
    ({"first_stage.group": -1}, "group=-1"),
    ({"first_stage.group": 4, "first_stage.density": 0.1}, "group=4"),  # none is left
    ({"model.widths": (16, 0)}, "widths=(16, 0)"),
    ({"model": {"name": "small_cnn"}}, "smaller than a kernel or a pool"),
    ({"model": {"name": "resnet18", "base": 0}}, "base=0"),
    ({"optimizer.learning_rate": -0.1}, "learning_rate=-0.1"),
    ({"optimizer.clip": -1.0}, "clip=-1.0"),
    ({"optimizer.learning_rate": 0.0, "final_learning_rate": 0.1}, "learning_rate=0.0"),
    ({"final_learning_rate": 0.0}, "final_learning_rate=0.0"),
    ({"final_learning_rate": 0.01, "lr_decay": 1.0}, "lr_decay=1.0, expected in (0, "),
    (
        {"final_learning_rate": 0.5, "lr_decay": 0.9},
        "final_learning_rate=0.5, expected in (0, 0.1]",
    ),
    ({"optimizer.momentum": -5.0}, "momentum=-5.0, expected in [0, 1)"),
    ({"optimizer": {"name": "adam", "b1": 1.0}}, "b1=1.0, expected in [0, 1)"),
    ({"optimizer": {"name": "adam", "b2": -0.1}}, "b2=-0.1, expected in [0, 1)"),
    ({"optimizer": {"name": "rmsprop", "decay": 2.0}}, "decay=2.0, expected in [0, 1)"),
    ({"optimizer": {"name": "adam", "eps": -1e-8}}, "eps=-1e-08, expected at least 0"),
    *(
        (
            {section: {"name": name, key: value}},
            f"{section}.{key}=1e-09, expected at least 1/160 to leave one of 160 weig",
        )
        for section, name, key, value in (
            ("first_stage", "sensitivity", "density", 1e-9),
            ("algorithm", "prunefl", "max_density", 1e-9),
            ("algorithm", "hetero_spdst", "densities", (1e-9, 0.5)),
        )
    ),
    (  # of 96 weights of one layer
        {"first_stage.density": 0.01, "first_stage.prunable": ("fc1/kernel",)},
        "first_stage.density=0.01, expected at least 1/96 to leave one of 96 weights",
    ),
    ({"model.widths": (2**30,)}, "the network has 2**31 parameters or more"),
    (
        {"algorithm": {"name": "ditto", "personal_epochs": 10**9}, "first_stage": {}},
        "algorithm.personal_epochs=1000000000, expected in [1, 10000]",
    ),
    (
        {"algorithm": {"name": "flasc", "density": 0.5, "decay": 0.999999999}},
        "algorithm.decay=0.999999999, expected at most 0.99999, or 1 for no fall",
    ),
    (
        {"algorithm": {"name": "fedsparsify_local", "density": 0.5, "rounds": 10**9}},
        "rounds=1000000000, expected in [2, 1000000]",
    ),
    ({"partition": {"name": "natural", "min_samples": 0}}, "min_samples=0"),
    ({"lr_horizon": 0}, "lr_horizon=0"),
    ({"lr_delay": -1}, "lr_delay=-1"),
    ({"budgets": ((0.5,),)}, "budgets=((0.5,),), expected pairs"),
    ({"budgets": ((0.5, 1.5), (1.0, -0.5))}, "expected pairs"),
    ({"budgets": ((0.5, 0.6), (1.0, 0.6))}, "sum to 1"),
    ({"checkpoint_minutes": -1.0}, "checkpoint_minutes=-1.0"),
    ({"until.gbit": 0.0}, "until.gbit=0.0, expected above 0"),
    ({"until.pflop": -2.0}, "until.pflop=-2.0"),
    ({"fit.gbit": 1.0, "fit.by": "plan"}, "fit.by='plan'"),
    ({"until.accuracy": 97.0}, "until.accuracy=97.0, expected in (0, 1]"),
    ({"observe_rounds": (0,)}, "observe_rounds=0, expected in [1, 4]"),
    ({"observe_rounds": (2, 5)}, "observe_rounds=5, expected in [1, 4]"),
    ({"init_from": "no/such/run"}, "no/such/run"),
]


@pytest.mark.parametrize("values, said", REFUSED, ids=lambda v: str(v)[:60])
def test_configuration_is_refused(tmp_path, monkeypatch, values, said):
    config = tiny_config(tmp_path)
    change(config, values)
    monkeypatch.setattr(simulate, "simulate", None)  # nothing runs
    refused(lambda: experiment.run(config, tmp_path / "run", progress=False), said)
    assert not (tmp_path / "run").exists()


SETUPS = [
    ({"until": Limits(gbit=0)}, "until.gbit=0, expected above 0"),
    ({"until": Limits(pflop=-2.0)}, "until.pflop=-2.0, expected above 0"),
    ({"until": Limits(hours=0.0)}, "until.hours=0.0, expected above 0"),
    ({"until": Limits(accuracy=97)}, "until.accuracy=97, expected in (0, 1]"),
    ({"memory_gb": 0}, "memory_gb=0, expected above 0"),
    ({"eval_every": 2.5}, "eval_every=2.5, expected an integer below 2**31"),
    ({"budgets": np.ones(3)}, "budgets of shape (3,), expected (2,)"),
    ({"budgets": [0.5, 2.0]}, "budgets=2.0, expected in (0, 1]"),
    ({"budgets": [0.5, 0.0]}, "budgets=0.0, expected in (0, 1]"),
    ({"budgets": [0.5, NAN]}, "budgets=nan, expected in (0, 1]"),
]


@pytest.mark.parametrize("settings, said", SETUPS, ids=[said for _, said in SETUPS])
def test_a_setup_is_refused(settings, said):
    data = SimpleNamespace(train=SimpleNamespace(size=np.ones(2)))
    stage = Stage(SimpleNamespace(clients=None, privacy=None), 1, 1)
    check_setup(Setup([stage], None, data))
    refused(lambda: check_setup(Setup([stage], None, data, **settings)), said)


def test_a_resumed_run_says_first_what_cannot_change(tmp_path):
    """The density of the first stage is not that of the configuration any more."""
    config, run = tiny_config(tmp_path), tmp_path / "run"
    config.density = config.first_stage.density
    run.mkdir()
    (run / "config.json").write_text(config.to_json())
    config.density = 0.2
    said = "density is 0.5 there and 0.2 here; a resumed run keeps its configuration"
    refused(lambda: experiment.run(config, run, resume=True, progress=False), said)


def test_what_is_no_configuration_is_refused():
    refused(
        lambda: freeze({"seed": 0}),
        "config={'seed': 0}, expected a Config or a ConfigDict",
    )


def test_a_field_that_is_missing_has_its_default():
    given = config_dict.ConfigDict({"epochs": 3})
    assert freeze(given) == freeze(default_config(epochs=3))


def test_lists_and_whole_numbers_are_as_good_as_tuples_and_floats(tmp_path):
    config = tiny_config(tmp_path)
    read_back = config_dict.ConfigDict(config.to_dict())
    change(read_back, {"model.widths": [16], "optimizer.learning_rate": 1})
    freeze(read_back)
