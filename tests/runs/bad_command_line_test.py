"""Bad command lines and configuration files: each is refused in one line."""

import pytest

from sparsefl_jax import models
from sparsefl_jax.runs.config import build
from sparsefl_jax.runs.config.defaults import freeze
from tests.refusals import ROOT, given, launched
from tests.tiny import network

FILE = """
from sparsefl_jax.runs.config.defaults import default_config

def get_config(arg):
    config = default_config()
    {}
    return config
"""
MINI = "configs/flash_cifar10.py:mini"
LINES = [
    (
        [f"--config={MINI}", "--config.cohort_size=ten"],
        "cohort_size='ten', expected an integer",
    ),
    (["--config=configs/no_such.py"], "--config=configs/no_such.py: there is no such"),
]
FILES = [
    ("config.num_clinets = 3", "did you mean 'num_clients'"),
    ("raise ValueError('first\\nsecond')", "first second"),
    ("config = )", "a_config.py, line 6"),
]


@pytest.mark.parametrize("arguments, said", LINES, ids=lambda v: str(v)[-40:])
def test_a_command_line_is_refused(monkeypatch, capsys, arguments, said):
    code, err = launched(monkeypatch, capsys, arguments)
    assert code == 2 and err.startswith("error: ") and said in err
    assert err.count("\n") == 1 and "\\n" not in err


SWITCHED = [  # a file, flags, a section, what it must hold
    (
        "flash_cifar10.py:mini",
        "--config.model.name=mlp --config.model.dtype=bfloat16",
        "model",
        {"name": "mlp", "widths": models.MODELS["mlp"].__kwdefaults__["widths"]},
    ),
    (
        "flash_cifar10.py:mini",
        "--config.algorithm.name=tests.tiny:a_method --config.algorithm.strength=2 "
        "--config.first_stage.name=none",
        "algorithm",
        {"name": "tests.tiny:a_method", "strength": 2, "weighting": "examples"},
    ),
]


@pytest.mark.parametrize("file, line, field, said", SWITCHED, ids=str)
def test_a_name_on_the_command_line_takes_its_own_arguments(
    monkeypatch, file, line, field, said
):
    config = given(monkeypatch, f"--config={ROOT}/configs/{file}", *line.split())
    config = freeze(config)
    assert {key: getattr(config, field).get(key) for key in said} == said
    if field != "model":
        build.build_stages(freeze(config), network(config.model["name"]))


@pytest.mark.parametrize("line, said", FILES)
def test_a_configuration_file_is_refused(tmp_path, monkeypatch, capsys, line, said):
    (tmp_path / "a_config.py").write_text(FILE.replace("{}", line, 1))
    arguments = [f"--config={tmp_path}/a_config.py:arg"]
    code, err = launched(monkeypatch, capsys, arguments)
    assert code == 2 and err.startswith("error: ") and said in err
    assert err.count("\n") == 1
