"""Bad data files: each is refused in one line that names it."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from sparsefl_jax.runs import experiment
from tests.refusals import refused
from tests.tiny import tiny_config

IMAGES = np.zeros((40, 2, 3, 1), np.float32)
LABELS = np.arange(40) % 4
GOOD = {"x": IMAGES, "y": LABELS, "x_test": IMAGES, "y_test": LABELS}


class Trap:
    """Creates a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def cut_off(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_zip(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.txt", "text")


DAMAGES = {
    "cut off": cut_off,
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no archive"),
    "other zip": other_zip,
    "lacks y": lambda path: np.savez(path, x=IMAGES, x_test=IMAGES, y_test=LABELS),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_files_are_refused(tmp_path, damage):
    config = tiny_config(tmp_path)
    config.dataset = str(tmp_path / "bad.npz")
    np.savez_compressed(tmp_path / "bad.npz", **GOOD)
    DAMAGES[damage](tmp_path / "bad.npz")
    refused(lambda: experiment.build(config), "bad.npz")


@pytest.mark.parametrize("key", list(GOOD))
def test_nothing_is_unpickled(tmp_path, key):
    config = tiny_config(tmp_path)
    config.dataset = str(tmp_path / "bad.npz")
    trap = np.array([Trap(tmp_path / "sprung")] * 40, object)
    np.savez(config.dataset, **GOOD | {key: trap})
    refused(lambda: experiment.build(config), "allow_pickle=False")
    assert not (tmp_path / "sprung").exists()
