"""Bad arrays and data files: each is refused in one line that names it."""

import math
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sparsefl_jax.data import sources
from sparsefl_jax.runs import experiment
from tests.refusals import refused
from tests.tiny import tiny_config

NAN, INF = math.nan, math.inf
IMAGES = np.zeros((40, 2, 3, 1), np.float32)
LABELS = np.arange(40) % 4
GOOD = {"x": IMAGES, "y": LABELS, "x_test": IMAGES, "y_test": LABELS}


class Trap:
    """Creates a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


BAD_ARRAYS = [
    ({"y": LABELS[:39]}, "y has 39 labels for 40 samples"),
    ({"x_test": IMAGES[:39]}, "y_test has 40 labels for 39 samples"),
    ({"y": LABELS - 1}, "labels from -1"),
    ({"y": LABELS + 2**32}, "labels from 4294967296"),
    ({"y": LABELS * 10**6}, "labels up to 3000000"),
    ({"y": LABELS / 2}, "expected integers"),
    ({"x": IMAGES + NAN}, "x has values that are not finite"),
    ({"x_test": IMAGES - INF}, "x_test has values that are not finite"),
    ({"x": IMAGES.astype(float) + 1e39}, "x has values that are not finite"),
    ({"x": IMAGES[:, :1]}, "x_test has samples"),
    ({"x": IMAGES[:0], "y": LABELS[:0]}, "x has shape (0, 2, 3, 1)"),
    ({"users": np.arange(39)}, "users has shape (39,)"),
]


@pytest.mark.parametrize("arrays, said", BAD_ARRAYS, ids=lambda v: str(v)[:40])
def test_arrays_are_refused(tmp_path, arrays, said):
    config = tiny_config(tmp_path)
    config.dataset = str(tmp_path / "bad.npz")
    np.savez(config.dataset, **GOOD | arrays)
    refused(lambda: experiment.build(config), said)


def write_damaged(path: Path, damage: str) -> None:
    """Writes a good archive and damages it."""
    np.savez_compressed(path, **GOOD)
    whole = path.read_bytes()
    if damage == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("no archive")
    elif damage == "array":
        with open(path, "wb") as file:
            np.save(file, IMAGES)
    elif damage == "flipped":  # the compressed bytes of the first array
        path.write_bytes(whole[:50] + b"\xff" * 20 + whole[70:])
    elif damage == "other zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x.txt", "text")
    elif damage == "lacks y":
        np.savez(path, x=IMAGES, x_test=IMAGES, y_test=LABELS)
    else:
        path.unlink()


DAMAGES = (
    "cut off",
    "empty",
    "text",
    "array",
    "flipped",
    "other zip",
    "lacks y",
    "absent",
)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("field", ["dataset", "writers"])
def test_files_are_refused(tmp_path, damage, field):
    config = tiny_config(tmp_path)
    config[field] = str(tmp_path / "bad.npz")
    write_damaged(tmp_path / "bad.npz", damage)
    refused(lambda: experiment.build(config), "bad.npz")


def test_a_folder_of_tables_is_shown_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("patterns").mkdir()
    with pytest.raises(ValueError, match=r"='patterns' is a folder.* hf:\./patterns"):
        sources.load("patterns")


@pytest.mark.parametrize("key", list(GOOD))
def test_nothing_is_unpickled(tmp_path, key):
    config = tiny_config(tmp_path)
    config.dataset = str(tmp_path / "bad.npz")
    trap = np.array([Trap(tmp_path / "sprung")] * 40, object)
    np.savez(config.dataset, **GOOD | {key: trap})
    refused(lambda: experiment.build(config), "it holds Python objects")
    assert not (tmp_path / "sprung").exists()
