"""LEAF's JSON: its layouts, pixels and users, and what is refused."""

import json
import warnings

import numpy as np
import pytest

from sparsefl_jax.data import sources
from sparsefl_jax.data.federated import federate
from tests.refusals import refused


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFL_CACHE_DIR", str(tmp_path / "cache"))


def levels(user, count, width=784):
    """Returns grey levels 0 to 255 that differ by user and sample."""
    seed = sum(map(ord, user))
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, width), dtype=np.uint8)


def content(sizes, change=None, width=784):
    """Returns LEAF's JSON for these users; `change` alters it before writing."""
    told = {
        "users": list(sizes),
        "num_samples": list(sizes.values()),
        "user_data": {
            user: {
                "x": (levels(user, size, width) / 255).tolist(),
                "y": [(i + len(user)) % 5 for i in range(size)],
            }
            for user, size in sizes.items()
        },
    }
    if change:
        change(told)
    return told


def write(folder, files):
    for name, told in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told))
    return str(folder)


TRAIN = {"train/0.json": content({"b": 3, "ace": 2}), "train/1.json": content({"d": 4})}
TEST = {"test/0.json": content({"d": 1, "b": 2, "never": 1, "empty": 0})}


def test_users_keep_their_samples_in_both_splits(tmp_path):
    data = sources.load(write(tmp_path / "femnist", TRAIN | TEST))
    assert data.name == "femnist/" and data.num_classes == 5
    assert data.users.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert data.users_test.tolist() == [2, 0, 0, 3]
    assert data.x.dtype == np.uint8 and data.x.shape == (9, 28, 28, 1)
    np.testing.assert_array_equal(data.x[3:5].reshape(2, -1), levels("ace", 2))
    np.testing.assert_array_equal(data.x_test[1:3].reshape(2, -1), levels("b", 2))
    assert data.y.tolist() == [1, 2, 3, 3, 4, 1, 2, 3, 4]
    fed = federate(data, "natural", test_split="natural")
    assert fed.train.size.tolist() == [3, 2, 4] and fed.test.size.tolist() == [2, 0, 1]


def test_without_a_test_split_a_fifth_of_each_user_is_held_out(tmp_path):
    sizes = {"a": 10, "bb": 5, "c": 1, "dd": 3}
    folder = write(tmp_path, {"all_data_0.json": content(sizes)})
    data = sources.load(folder)
    assert not len(data.x_test) and data.users_test is None
    fed = federate(data, "natural", test_split="within")
    assert fed.train.size.tolist() == [8, 4, 1, 2]  # a client trains on its only sample
    assert fed.test.size.tolist() == [2, 1, 0, 1] and len(fed.x_test) == 4
    fed = federate(data, "natural", test_split="within", min_samples=5)
    assert fed.train.size.tolist() == [8, 4] and len(fed.x_test) == 3


def test_pixels_become_bytes_only_without_loss(tmp_path):
    def blur(told):
        told["user_data"]["d"]["x"][0][0] = 0.5

    files = {"train/1.json": content({"d": 4}, blur)}
    data = sources.load(write(tmp_path, TRAIN | TEST | files))
    assert data.x.dtype == data.x_test.dtype == np.float32
    assert data.x[5, 0, 0, 0] == 0.5
    expected = levels("ace", 2).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(data.x[3:5].reshape(2, -1), expected)


def replace(key, value):
    return lambda told: told["user_data"]["a"].update({key: value})


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda told: told.pop("users"), "missing required field `users`"),
        (lambda told: told.update(users=["b"]), "user 'b': user_data lacks it"),
        (replace("y", [0, 1]), "user 'a': 3 x and 2 y"),
        (replace("y", [0, 1, "2"]), "not integers"),
        (replace("x", [[[0.0]]] * 3), "(3, 1, 1), not [n, D]"),
        (replace("x", [[float("nan")] * 784] * 3), "JSON is malformed"),
        (lambda told: told.update(users=[]), "hold [], expected samples of one shape"),
    ],
)
def test_bad_content_is_one_line(tmp_path, change, told):
    folder = write(tmp_path, {"train/0.json": content({"a": 3}, change)})
    refused(lambda: sources.load(folder), told)


@pytest.mark.parametrize("text", ['{"users": ["a"', "[]", "\udcff", None])
def test_bad_files_are_one_line(tmp_path, text):
    if text is not None:
        (tmp_path / "0.json").write_text(text, errors="surrogateescape")
    told = "doesn't contain any data files" if text is None else "0.json"
    refused(lambda: sources.load(str(tmp_path)), told)
    mixed = TRAIN | {"train/2.json": content({"e": 1}, None, 9)}
    folder = write(tmp_path / "mixed", mixed)
    refused(lambda: sources.load(folder), "hold [(9,), (28, 28, 1)], expected")


def test_leafs_own_folder_has_the_files_in_data(tmp_path):
    write(tmp_path / "synthetic" / "data", TRAIN | TEST)
    data = sources.load(str(tmp_path / "synthetic"))
    assert data.name == "synthetic/" and (len(data.y), len(data.y_test)) == (9, 4)


LOST = {  # of four test samples, by users d, b, b and never
    "natural": "2 of 3 test users train; 1 of 4 test samples are of others",
    "within": "4 of 4 test samples of the data set are not read",
    "unseen": "3 of 4 test samples of the data set are not read",
    "partition": "test samples go to clients by class",
    "overlap": "test samples go to clients by class",
    "pooled": "",
}


@pytest.mark.parametrize("split, told", LOST.items())
def test_a_split_says_which_test_samples_do_not_reach_their_users(
    tmp_path, split, told
):
    data = sources.load(write(tmp_path, TRAIN | TEST))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fed = federate(data, "natural", test_split=split)
    assert told in fed.tests and fed.tests.startswith(f"{split}: ")
    assert any(told in str(one.message) for one in found) == bool(found) == bool(told)


def test_users_of_the_test_files_alone_are_unseen_clients(tmp_path):
    """LEAF's `-t user`; the others test on a fifth of their own, at least a sample."""
    tests = {"test/0.json": content({"never": 1, "other": 2})}
    data = sources.load(write(tmp_path, TRAIN | tests))
    with pytest.warns(UserWarning, match="none of 2 test users train; 3 of 3 test"):
        federate(data, "natural", test_split="natural")
    fed = federate(data, "natural", test_split="unseen", val_fraction=0.4)
    assert fed.clients == ["b", "ace", "d", "never", "other"]
    assert fed.train.size.tolist() == [1, 1, 2, 0, 0]
    assert fed.val.size.tolist() == [1, 0, 1, 0, 0]
    assert fed.test.size.tolist() == [1, 1, 1, 1, 2] and len(fed.x_test) == 6
    images = fed.x_test[fed.test.index[4]].reshape(2, -1)
    np.testing.assert_array_equal(images, levels("other", 2))


def test_unseen_clients_are_refused_where_all_users_of_the_test_files_train(tmp_path):
    tests = {"test/0.json": content({"b": 1, "d": 2})}
    data = sources.load(write(tmp_path, TRAIN | tests))
    with pytest.raises(
        ValueError, match="all users of the test set train, .*'natural'"
    ):
        federate(data, "natural", test_split="unseen")
