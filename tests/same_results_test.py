"""Results equal those of this branch's base, unless a commit says otherwise."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsefl_jax.algorithms import ALGORITHMS

SCRIPTS = Path(__file__).parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
import same_results  # noqa: E402
import same_results_tree  # noqa: E402


@pytest.fixture
def base():
    """Returns the commit to compare with; skips without git or a full clone."""
    try:
        return same_results.merge_base()
    except ValueError as error:
        pytest.skip(f"needs the commit that this branch began at: {error}")


def check(base, names):
    names, tolerance = same_results.expected(base, names)
    if not names:
        pytest.skip(f"commits since {base[:7]} say that these results change")
    found = same_results.compare(base, names, tolerance)
    assert found == {name: [] for name in names}


def test_commits_say_what_changes(monkeypatch):
    said = "\nfloats 1e-6\n\nfedavg (the mean is in float64)\nfloats 1e-7\n"
    monkeypatch.setattr(same_results, "git", lambda *_: said)
    assert same_results.expected("HEAD", ["fedavg", "pdst"]) == (["pdst"], 1e-6)
    monkeypatch.setattr(same_results, "git", lambda *_: "all (new streams)")
    assert same_results.expected("HEAD", ["fedavg", "pdst"]) == ([], None)
    monkeypatch.setattr(same_results, "git", lambda *_: "")
    assert same_results.expected("HEAD", ["fedavg"]) == (["fedavg"], None)


@pytest.mark.slow
def test_all_results_are_those_of_the_base(base):
    check(base, same_results_tree.RUNS)


def test_every_method_is_compared():
    sections = [
        section["name"]
        for algorithm, fields, _, _ in same_results_tree.RUNS.values()
        for section in (algorithm, fields.get("first_stage") or algorithm)
    ]
    assert set(sections) == set(ALGORITHMS)


def written(folder):
    """Writes the files of a run of two rounds."""
    (folder / "masks").mkdir(parents=True)
    records = [{"bits_up": 2**60 + r, "loss": 0.5, "m": {"g": r / 3}} for r in (1, 2)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(lines)
    np.save(folder / "masks" / "server_0_000001.npy", np.array([5, 7], np.uint8))
    models = {"w": np.ones(3, np.float32), "mask": np.array([True, False])}
    np.savez(folder / "models.npz", **models)
    return folder


def replaced(old, new):
    """Changes the text of the records."""

    def edit(folder):
        metrics = folder / "metrics.jsonl"
        metrics.write_text(metrics.read_text().replace(old, new))

    return edit


def other_weights(folder):
    with np.load(folder / "models.npz") as file:
        models = dict(file)
    models["w"][1] = np.nextafter(np.float32(1), np.float32(2))
    np.savez(folder / "models.npz", **models)


def removed(name):
    return lambda folder: (folder / name).unlink()


def other_mask(folder):
    np.save(folder / MASKS, np.array([5, 6], np.uint8))


MASKS = "masks/server_0_000001.npy"
EDITS = [  # by the least amount, what is said, and whether it is within 1e-6
    (
        replaced(str(2**60 + 1), str(2**60)),
        f"line 1: bits_up: {2**60 + 1}, now {2**60}",
        False,
    ),
    (other_mask, f"{MASKS}: array: uint8[2] [5 7]", False),
    (other_weights, "models.npz: w: float32[3] [1. 1. 1.]", True),
    (removed("models.npz"), "it failed here: it did not start", False),
]


@pytest.mark.parametrize("edit, line, within", EDITS)
def test_the_least_difference_is_seen(edit, line, within, tmp_path):
    old = written(tmp_path / "old")
    new = Path(shutil.copytree(old, tmp_path / "new"))
    assert same_results.differences(old, new) == []
    edit(new)
    told = same_results.differences(old, new)
    assert any(line in each for each in told), told
    assert (same_results.differences(old, new, 1e-6) == []) is within
