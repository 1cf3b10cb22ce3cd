"""Changes a configuration, reads command lines and checks refusals."""

import traceback
from pathlib import Path

import pytest
from absl import flags

from sparsefl_jax import launch
from sparsefl_jax.config import command_line
from sparsefl_jax.runs import simulate
from sparsefl_jax.system import membership

ROOT = Path(__file__).parent.parent


def change(config, values: dict) -> None:
    """Sets fields by dotted name, even to a wrong type."""
    for field, value in values.items():
        section, _, name = field.rpartition(".")
        (config[section] if section else config)[name] = value


def refused(call, said: str) -> None:
    """Checks that a call is refused in one line that says something."""
    with pytest.raises(ValueError) as caught:
        call()
    assert said in str(caught.value) and "\n" not in str(caught.value)


def given(monkeypatch, *arguments: str):
    """Returns the configuration of a command line."""
    values = flags.FlagValues()
    command_line.define_config(values)
    command_line.parse_flags(["launch.py", *arguments], values)
    return command_line.configuration(values)


def launched(monkeypatch, capsys, arguments: list[str]) -> tuple[int, str]:
    """Returns exit code and standard error of `launch.py`, without a new process."""
    values = flags.FlagValues()
    command_line.define_config(values)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(simulate, "simulate", None)
    monkeypatch.delenv("SPARSEFL_DEBUG", raising=False)
    try:
        with membership.guard():
            command_line.parse_flags(["launch.py", *arguments], values)
            launch.start_run(command_line.configuration(values), None)
    except SystemExit as ended:
        code = ended.code
    except Exception:  # as the interpreter does
        traceback.print_exc()
        code = 1
    return code, capsys.readouterr().err
