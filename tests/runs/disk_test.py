"""Full disks, foreign files, absent homes: a run continues, or a line says why not."""

import contextlib
import gc
import os
import resource
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.core.types import ClientInfo
from sparsefl_jax.runs import checkpoint, records
from sparsefl_jax.runs.checkpoint import Snapshot
from sparsefl_jax.simulation import placement, rows
from sparsefl_jax.system import files

pytestmark = pytest.mark.slow


FOREIGN = ("a_b_c.npy", "my_server_1_2.npy", "server_1.npy", "notes.txt")


def test_foreign_files_in_masks_do_not_block_a_resume(tmp_path):
    folder = tmp_path / "masks"
    (folder / "server_1_000009.npy").mkdir(parents=True)
    for name in (*FOREIGN, "server_1_000002.npy", "server_1_000003.npy"):
        (folder / name).touch()
    records.remove_later_masks(tmp_path, SimpleNamespace(stage=1, round=2))
    left = {path.name for path in folder.iterdir()}
    assert left == {*FOREIGN, "server_1_000002.npy", "server_1_000009.npy"}


ROWS = {"v": np.ones((3, 2), np.float32)}
MODEL = sfl.SparseModel(ROWS, {"v": ROWS["v"] > 0}, {})


def saved(path, kept=ROWS):
    """Saves a checkpoint in which clients keep rows, and returns what lies there."""
    state = placement.State({"w": np.ones(2, np.float32)}, kept, np.ones(3, np.int32))
    at = Snapshot(0, 1, state, 0, 0.0)
    checkpoint.save(path, at, {"global": MODEL}, {})
    return {path.name for path in (path / "clients").iterdir()}


def test_a_checkpoint_leaves_no_older_rows_and_what_is_foreign(tmp_path):
    assert saved(tmp_path) == {"1"}
    (tmp_path / "clients/.DS_Store").touch()
    (tmp_path / "clients/mine").mkdir()
    assert saved(tmp_path) == {".DS_Store", "mine", "2"}
    assert saved(tmp_path, ()) == {".DS_Store", "mine"}  # of a stage without rows


@contextlib.contextmanager
def full_disk(size=0):
    """Lets no file grow above a size in the context; a write fails after what fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def grown(path):
    os.environ["SPARSEFL_CACHE_DIR"] = str(path)
    info = ClientInfo(np.arange(3), np.ones(3), np.ones(3))
    shapes = {"v": jax.ShapeDtypeStruct((3, 4), np.float32)}
    rows.Store(shapes, info, lambda *_: None, None, 1, "disk")


WRITERS = {
    "config.json": lambda path: files.write_text(path, "{}"),
    "partition.npy": lambda path: files.write_array(path, np.ones(3)),
    "model.safetensors": lambda path: sfl.save_sparse(path, MODEL),
    "0.bin": lambda path: rows.save(path.parent, ROWS),
    "checkpoint.npz": lambda path: saved(path.parent),
    "rows": grown,
}


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_full_disk_is_told_with_the_file_s_name(tmp_path, monkeypatch, name):
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path))
    with full_disk(), pytest.raises(OSError, match=name) as caught:
        WRITERS[name](tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_one_line(tmp_path, monkeypatch):
    """Where a part fits, no file that is deleted says later that it is not closed."""
    rng, unraised = np.random.default_rng(0), []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    params = {f"w{i}": np.float32(rng.normal(size=(90, 90))) for i in range(40)}
    at = Snapshot(0, 1, placement.State(params, (), np.ones(3, np.int32)))
    said = f"{tmp_path}/checkpoint.npz could not be written: "
    with full_disk(20_000):
        with pytest.raises(OSError, match=said) as caught:
            checkpoint.save(tmp_path, at, {}, {})
        assert "\n" not in str(caught.value)
        del caught
        gc.collect()
    assert not unraised
