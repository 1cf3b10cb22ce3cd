"""What the command line tells: its help, the fields, what a wrong field meant."""

import inspect
import os
import subprocess
import sys

import pytest

from sparsefl_jax.config import fields
from tests.refusals import ROOT

MINI = "configs/flash_cifar10.py:mini"
ENTRIES = [(f, n) for f, t in fields.TABLES.items() for n in t if f != "first_stage"]


@pytest.mark.parametrize("field, name", ENTRIES, ids=str)
def test_every_argument_of_every_entry_is_explained(field, name):
    text = inspect.getdoc(fields.factory(field, name))
    for key in fields.arguments(field, name):
        assert key in text or f"{field}.{key}" in fields.MEANINGS, key


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
