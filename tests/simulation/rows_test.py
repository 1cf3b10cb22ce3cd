"""A store holds the rows that were written; a checkpoint has plain files."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from sparsefl_jax.core.types import ClientInfo
from sparsefl_jax.simulation import rows

N, WIDE = 50, 3000
SHAPES = {
    "bits": jax.ShapeDtypeStruct((N, 2), np.uint8),
    "half": jax.ShapeDtypeStruct((N,), ml_dtypes.bfloat16),
    "none": jax.ShapeDtypeStruct((N, 0), np.float32),
    "wide": jax.ShapeDtypeStruct((N, WIDE), np.float32),
}


def rows_of(ids, offset=0):
    """Makes rows that hold i + offset for client i."""
    value = np.asarray(ids) + offset

    def leaf(shape):
        column = value.reshape(-1, *[1] * (len(shape.shape) - 1))
        return np.broadcast_to(column, (len(value), *shape.shape[1:])).astype(
            shape.dtype
        )

    return jax.tree.map(leaf, SHAPES)


@pytest.fixture
def asked():
    return []


@pytest.fixture(params=["host", "disk"])
def store(request, asked, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))

    def make(first, info):
        assert len(info.index) == 4
        asked.extend(info.index.tolist())
        return rows_of(info.index, first)

    info = ClientInfo(np.arange(N), np.ones(N), np.ones(N))
    return rows.Store(SHAPES, info, make, 100, 4, request.param)


on_disk = pytest.mark.parametrize("store", ["disk"], indirect=True)


def same(got, want):
    assert all(v.dtype == SHAPES[name].dtype for name, v in got.items())
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_who_was_never_written_is_made_when_asked_for(store, asked):
    store.scatter(np.array([3, 40]), rows_of([9, 9]))
    store.scatter(np.array([3, 40]), rows_of([3, 40]))
    same(store.take(np.array([40, 3])), rows_of([40, 3]))
    assert asked == [] and store.ids.tolist() == [3, 40]
    ids = np.array([7, 40, 49, 7, 8, 9, 3])
    want = np.where(np.isin(ids, [3, 40]), ids, ids + 100)
    same(store.take(ids), rows_of(want))
    assert set(asked) == {7, 8, 9, 49}
    assert store.take(np.array([N]))["wide"].shape == (1, WIDE)
    assert set(asked) == {7, 8, 9, 49}


@on_disk
def test_files_have_no_name_and_take_the_space_of_what_is_written(store, tmp_path):
    assert list((tmp_path / "cache").iterdir()) == []
    store.scatter(np.array([7, 30]), rows_of([7, 30]))
    links = [Path(f"/proc/self/fd/{i}") for i in os.listdir("/proc/self/fd")]
    ours = [v for v in links if str(tmp_path / "cache") in os.path.realpath(v)]
    stats = [v.stat() for v in ours]
    assert max(v.st_size for v in stats) == 4 * N * WIDE
    assert sum(v.st_blocks for v in stats) * 512 < 4 * 10 * WIDE


@pytest.mark.parametrize(
    "block, place", [(2**26, np.asarray), (20_000, np.asarray), (20_000, jnp.asarray)]
)
def test_a_checkpoint_holds_who_took_part(store, tmp_path, monkeypatch, block, place):
    """Block by block, also of rows that are in no store."""
    monkeypatch.setattr(rows, "_BLOCK", block)
    ids = np.array([2, 4, 9, 30, 31])
    store.scatter(ids[::-1], rows_of(ids[::-1]))
    manifest = rows.save(tmp_path / "saved", store)
    size = sum(path.stat().st_size for path in (tmp_path / "saved").iterdir())
    assert size == 5 * (2 + 2 + 4 * WIDE + 4)
    assert rows.is_intact(tmp_path / "saved", manifest)
    whose, some = rows.load(tmp_path / "saved", manifest, SHAPES)
    saved = rows.Saved(100, whose, some)
    store.scatter(np.array([0]), rows_of([1]))  # of an earlier process
    store.scatter(ids, rows_of(ids, 7))
    store.load(saved, [9, 31, 5])
    same(store.take(np.array([0, 2, 9, 31])), rows_of([1, 9, 9, 31]))
    store.load(saved)
    same(store.take(ids), rows_of(ids))
    everyone = jax.tree.map(place, rows_of(range(N)))
    manifest = rows.save(tmp_path / "all", everyone)
    whose, got = rows.load(tmp_path / "all", manifest, SHAPES)
    np.testing.assert_array_equal(whose, np.arange(N))
    same(got, rows_of(range(N)))


def test_files_that_are_damaged_or_of_another_run_are_refused(store, tmp_path):
    store.scatter(np.array([1, 2]), rows_of([1, 2]))
    manifest = rows.save(tmp_path / "saved", store)
    other = SHAPES | {"bits": jax.ShapeDtypeStruct((N, 2), np.int8)}
    with pytest.raises(ValueError, match=r"does not fit this run.*uint8.*\bint8"):
        rows.load(tmp_path / "saved", manifest, other)
    path = tmp_path / "saved/3.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert not rows.is_intact(tmp_path / "saved", manifest)
