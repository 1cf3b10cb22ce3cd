"""The package runs a configuration however it is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = ("--config.num_rounds=1", "--config.first_stage.epochs=1")


def done(*command, **options):
    command = [*map(str, command)]
    ran = subprocess.run(command, capture_output=True, text=True, **options)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def runs(command, config, folder, path=None, flags=SHORT):
    """Runs a round of each stage of a `mini` in a folder; imports find `path` alone."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(path)} if path else {}
    folder.mkdir(exist_ok=True)
    flags = (f"--config={config}:mini", *flags, "--workdir=run")
    done(*command, *flags, cwd=folder, env=environment)
    assert (folder / "run/summary.json").is_file()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Returns a copy of what an installation is built from, as that writes into it."""
    pytest.importorskip("setuptools", "77", reason="needs setuptools 77, of [test]")
    tree = tmp_path_factory.mktemp("tree")
    for folder in ("sparsefl_jax", "configs", "studies"):
        junk = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tree / folder, ignore=junk)
    for file in ("pyproject.toml", "setup.cfg", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    return tree


@pytest.fixture(scope="module")
def installed(tree, tmp_path_factory):
    """Returns a folder with the wheel's files."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "-q")
    done(*pip, "wheel", *offline, "-w", folder, tree)
    (wheel,) = folder.glob("*.whl")
    done(*pip, "install", *offline, "--target", folder / "site", wheel)
    return folder / "site"


@pytest.mark.slow
def test_the_wheel_runs_a_mini_in_an_empty_folder(installed, tmp_path):
    assert (installed / "sparsefl_jax/shipped/studies/five_methods.py").is_file()
    command = sys.executable, installed / "bin/sparsefl"
    runs(command, "configs/fedprox_cifar10.py", tmp_path, installed, SHORT[:1])


@pytest.mark.parametrize("folder", ["configs", "studies"])
def test_what_travels_in_the_wheel_imports_the_package_alone(folder):
    for file in (ROOT / folder).glob("*.py"):
        assert f"from {folder}" not in file.read_text(), file
