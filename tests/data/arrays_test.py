"""Arrays that people bring: labels, shapes and partitions, read, told or refused."""

import numpy as np
import pytest

from sparsefl_jax.data import sources
from sparsefl_jax.data.federated import from_arrays
from tests.refusals import refused

X = np.arange(8, dtype=np.float32).reshape(4, 2)
PLACES = [2, 0, 1, 2]
WORDS = ["well", "dead", "ill", "well"]


@pytest.mark.parametrize("kind", [int, np.float32, bool])
def test_columns_floats_and_one_hot_rows_are_labels(kind):
    forms = np.array(PLACES)[:, None].astype(float), np.eye(3, dtype=kind)[PLACES]
    for y in forms:
        data = sources.make_dataset(X, y)
        assert data.y.tolist() == PLACES and data.num_classes == 3
    tokens = np.eye(3, dtype=np.int32)[PLACES]  # which have targets of their own
    assert sources.make_dataset(tokens, tokens).y.shape == (4, 3)


GAPS = [[26, 1, 9, 26], [10, 0, 5, 10], [2**40, -1, 0, 2**40]]


@pytest.mark.parametrize("y", [*GAPS, WORDS, np.array(WORDS, object)], ids=str)
def test_classes_are_numbered_and_keep_their_names(y):
    data = sources.make_dataset(X, y, X[:1], y[2:3])
    assert data.y.tolist() == PLACES and data.y_test.tolist() == [1]
    assert data.classes == tuple(str(y[i]) for i in (1, 2, 0))
    data = sources.make_dataset(X, [1, 2, 1, 2], num_classes=5)
    assert data.y.tolist() == [1, 2, 1, 2] and data.classes is None
    refused(lambda: sources.make_dataset(X, [np.nan, 0, 1, 2]), "expected integers or")


def test_channels_first_are_moved_and_other_shapes_are_told():
    x = np.random.default_rng(0).normal(size=(4, 3, 6, 5)).astype(np.float32)
    with pytest.warns(UserWarning, match=r"\(3, 6, 5\) are read as channels first"):
        data = sources.make_dataset(x, PLACES)
    assert data.x.shape == (4, 6, 5, 3) and data.x[1, 5, 4, 2] == x[1, 2, 5, 4]
    np.testing.assert_allclose(data.mean, x.mean((0, 2, 3)), rtol=1e-5)
    bands = np.zeros((4, 7, 9, 8))
    for shape, told in (
        (bands, "if it is .n, C, H, W."),
        (x[:, 0], "a series .n, T, C."),
    ):
        with pytest.warns(UserWarning, match=told):
            sources.make_dataset(shape, PLACES)


def test_an_own_file_with_the_name_of_a_known_data_set_is_not_that(tmp_path):
    np.savez(tmp_path / "mnist.npz", x=np.full((4, 2, 2, 1), 51, np.uint8), y=PLACES)
    assert sources.load(tmp_path / "mnist.npz").mean == (0.2,)  # not 0.1307


def test_clients_are_masks_rows_by_name_or_users():
    given = {"x_test": X, "y_test": PLACES, "test_split": "pooled"}
    masks = [np.array(PLACES) == i for i in range(3)]
    data = from_arrays(X, PLACES, partition=masks, **given)
    assert data.train.size.tolist() == [1, 1, 2] and data.clients is None
    assert data.train.index[2].tolist() == [0, 3]
    wards = {"ward 3": [3, 1], "ward 1": masks[1]}
    data = from_arrays(X, PLACES, partition=wards, **given)
    assert data.clients == ["ward 3", "ward 1"]
    assert data.train.index.tolist() == [[3, 1], [2, 0]]
    for bad, told in ([[True, False]], "4 booleans"), ({"a": [0], "b": []}, "client b"):
        refused(lambda bad=bad: from_arrays(X, PLACES, partition=bad), told)
    given["users"] = ["b", "a", "b", "c"]
    natural = from_arrays(X, PLACES, partition="natural", **given)
    assert natural.clients == ["a", "b", "c"]
    assert from_arrays(X, PLACES, num_clients=2, **given).clients is None


def test_overlapping_clients_say_what_is_held_out_and_trained_on():
    x, rows = np.arange(10, dtype=np.float32)[:, None], [np.arange(10)] * 2
    with pytest.warns(UserWarning, match="clients overlap") as told:
        data = from_arrays(x, np.arange(10) % 2, partition=rows)
    trained = {float(data.x[i, 0]) for row in data.train.index for i in row}
    shared = sum(float(value) in trained for value in data.x_test[:, 0])
    assert f"{shared} of 4 test samples" in str(told[0].message) and shared > 0


def test_lda_says_to_whom_rare_classes_went():
    x, y = np.zeros((1000, 2)), np.r_[np.zeros(950, int), np.repeat([1, 2], 25)]
    with pytest.warns(UserWarning, match="class 1 to client 0; 25 of class 2 to clie"):
        from_arrays(x, y, partition="lda", num_clients=10, alpha=100.0)
