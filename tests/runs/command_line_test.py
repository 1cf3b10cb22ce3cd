"""What the command line tells: its help, the fields, what a wrong field meant."""

import inspect
import os
import subprocess
import sys

import pytest

from sparsefl_jax.runs import cli
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.runs.config import defaults, fields
from tests.refusals import ROOT, given, launched
from tests.tiny import tiny_config

MINI = "configs/flash_cifar10.py:mini"
ENTRIES = [(f, n) for f, t in fields.TABLES.items() for n in t if f != "first_stage"]


def rows(text):
    """Reads the rows of a listing: name, type, default, line."""
    cells = (line.split("  ") for line in text.splitlines())
    return {c[0]: [x.strip() for x in c[1:] if x.strip()] for c in cells if len(c) > 2}


def test_every_field_has_a_line():
    listed = rows(cli.listing())
    usual = run_folder.flatten(defaults.default_config().to_dict())
    assert listed.keys() >= usual.keys()
    assert all(0 < len(line) < 70 for line in fields.MEANINGS.values())


@pytest.mark.parametrize("field, name", ENTRIES, ids=str)
def test_every_argument_of_every_entry_is_explained(field, name):
    text = inspect.getdoc(fields.factory(field, name))
    for key in fields.arguments(field, name):
        assert key in text or f"{field}.{key}" in fields.MEANINGS, key


def test_a_section_lists_what_its_name_takes_and_what_is_set(tmp_path):
    config = tiny_config(tmp_path)
    config.algorithm = {"name": "fedprox", "mu": 0.5}
    told = cli.listing("algorithm", config)
    assert told.startswith("fedprox: FedAvg whose local loss has the term mu / 2")
    assert "mu: strength of the proximal term" in told
    mu = ["a finite number, at least 0", "0.01", "(here 0.5)"]
    assert rows(told)["algorithm.mu"] == mu
    assert rows(told)["algorithm.weighting"][0] == "one of examples, uniform"
    assert {name for name in rows(told) if name[:10] == "algorithm."} == {
        f"algorithm.{name}" for name in ("name", "mu", "keep_optimizer", "weighting")
    }
    assert rows(cli.listing("pqsu"))["algorithm.density"][1] == "required"
    with pytest.raises(ValueError, match=r"^--fields='fedprx' \(did you mean 'f") as e:
        cli.listing("fedprx")
    names = str(e.value).partition("expected one of ")[2].split(", ")
    assert "fedprox" in names and len(names) == len(set(names))


GUESSES = [
    ("optimizer.learnin_rate", "learning_rate"),
    ("rounds", "num_rounds"),
    ("model.widht", "widths"),
]


@pytest.mark.parametrize("said, meant", GUESSES)
def test_an_unknown_field_is_guessed(monkeypatch, capsys, said, meant):
    arguments = [f"--config={MINI}", f"--config.{said}=1"]
    code, err = launched(monkeypatch, capsys, arguments)
    field = said.rpartition(".")[2]
    head = f"field={field!r} (did you mean {meant!r}?), expected one of "
    assert code == 2 and head in err and err.count("\n") == 1


def test_a_field_without_a_configuration_asks_for_one(monkeypatch, capsys):
    code, err = launched(monkeypatch, capsys, ["--config.system=mobile"])
    said = "error: --config.FIELD=VALUE is set, expected --config=FILE with it\n"
    assert code == 2 and err == said


def test_arguments_that_a_section_may_hold_can_be_set(monkeypatch):
    config = given(
        monkeypatch,
        f"--config={ROOT}/configs/fedprox_cifar10.py",
        "--config.optimizer.nesterov=True",
        "--config.partition.test_fraction=.1",
    )
    assert config.optimizer.nesterov is True
    assert config.partition.test_fraction == 0.1


def test_none_is_the_value_of_a_field_that_may_have_none(monkeypatch):
    """Of every type, also where a file has set one."""
    unset = ("fit.gbit", "fit.pilot", "lr_horizon", "optimizer.momentum", "data_dir")
    usual = run_folder.flatten(defaults.default_config().to_dict())
    assert [usual.get(field) for field in unset] == [None] * 5
    flags = "--config.lr_horizon=7", *(f"--config.{field}=None" for field in unset)
    config = given(monkeypatch, f"--config={ROOT}/{MINI}", *flags)
    flat = run_folder.flatten(config.to_dict())
    assert [flat[field] for field in unset] == [None] * 5


METHOD = """
from sparsefl_jax.algorithms import fedavg

def mine(model, optimizer, *, strength=1.0):
    '''Averages.'''
    return fedavg(model, optimizer)
"""


def test_a_method_in_the_current_folder_is_found(tmp_path):
    """launch.py is elsewhere; without its folder Python would not find the module."""
    (tmp_path / "my_module.py").write_text(METHOD)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, ROOT / "launch.py", f"--config={ROOT / MINI},fedavg"]
    command += ["--config.algorithm.name=my_module:mine", "--fields=algorithm"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("my_module:mine: Averages.\n")


def test_help_is_printed_and_ends_the_process():
    """Instead of absl's own, which comes with --helpfull."""
    command = [sys.executable, ROOT / "launch.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    said = "Runs a method of sparse federated learning as a configuration"
    assert done.returncode == 0 and done.stdout.startswith(said)
    assert "--wait_minutes" in done.stdout
