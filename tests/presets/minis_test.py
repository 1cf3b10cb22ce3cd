"""The variant `mini` of every configuration: what it reads and gives; that it runs."""

import importlib
import json
import re

import pytest

from sparsefl_jax.config import build
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.data import samples
from sparsefl_jax.runs import experiment
from sparsefl_jax.system import shipped

CONFIGS = sorted(path.stem for path in shipped.folder("configs").glob("[!_]*.py"))
CONFIGS.remove("own_npz")  # the data of the user


def mini(name):
    """Returns the configuration, and the accuracy in percent that its file states."""
    module = importlib.import_module(f"configs.{name}")
    _, _, told = module.__doc__.partition("`mini`")
    stated = re.search(r"(\d+\.\d) %", told)
    assert stated, f"configs/{name}.py does not say what `mini` gave"
    return module.get_config("mini"), float(stated[1])


@pytest.mark.parametrize("name", CONFIGS)
def test_mini_reads_what_the_package_brings(name, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    config, _ = mini(name)
    freeze(config)
    assert config.dataset in samples.SAMPLES and not config.writers
    data = build.build_data(freeze(config))
    assert config.cohort_size <= len(data.train.size)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_mini_ends_at_the_accuracy_that_its_file_states(name, tmp_path):
    config, stated = mini(name)
    experiment.run(config, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert 100 * json.loads(lines[-1])["accuracy"] == pytest.approx(stated, abs=6)
