"""Sources: arrays, files, users, and the cache of decoded data."""

import os

import numpy as np
import pytest

from sparsefl_jax.data import cache as decoded
from sparsefl_jax.data import sources
from tests.refusals import refused


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Sets an empty cache directory."""
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


# --- arrays and files


def test_statistics_of_the_training_images():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
    y = np.zeros(20, np.int64)
    data = sources.make_dataset(x, y, x[:4], y[:4])
    # To the last bit on all processors, or a run could not continue on another one.
    n, x = x[..., 0].size, x.astype(np.int64)
    total, squares = x.sum((0, 1, 2)), (x**2).sum((0, 1, 2))
    assert data.mean == tuple(total / (255 * n))
    assert data.std == tuple(np.sqrt(n * squares - total**2) / (255 * n))
    grey = sources.make_dataset(np.full_like(x, 51), y, x[:4], y[:4])
    assert grey.mean == (0.2,) * 3 and grey.std == (1.0,) * 3  # 51 / 255; not 0
    assert sources.load("cifar10_sample").mean == (0.4914, 0.4822, 0.4465)


@pytest.mark.parametrize("names", [("x", "y"), ("x_train", "y_train")])
def test_npz(tmp_path, names):
    x = np.arange(64, dtype=np.uint8).reshape(4, 4, 4)
    y, users = np.array([0, 1, 2, 0]), np.array(["u", "v", "u", "w"])
    arrays = {names[0]: x, names[1]: y, "x_test": x[:2], "y_test": y[:2]}
    np.savez(tmp_path / "mine.npz", **arrays, users=users, users_test=users[1:3])
    data = sources.load(tmp_path / "mine.npz")
    assert data.name == "mine.npz" and data.x.shape == (4, 4, 4, 1)
    assert data.users.tolist() == [0, 1, 0, 2] and data.users_test.tolist() == [1, 0]


IMAGES, LABELS = np.zeros((4, 2, 2, 1), np.uint8), np.array([0, 1, 0, 1])


USERS = [  # of four samples, of two test samples, and their numbers
    ([7, 7 + 2**32, 7, 2**40], [7 + 2**32, 7], [0, 1, 0, 2], [1, 0]),
    ([-3, 9, 9, 5], [5, 7], [0, 3, 3, 1], [1, 2]),
    (np.array(["b", "a", "b", "c"], object), [b"c", b"a"], [1, 0, 1, 2], [2, 0]),
    (np.array([10, 9, 10, "11"], object), ["9", "10"], [0, 2, 0, 1], [2, 0]),
]


@pytest.mark.parametrize("users, users_test, numbers, numbers_test", USERS)
def test_users_that_differ_stay_apart(users, users_test, numbers, numbers_test):
    given = {"x_test": IMAGES[:2], "y_test": LABELS[:2], "users_test": users_test}
    data = sources.make_dataset(IMAGES, LABELS, users=users, **given)
    assert data.users.dtype == np.int32 and data.users.tolist() == numbers
    assert data.users_test.tolist() == numbers_test


@pytest.mark.parametrize(
    "change, said",
    [
        ({"y": LABELS[:3]}, "y has 3 labels for 4 samples"),
        ({"y": LABELS - 1, "num_classes": 2}, "labels from -1 to 1 with num_classes=2"),
        ({"y_test": None}, "y_test=None; give both"),
        ({"y": LABELS + 0.5}, "expected integers"),
        ({"x": np.full((4, 2, 2, 1), 256)}, "pixels outside 0 to 255"),
        ({"x": np.array([None] * 4)}, "x has dtype object"),
        ({"x": np.zeros((4, 3, 2, 1), np.uint8)}, "x_test has uint8"),
        ({"users": [0, 1]}, "users has shape (2,), expected 4 ids"),
        ({"users": [0.5, 1, 2, 2]}, "users are float64, expected integers"),
        ({"y": LABELS * 2, "num_classes": 2}, "from 0 to 2 with num_classes=2"),
        ({"x": IMAGES.astype(float) + 1e39}, "x has values that are not finite"),
        ({"x": IMAGES[:0], "y": LABELS[:0]}, "x has shape (0, 2, 2, 1)"),
    ],
    ids=str,
)
def test_bad_arrays_are_named(change, said):
    given = {"x": IMAGES, "y": LABELS, "x_test": IMAGES, "y_test": LABELS} | change
    refused(lambda: sources.make_dataset(**given), said)


# --- TFDS


def test_an_absent_data_set_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    refused(lambda: sources.load("cifar10"), "tfds build cifar10 --file")


def test_cache_is_keyed_whole_or_absent_and_a_broken_entry_is_named(
    cache, tmp_path, monkeypatch
):
    (tmp_path / "f").write_text("one")
    source = decoded.Source("a", [tmp_path / "f"], None)
    arrays = {"x": np.arange(3), "y": np.ones((0, 2), np.uint8)}
    assert decoded.through(source, 1, lambda: arrays)["y"].shape == (0, 2)
    again = decoded.through(source, 1, lambda: 1 / 0)
    assert again["x"].tolist() == [0, 1, 2] and isinstance(again["x"], np.memmap)
    # A second process that decoded the same data accepts the existing entry.
    [entry] = cache.iterdir()
    assert decoded.store(entry, arrays)

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", fail)
    with pytest.warns(UserWarning, match="disk full"):
        assert decoded.through(source, 2, lambda: arrays) is arrays
    assert list(cache.iterdir()) == [entry]
    whole = (entry / "x.npy").read_bytes()
    (entry / "x.npy").write_bytes(whole[:-1])
    refused(lambda: decoded.through(source, 1, lambda: arrays), f"{entry} are damaged")


@pytest.mark.parametrize("second", ["another folder", "first"])
def test_files_of_the_same_name_size_and_time_are_told_apart(cache, tmp_path, second):
    found = []
    for name, text in (("first", "one"), (second, "two")):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "new").write_text(text)
        os.utime(folder / "new", ns=(10**18, 10**18))
        os.replace(folder / "new", folder / "f")  # as rsync and tar do

        def decode(file=folder / "f"):
            return {"y": np.frombuffer(file.read_bytes(), np.uint8)}

        source = decoded.Source("same", [folder / "f"], decode)
        arrays = decoded.through(source, 1, decode)
        found.append(bytes(arrays["y"]).decode())
    assert found == ["one", "two"]
