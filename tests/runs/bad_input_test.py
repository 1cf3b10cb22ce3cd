"""Bad configurations and setups: each is refused in one line, before compilation."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from ml_collections import config_dict

from sparsefl_jax import from_arrays, models
from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import fill_in, freeze
from sparsefl_jax.config.fields import Limits
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.runs import experiment, simulate
from sparsefl_jax.runs.setup import Setup, check_setup
from tests.refusals import change, refused
from tests.tiny import tiny_config

NAN = math.nan
SPAFL = {"name": "spafl", "alpha": 0.1}

# What is changed in a configuration that runs, and what the line must say.
REFUSED = [
    # unknown and missing names
    ({"model.name": "resnet19"}, "did you mean 'resnet18'"),
    ({"dataset": "cifar1o"}, "no data set has this name"),
    (
        {"algorithm.prunable": ("conv9/kernel",)},
        "algorithm.prunable: 'conv9/kernel' matches no leaf",
    ),
    ({"algorithm": {"name": "json:__name__"}}, "is not a callable object"),
    ({"algorithm": {"name": "pdst"}}, "argument: 'density'"),
    # misspelt fields
    ({"num_round": 3}, "config: field='num_round' (did you mean 'num_rounds'"),
    # wrong types
    ({"cohort_size": 2.5}, "cohort_size=2.5, expected an integer"),
    ({"model.widths": (16, "a")}, "model.widths=(16, 'a')"),
    # not finite
    ({"optimizer.learning_rate": NAN}, "optimizer.learning_rate=nan"),
    # out of range
    ({"seeds": 2, "seed": 2**31 - 1}, "seed=2147483647, expected in [0, "),
    (
        {"cohort_size": 9},
        "cohort_size=9, expected at most the number of clients that train, 8",
    ),
    ({"first_stage.group": 4, "first_stage.density": 0.1}, "group=4"),  # none is left
    (
        {"final_learning_rate": 0.5, "lr_decay": 0.9},
        "final_learning_rate=0.5, expected in (0, 0.1]",
    ),
    (
        {"algorithm": {"name": "hetero_spdst", "densities": (1e-9, 0.5)}},
        "algorithm.densities=1e-09, expected at least 1/160 to leave one of 160 weig",
    ),
    (  # of 96 weights of one layer
        {"first_stage.density": 0.01, "first_stage.prunable": ("fc1/kernel",)},
        "first_stage.density=0.01, expected at least 1/96 to leave one of 96 weights",
    ),
    ({"model.widths": (2**30,)}, "parameters, expected at least 1 and below 2**31"),
    ({"budgets": ((0.5, 0.6), (1.0, 0.6))}, "sum to 1"),
    ({"fit.gbit": 1.0, "fit.by": "plan"}, "fit.by='plan'"),
    ({"budgets": ((0.5, 0.01), (1.0, 0.99))}, "but none has 0.5"),
    # without effect
    ({"density": 0.05}, "density=0.05 has no effect here: first_stage.density is"),
    (
        {"density": 0.05, "first_stage": {}, "algorithm": {"name": "fedavg"}},
        "density=0.05 has no effect here: 'fedavg' takes none",
    ),
    (
        {"server_optimizer.name": "adam", "algorithm": SPAFL, "first_stage": {}},
        "server_optimizer.name='adam' has no effect here",
    ),
    ({"init_what": "mask"}, "init_what='mask' has no effect here: it goes with i"),
    (
        {"first_stage": {"name": "snip", "epochs": 3, "density": 0.5}},
        "first_stage.epochs=3 has no effect here: 'snip' takes the bat",
    ),
    (
        {"system": "mobile", "deadline": {"seconds": 9.0, "quantile": 0.5}},
        "deadline.quantile=0.5 has no effect here: deadline.seconds is 9.0",
    ),
    (
        {"budgets": ((0.5, 0.5), (1.0, 0.5)), "cohort_size": 2},
        "budgets have no effect here, expected none, or a method that reads",
    ),
    ({"system": "iot", "deadline.over": 1.5}, "deadline.over=1.5 has no effect here"),
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
    ({"eval_every": 2.5}, "eval_every=2.5, expected an integer below 2**31"),
    ({"budgets": np.ones(3)}, "budgets of shape (3,), expected (2,)"),
    ({"budgets": [0.5, 0.0]}, "budgets=0.0, expected in (0, 1]"),
]


@pytest.mark.parametrize("settings, said", SETUPS, ids=[said for _, said in SETUPS])
def test_a_setup_is_refused(settings, said):
    x, y = np.zeros((8, 5), np.float32), np.arange(8) % 2
    data, model = from_arrays(x, y, num_clients=2), models.build("mlp", 2, (5,))
    stage = Stage(SimpleNamespace(clients=None, privacy=None), 1, 1)
    check_setup(Setup([stage], model, data))
    refused(lambda: check_setup(Setup([stage], model, data, **settings)), said)


def test_a_resumed_run_says_first_what_cannot_change(tmp_path):
    """The density of the first stage is not that of the configuration any more."""
    config, run = tiny_config(tmp_path), tmp_path / "run"
    config.density = config.first_stage.density
    run.mkdir()
    (run / "config.json").write_text(config.to_json())
    config.density = 0.2
    said = "density is 0.5 there and 0.2 here; a resumed run keeps its configuration"
    refused(lambda: experiment.run(config, run, resume=True, progress=False), said)


def test_what_a_first_stage_reads_is_its_own(tmp_path):
    config = tiny_config(tmp_path)
    own = {"name": "snip", "density": 0.5, "drop_last": True, "num_rounds": 1}
    config.epochs, config.first_stage = 3, own  # the main stage reads the epochs
    (first, main) = experiment.build(config).setup.stages
    assert (first.drop_last, main.drop_last) == (True, False)
    config.first_stage = {"name": "fedavg", "epochs": 3}
    experiment.build(config)


def test_budgets_of_natural_users_need_their_number(tmp_path):
    config = tiny_config(tmp_path)
    config.num_clients, config.budgets = 0, ((0.5, 0.5), (1.0, 0.5))
    said = "num_clients=0, expected their number"
    refused(lambda: build.build_budgets(freeze(config)), said)


def test_lists_and_whole_numbers_are_as_good_as_tuples_and_floats(tmp_path):
    config = tiny_config(tmp_path)
    read_back = config_dict.ConfigDict(config.to_dict())
    change(read_back, {"model.widths": [16], "optimizer.learning_rate": 1})
    freeze(read_back)


def test_a_field_of_an_earlier_version_that_is_empty_is_left_out():
    old = {"text_encoder": None, "observe_rounds": [], "hf": {"hash": None}}
    kept = freeze(fill_in(old | {"seed": 3}))
    assert kept.seed == 3 and not hasattr(kept, "text_encoder")
    said = "hf: field='hash'"
    refused(lambda: freeze(config_dict.ConfigDict({"hf": {"hash": 9}})), said)
    refused(lambda: fill_in({"text_encoder": "bert"}), "field='text_encoder'")
