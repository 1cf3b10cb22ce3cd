"""Rows on disk: files hold the written rows; a checkpoint has plain files."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from sparsefl_jax.simulation import disk_store

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
    return {
        name: np.broadcast_to(
            value.reshape(-1, *[1] * (len(v.shape) - 1)), (len(value), *v.shape[1:])
        ).astype(v.dtype)
        for name, v in SHAPES.items()
    }


@pytest.fixture
def asked():
    return []


@pytest.fixture
def rows(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))

    def make(first, ids):
        assert len(ids) == 4
        asked.extend(ids.tolist())
        return rows_of(ids, first)

    return disk_store.Rows(SHAPES, 100, make, 4)


def same(got, want):
    assert all(v.dtype == SHAPES[name].dtype for name, v in got.items())
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_who_was_never_written_is_made_when_asked_for(rows, asked):
    rows.scatter(np.array([3, 40, N, N]), rows_of([3, 40, 0, 0]))
    same(rows.take(np.array([40, 3])), rows_of([40, 3]))
    assert asked == []
    ids = np.array([7, 40, 49, 7, 8, 9, 3])
    want = np.where(np.isin(ids, [3, 40]), ids, ids + 100)
    same(rows.take(ids), rows_of(want))
    assert set(asked) == {7, 8, 9, 49}
    assert rows.take(np.array([N]))["wide"].max() == 0 and set(asked) == {7, 8, 9, 49}


def test_files_grow_with_who_takes_part_and_have_no_name(rows, tmp_path):
    size, rng = [], np.random.default_rng(0)
    order = rng.permutation(N)
    for ids in np.split(order, 10):
        rows.scatter(ids, rows_of(ids, 5))
        rows.scatter(ids, rows_of(ids))  # takes no new place
        size.append(rows.num_bytes)
        same(rows.take(ids), rows_of(ids))
    each = size[-1] // N
    assert size[0] == 5 * each and size[-1] == N * each
    assert all(
        a <= b <= 1.25 * a or b <= a + 5 * each
        for a, b in zip(size, size[1:], strict=False)
    )
    assert list((tmp_path / "cache").iterdir()) == []
    np.testing.assert_array_equal(rows.ids, order)
    same(rows.take(np.arange(N)), rows_of(np.arange(N)))


def test_a_full_disk_is_an_error(rows, monkeypatch):
    def full(file, first, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        rows.scatter(np.array([1]), rows_of([1]))


@pytest.mark.parametrize("block", [2**26, 20_000])
def test_a_checkpoint_holds_who_took_part(rows, tmp_path, monkeypatch, block):
    monkeypatch.setattr(disk_store, "_BLOCK", block)
    ids = np.array([9, 2, 30, 31, 4])
    rows.scatter(ids, rows_of(ids))
    told = disk_store.save(tmp_path / "saved", rows)
    size = sum(path.stat().st_size for path in (tmp_path / "saved").iterdir())
    assert size == 5 * (2 + 2 + 4 * WIDE + 4)
    assert disk_store.intact(tmp_path / "saved", told)
    whose, some = disk_store.load(tmp_path / "saved", told, SHAPES)
    saved = disk_store.Saved(100, whose, some)
    rows.scatter(np.array([0]), rows_of([1]))  # of an earlier process
    rows.load(saved.only([9, 31, 5]))
    same(rows.take(np.array([0, 9, 31])), rows_of([1, 9, 31]))
    same(some, rows_of(ids))


@pytest.mark.parametrize("place", [np.asarray, jnp.asarray])
def test_rows_elsewhere_are_saved_block_by_block(tmp_path, monkeypatch, place):
    monkeypatch.setattr(disk_store, "_BLOCK", 20_000)
    all_rows = jax.tree.map(place, rows_of(range(N)))
    told = disk_store.save(tmp_path, all_rows)
    whose, got = disk_store.load(tmp_path, told, SHAPES)
    assert whose is None
    same(got, rows_of(range(N)))


def test_files_that_are_damaged_or_of_another_run_are_refused(rows, tmp_path):
    rows.scatter(np.array([1, 2]), rows_of([1, 2]))
    told = disk_store.save(tmp_path / "saved", rows)
    other = SHAPES | {"bits": jax.ShapeDtypeStruct((N, 2), np.int8)}
    with pytest.raises(ValueError, match=r"does not fit this run.*uint8.*\bint8"):
        disk_store.load(tmp_path / "saved", told, other)
    path = tmp_path / "saved/3.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert not disk_store.intact(tmp_path / "saved", told)
