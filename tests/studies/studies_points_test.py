"""The points of a study: what a sweep makes, how they are called, what is refused."""

import json

import numpy as np
import pytest

from sparsefl_jax import report
from sparsefl_jax.config.defaults import default_config, freeze
from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.presets import methods
from sparsefl_jax.runs import experiment
from sparsefl_jax.studies import grid, places, runner
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point
from tests.refusals import change, refused
from tests.tiny import tiny_config
from tests.tiny_study import points, write_study


@pytest.fixture
def study(tmp_path):
    write_study(tmp_path)
    return points(tmp_path)


NAMED = [  # axes, and the names that they make
    ("algorithm.name=fedavg,jmwst", ["fedavg", "jmwst"]),
    (
        "density=.05,.1; algorithm.name=fedavg,pdst",
        ["fedavg", "pdst-density=0.05", "pdst-density=0.1"],
    ),
    ("cohort_size=2,3; epochs=1", ["cohort_size=2-epochs=1", "cohort_size=3-epochs=1"]),
    ("seed=5,3,4", ["fedavg"]),
]


@pytest.mark.parametrize("text, names", NAMED, ids=[text for text, _ in NAMED])
def test_the_points_of_a_sweep(study, text, names):
    made = grid.sweep(study[0].config, text)
    assert [point.name for point in made] == names
    if text.startswith("seed"):
        assert list(made[0].seeds) == [3, 4, 5]


FOLLOWING = [  # a method, its field, and the value for 20 and 1000 rounds
    ("feddst", "algorithm.rounds", (20, 1000)),
    ("fedsparsify_local", "algorithm.rounds", (20, 1000)),
    ("pqsu", "first_stage.num_rounds", (4, 200)),
]


@pytest.mark.parametrize("name, field, values", FOLLOWING)
def test_what_a_method_brings_follows_the_rounds_of_a_sweep(name, field, values):
    axes = f"algorithm.name={name}; density=.2; num_rounds=20,1000"
    made = [p.config for p in grid.sweep(default_config(), axes)]
    assert tuple(flatten(vars(freeze(c)))[field] for c in made) == values


SWEPT = [
    ("a=1;a=2", "'a' twice"),
    ("algorithm.name=fedavg,pdst density=.05,.1", "expected FIELD=VALUE,VALUE; ..."),
    ("seed=0,2", "seeds without a gap"),
    ("seed=3..5", "seeds without a gap"),
    ("density=0.1", "density is an argument of none"),
    ("algorithm.mu=log(0,1)x3", "'algorithm.mu=log(0,1)x3', expected log(LOW,HIGH)xN"),
    ("algorithm.mu=log(.1,1)x0", "N >= 1"),
    ("algorithm.mu=uniform(low,1)x3", "expected log(LOW,HIGH)xN"),
    ("epochs=uniform(1,2)x3; algorithm.mu=log(.1,1)x2", "as many values of each"),
    ("optimizer.learning_rate=.10000001,.10000002", "both called 'learning_rate=0.1'"),
]


@pytest.mark.parametrize("text, said", SWEPT)
def test_a_sweep_that_is_refused(study, text, said):
    refused(lambda: grid.sweep(study[0].config, text), said)


def test_random_values_are_drawn_together_by_the_studys_seed():
    text = "optimizer.learning_rate=log(.01,1)x99; algorithm.mu=uniform(0,.5)x99"
    config, other = default_config(), default_config(seed=1)
    made = grid.sweep(config, f"algorithm.name=fedprox; {text}")
    assert [p.name for p in made] == [
        f"fedprox-learning_rate={p.config.optimizer.learning_rate:g}"
        f"-mu={p.config.algorithm.mu:g}"
        for p in made
    ]
    assert made[:9] == grid.sweep(config, f"algorithm.name=fedprox; {text}")[:9]
    rates = np.array([p.config.optimizer.learning_rate for p in made])
    shares = np.array([p.config.algorithm.mu for p in made])
    assert len(set(rates)) == len(set(shares)) == 99
    assert min(rates) >= 0.01 and max(rates) <= 1
    assert min(shares) >= 0 and max(shares) <= 0.5
    assert 0.3 < np.mean(rates < 0.1) < 0.7  # half of the decades
    assert 0.3 < np.mean(shares < 0.25) < 0.7
    assert abs(np.corrcoef(np.log(rates), shares)[0, 1]) < 0.3
    again = grid.sweep(other, f"algorithm.name=fedprox; {text}")
    assert not set(rates) & {p.config.optimizer.learning_rate for p in again[:9]}


# One method for each set of what methods bring, and one that brings nothing.
NAMES = {id(b): name for name, b in methods.BROUGHT.items()}


@pytest.mark.parametrize("name", [*NAMES.values(), "nst"])
def test_a_study_can_name_every_method(tmp_path, name):
    config = tiny_config(tmp_path)
    # Of FLASH's heterogeneous clients, whole numbers of 30, 30 and 40 % take part.
    config.num_rounds, config.num_clients, config.cohort_size = 10, 10, 10
    methods.choose(config, name, density=0.4)
    on_disk.check_points([Point(name, config)])
    plan = experiment.build(config)
    assert len(plan.stages) == 1 + (config.first_stage.get("name") is not None)


def chosen(name, **fields):
    """Returns a configuration of 20 rounds that becomes one of another method."""
    config = default_config()
    config.num_rounds = 20
    for field, value in fields.items():
        config[field] = value
    methods.choose(config, name, density=0.2)
    return default_config(**vars(freeze(config)))


def test_a_method_brings_what_its_paper_runs():
    config = chosen("hetero_jmwst")
    assert config.algorithm.densities == (0.1, pytest.approx(0.15), 0.2)
    assert [share for _, share in config.budgets] == [0.3, 0.3, 0.4]
    assert [budget for budget, _ in config.budgets] == list(config.algorithm.densities)
    first = config.first_stage
    assert (first.name, first.num_rounds, first.epochs) == ("sensitivity", 1, 10)
    assert first.density == 0.2
    config = chosen("grasp")
    assert (config.algorithm.name, config.first_stage.name) == ("spdst", "grasp")
    assert (config.first_stage.cohort_size, config.first_stage.num_rounds) == (1, 1)
    config = chosen("prunefl")
    for section in (config.first_stage, config.algorithm):
        assert (section.max_density, section.constant_time) == (0.2, 1e9)
    assert chosen("fedavg").density is None and not chosen("fedavg").first_stage


def test_a_method_keeps_what_a_configuration_has_set():
    own = {"name": "spdst", "prunable": ("fc*/kernel",), "keep_optimizer": True}
    kept = {"name": "sensitivity", "epochs": 3, "density": 0.5}
    config = chosen("jmwst", algorithm=own, first_stage=kept)
    assert config.algorithm.prunable == ("fc*/kernel",)
    assert (config.first_stage.epochs, config.first_stage.density) == (3, 0.2)
    config = chosen("snip", algorithm=own, first_stage=kept)
    assert config.first_stage.prunable == ("fc*/kernel",)
    assert config.algorithm.keep_optimizer
    same = chosen("spdst", algorithm=own, first_stage=kept)
    assert same.first_stage.epochs == 3 and same.algorithm.keep_optimizer


NO_FOLDERS = ["a/b", "..", 201 * "a", "lock", "report.html"]


@pytest.mark.parametrize("name", NO_FOLDERS)
def test_a_point_whose_name_is_no_folder(study, name):
    refused(lambda: on_disk.check_points([Point(name, study[0].config)]), repr(name))


DAMAGED = [  # names and seeds in the file of a study
    ("../../else", 1, "Expected `str` matching regex"),
    ("a", 1e12, "Expected `int`, got `float` - at `$.points[...].seeds`"),
    ("a", 10**12, "Expected `int` <= 10000"),
]


@pytest.mark.parametrize("name, seeds, said", DAMAGED)
def test_a_file_of_a_study_that_names_what_is_no_point(tmp_path, name, seeds, said):
    held = {"points": {name: {"seed": 0, "seeds": seeds}}}
    (tmp_path / "study.json").write_text(json.dumps(held))
    for call in (
        lambda: on_disk.read(tmp_path),
        lambda: places.run_point(tmp_path, name),
        lambda: report.read_groups([tmp_path]),
    ):
        refused(call, said)


ALIKE = [  # what the second point has of its own, and the refusal
    ({"partition_seed": 1}, "run 'fedprox' (fedprox) has another partition than"),
    ({"algorithm": {"name": "local_only"}}, "has another metric than 'fedavg'"),
]


@pytest.mark.parametrize("own, said", ALIKE)
def test_points_share_data_partition_and_metric(study, tmp_path, own, said):
    change(study[1].config, own)
    refused(lambda: runner.run(study, tmp_path / "out"), said)
    assert not (tmp_path / "out").exists()
