"""Every configuration is planned with every method of its paper, on `mini`'s data."""

import importlib
from pathlib import Path

import pytest

import configs
from configs import compressed_cifar10, own_npz
from sparsefl_jax.presets import complement, fedsparsify, flash, spafl
from sparsefl_jax.runs import experiment
from sparsefl_jax.runs.plan import plan
from tests.tiny import write_images

VARIANTS = ("without13", "thresholds_only", "fedpm,initial", "release", "local,release")
METHODS = {
    "flash": flash.METHODS,
    "spafl": (*spafl.METHODS, *VARIANTS),
    "fedsparsify": fedsparsify.METHODS,
    "complement": complement.METHODS,
    "compressed": tuple(compressed_cifar10.RIVALS),
}  # of files without methods of their own; of others, the default
FILES = sorted(p.stem for p in Path(configs.__file__).parent.glob("[a-z]*.py"))
FILES.remove("own_npz")
QUICK = ("complement_sst2", "cs")  # the others take long to trace


def cases():
    for file in FILES:
        module = importlib.import_module(f"configs.{file}")
        usual = METHODS.get(file.split("_")[0], ("",))
        for method in getattr(module, "METHODS", usual):
            marks = () if (file, method) == QUICK else pytest.mark.slow
            yield pytest.param(module, method, marks=marks, id=f"{file}:{method}")


def check(config):
    """Plans all stages, each of which has the rounds that are asked for."""
    setup = experiment.build(config).setup
    assert len(plan(setup).stages) == 1 + bool(config.first_stage)
    assert setup.stages[-1].num_rounds == config.num_rounds > 0


@pytest.mark.parametrize("module, method", list(cases()))
def test_every_file_is_planned_with_every_method(module, method, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    check(module.get_config(f"{method},mini".removeprefix(",")))


def test_a_file_of_ones_own_is_planned(tmp_path):
    write_images(tmp_path / "mine.npz", 240)
    check(own_npz.get_config(str(tmp_path / "mine.npz")))
