"""The points of a study: what a sweep makes, how they are called, what is refused."""

import json
import re

import pytest

from sparsefl_jax import report
from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.presets import methods
from sparsefl_jax.runs import experiment, fit_rounds
from sparsefl_jax.runs.config.defaults import default_config, freeze
from sparsefl_jax.studies import command, grid, places, runner
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
    ("optimizer.learning_rate=1e-3", ["learning_rate=0.001"]),
    ("model.name=mlp,conv4", ["mlp", "conv4"]),
    ("seed=3..5", ["fedavg"]),
]


@pytest.mark.parametrize("text, names", NAMED, ids=[text for text, _ in NAMED])
def test_the_points_of_a_sweep(study, text, names):
    made = grid.sweep(study[0].config, text)
    assert [point.name for point in made] == names
    if text.startswith("seed"):
        assert list(made[0].seeds) == [3, 4, 5]


FOLLOWING = [  # a method, its field, and the value for 20 and 1000 rounds
    ("feddst", "algorithm.adjust_until", (10, 500)),
    ("fedrts", "algorithm.adjust_until", (12, 600)),
    ("fedsparsify_local", "algorithm.rounds", (20, 1000)),
    ("pqsu", "first_stage.num_rounds", (4, 200)),
    ("pqsu", "num_rounds", (16, 800)),
]


@pytest.mark.parametrize("name, field, values", FOLLOWING)
def test_what_a_method_brings_follows_the_rounds_of_a_sweep(name, field, values):
    axes = f"algorithm.name={name}; density=.2; num_rounds=20,1000"
    made = [p.config for p in grid.sweep(default_config(), axes)]
    assert tuple(flatten(vars(freeze(c)))[field] for c in made) == values


def test_all_clients_of_a_sweep_score_the_weights():
    axes = "algorithm.name=ssfl; density=.2; num_clients=50,400"
    made = grid.sweep(default_config(), axes)
    assert [p.config.first_stage.cohort_size for p in made] == [50, 400]


PARSED = [
    (" a = x , 1e-3;b.c=(1,2),[3, 4];", {"a": ["x", 1e-3], "b.c": [(1, 2), [3, 4]]}),
    ("seed=0..2,7", {"seed": [0, 1, 2, 7]}),
    ("a=-1..1; b=None,True", {"a": [-1, 0, 1], "b": [None, True]}),
]


@pytest.mark.parametrize("text, axes", PARSED)
def test_a_sweep_is_parsed(text, axes):
    assert grid.parse(text) == axes


SWEPT = [
    ("a", "--sweep has 'a', expected FIELD=VALUE"),
    ("a=1;a=2", "'a' twice"),
    (" ; ", "expected FIELD=VALUE"),
    ("algorithm.name=fedavg,pdst density=.05,.1", "expected ; before density="),
    ("num_rounds=2, seed =0..2", "expected ; before seed="),
    ("seed=0,2", "seeds without a gap"),
    ("seed=lr", "seed=['lr'], expected whole numbers"),
    ("algorithm.name=3", "algorithm.name='3'"),
    ("algorithm.nam=fedavg", "algorithm.nam is an argument of none"),
    ("cohort_sise=3", "did you mean 'cohort_size'"),
    ("density=0.1", "density is an argument of none"),
    ("algorithm.name=fedag", "fedavg"),
    ("optimizer.learning_rate=.10000001,.10000002", "both called 'learning_rate=0.1'"),
]


@pytest.mark.parametrize("text, said", SWEPT)
def test_a_sweep_that_is_refused(study, text, said):
    refused(lambda: grid.sweep(study[0].config, text), said)


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


NO_FOLDERS = ["", "a/b", "jobs", 201 * "a", "report.html.tmp"]


@pytest.mark.parametrize("name", NO_FOLDERS)
def test_a_point_whose_name_is_no_folder(study, name):
    refused(lambda: on_disk.check_points([Point(name, study[0].config)]), repr(name))


DAMAGED = [  # names and seeds in the file of a study
    ("../../else", 1, "a point '../../else'"),
    ("a", 1e12, "Expected `int`, got `float` - at `$.points[...].seeds`"),
    ("a", 10**12, "of 1000000000000 seeds"),
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


def test_a_file_may_label_its_points(tmp_path):
    write_study(tmp_path)
    file = tmp_path / "labelled.py"
    file.write_text(
        "from tests.tiny_study import points\nfrom pathlib import Path\n"
        "def get_study(arg):\n"
        "    first, second = points(Path(__file__).parent)\n"
        "    return [(first.name, first.config, 'A'), second]\n"
    )
    assert [point.label for point in on_disk.load(str(file))] == ["A", ""]


def test_a_file_without_a_study_is_refused(tmp_path):
    (tmp_path / "other.py").write_text("x = 1\n")
    refused(lambda: on_disk.load(str(tmp_path / "other.py")), "there is no get_study")


@pytest.mark.slow
def test_what_is_known_of_a_study_runs_nothing(tmp_path, monkeypatch):
    """Two points, of which one has a budget that a pilot would have to measure."""
    write_study(tmp_path)
    dense, other = points(tmp_path, rounds=3)
    with other.config.unlocked(), other.config.ignore_type():
        methods.choose(other.config, "jmwst", density=0.5)
        other.config.fit.gbit, other.config.fit.pilot = 1e-4, 2
        other.config.optimizer.learning_rate = 0.2
    monkeypatch.setattr(fit_rounds, "pilot", None)
    text = runner.describe([dense._replace(label="Dense"), other]).splitlines()
    assert text[0].split()[:4] == ["point", "seeds", "rounds", "bits"]
    # An MLP of 6 x 16 + 16 + 16 x 4 + 4 weights: 3 clients, both ways.
    bits = 3 * 2 * 32 * (6 * 16 + 16 + 16 * 4 + 4)
    rows = [re.split(" {2,}", line) for line in text[1:3]]
    assert rows[0][:4] == ["Dense", "2", "3", f"{bits / 1e3:.1f} kbit"]
    assert rows[1][2] == "by a pilot" and "at least" in text[2]
    assert text[4].startswith("2 points, 4 runs; ")
    assert "  Dense: optimizer.learning_rate=0.1" in text
    assert not list(tmp_path.glob("*/seed_*"))


@pytest.mark.parametrize("options", [{"jobs": 2}, {"launcher": "slurm"}])
def test_a_plan_reads_no_flags_of_a_run(tmp_path, options):
    file = write_study(tmp_path)
    said = f"--{[*options][0]} is not read beside --dry_run"
    plan = lambda: command.run(str(file), None, None, None, dry_run=0, **options)  # noqa: E731
    refused(plan, said)


UNFIT = [  # options, and the refusal
    ("", "expected --launcher_options=timeout_min=MINUTES"),
    ("timeout_min=5,timeout_mn=10", "timeout_mn"),
    ("timeout_min=soon", "timeout_min"),
    ("timeout_min=5,slurm_prtition=gpu", "prtition"),
]


@pytest.mark.parametrize("options, said", UNFIT)
def test_options_that_are_refused(options, said, tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="needs the extra 'cluster'")
    (tmp_path / "srun").write_text("")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(lambda: places.slurm(tmp_path, options), said)


def test_a_method_of_ones_own_joins_the_five():
    load = on_disk.load
    five, six = load("five_methods"), load("five_methods:pdst")
    assert six[: len(five)] == five
    added = [(p.config.algorithm.name, p.config.density) for p in six[len(five) :]]
    assert added == [("pdst", 0.1), ("pdst", 0.3)]
