"""Federated data: disjoint splits, seeds, lists of users, and refusals."""

import numpy as np
import pytest

from sparsefl_jax.data import federated
from sparsefl_jax.data.sources import make_dataset
from tests.data.partition_test import CALLS, assert_each_once
from tests.refusals import refused


def arrays(samples=200, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((samples, 3), np.float32), np.arange(samples) % classes


def split_of(x, y, **given):
    return federated.from_arrays(x, y, x_test=x, y_test=y, **given)


def rows(table, client):
    return table.index[client, : table.size[client]]


@pytest.mark.parametrize("test_split", ["partition", "within", "overlap", "pooled"])
@pytest.mark.parametrize("name", CALLS)
def test_federate_splits_are_disjoint_and_whole(name, test_split):
    (x, y), (x_test, y_test) = arrays(), arrays(80, seed=1)
    dataset = make_dataset(x, y, x_test, y_test)
    given = {"seed": 2, "val_fraction": 0.25, "test_split": test_split} | CALLS[name]
    fed = federated.federate(dataset, name, 5, **given)
    assert fed.train.size.min() >= 1 and fed.train.index.dtype == np.int32
    used = [rows(t, i) for t in (fed.train, fed.val) for i in range(5)]
    used = np.concatenate(used)
    assert len(np.unique(used)) == len(used)
    held = [rows(fed.test, i) for i in range(5)]
    if test_split == "within":
        assert len(used) + len(fed.y_test) == 200
        features = {x[r, 0] for r in used}
        assert not features & set(fed.x_test[:, 0])
        assert_each_once(held, len(fed.y_test))
    else:
        assert len(used) == 200
    if test_split == "partition":
        assert_each_once(held, 80)
    if test_split == "pooled":
        assert fed.test.size.sum() == 0
    if test_split == "overlap":
        for i, test_rows in enumerate(held):
            client_rows = np.concatenate([rows(fed.train, i), rows(fed.val, i)])
            share = np.bincount(y[client_rows], minlength=4) / len(client_rows)
            expected = np.ceil(20 * share - 1e-9)
            np.testing.assert_array_equal(
                np.bincount(y_test[test_rows], minlength=4), expected
            )


def test_another_seed_deals_out_and_holds_out_other_samples():
    given = {"num_clients": 4, "val_fraction": 0.2}
    a, b = (split_of(*arrays(), seed=seed, **given) for seed in (0, 1))
    assert set(rows(a.train, 0)) != set(rows(b.train, 0))
    given = {"partition": [np.arange(200)], "val_fraction": 0.5}
    a, b = (federated.from_arrays(*arrays(), seed=s, **given) for s in (0, 1))
    assert set(a.x_test[:, 0]) != set(b.x_test[:, 0])
    assert set(rows(a.val, 0)) != set(rows(b.val, 0))


def test_from_arrays_takes_lists_and_natural_users():
    x, y = arrays(40)
    given = [np.arange(10), np.arange(10, 40)]
    fed = split_of(x, y, partition=given)
    assert rows(fed.train, 1).tolist() == list(range(10, 40))
    users = np.array(["b", "a"] * 20)
    both = {"users": users, "users_test": users, "test_split": "natural"}
    fed = split_of(x, y, partition="natural", **both)
    assert rows(fed.train, 0).tolist() == rows(fed.test, 0).tolist()
    assert rows(fed.test, 0).tolist() == list(range(1, 40, 2))


def test_few_test_samples_are_moved_with_a_warning():
    y, y_test = np.repeat(np.arange(2), 20), np.zeros(4, np.int32)
    dataset = make_dataset(np.ones((40, 1)), y, np.ones((4, 1)), y_test)
    parts = [np.arange(20), np.arange(20, 40)]
    with pytest.warns(UserWarning, match="moved 1 test samples"):
        fed = federated.federate(dataset, parts)
    assert fed.test.size.tolist() == [3, 1]


@pytest.mark.parametrize(
    "kwargs, said",
    [
        ({"partition": [[0], []]}, "client 1 of the partition has no training sample"),
        ({"partition": [[0], [40]]}, "rows from 40 to 40, expected 0 to 39"),
        ({"partition": [[0.5], [1]]}, "not a list of integers"),
        ({"partition": [[0]]}, "1 parts; num_clients=2"),
        ({"partition": [[0], [1]], "alpha": 1}, "alpha has no effect"),
        ({"test_split": "natural"}, "needs users"),
        ({"val_fraction": 0.001}, "=0.001 holds no sample out"),
        ({"test_fraction": 0.3}, "test_fraction=0.3 has no effect here: test_split='"),
        ({"x_test": None, "y_test": None, "test_split": "pooled"}, "needs x_test"),
        ({"num_clients": 40, "x_test": None, "y_test": None}, "holds no sample"),
        ({"num_clients": 30, "x_test": np.ones((3, 3)), "y_test": [0] * 3}, "3 test s"),
    ],
    ids=str,
)
def test_bad_federations_are_named(kwargs, said):
    x, y = arrays(40)
    given = {"x_test": x, "y_test": y, "num_clients": 2} | kwargs
    refused(lambda: federated.from_arrays(x, y, **given), said)


def test_columns_are_standardised_by_those_who_train():
    """Held-out samples and unseen clients do not count; a constant column becomes 0."""
    rng = np.random.default_rng(0)
    x = np.array([1000, 0.1, 1]) * rng.normal(3, 1, (60, 3)) * [1, 1, 0] + [0, 0, 7]
    x, y = x.astype(np.float32), np.arange(60) % 2
    given = {"num_clients": 6, "val_fraction": 0.2, "unseen_fraction": 0.34}
    data = federated.from_arrays(x, y, **given)
    raw = federated.from_arrays(x, y, **given, standardize=False)
    rows = np.concatenate([r[:n] for r, n in zip(*data.train, strict=True)])
    assert len(rows) < 30 and raw.scaling is None
    np.testing.assert_array_equal(raw.x, x)
    mean, std = x[rows].mean(0), x[rows].std(0)
    np.testing.assert_allclose(data.x[:, :2], ((x - mean) / [*std[:2], 1])[:, :2], 1e-4)
    held = (raw.x_test - mean)[:, :2] / std[:2]
    np.testing.assert_allclose(data.x_test[:, :2], held, 1e-3, 1e-5)
    assert not data.x[:, 2].any() and not data.x_test[:, 2].any()
    np.testing.assert_allclose(data.scaling, [mean, [*std[:2], 1]], 1e-5)
