"""Partitions: every sample once, minima, equal sizes, seeds, and the papers' rules."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefl_jax.data import federate, holdout, make_dataset, partition
from tests.refusals import refused

FAST = settings(deadline=None, max_examples=15)
CALLS = {
    "iid": {},
    "quantity": {"alpha": 0.3},
    "dirichlet": {"alpha": 0.3, "min_samples": 2},
    "lda": {"alpha": 0.3},
    "shards": {"k": 2},
}


def labels_of(seed, num_classes, num_samples):
    """Draws uneven labels in which every class occurs."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, num_classes, num_samples) ** 2 // num_classes
    y[:num_classes] = np.arange(num_classes)
    return y


def assert_each_once(parts, num_samples):
    np.testing.assert_array_equal(
        np.sort(np.concatenate(parts)), np.arange(num_samples)
    )


def sizes(split, y, clients, seeds, **given):
    """Returns the sizes of the clients by seed."""
    drawn = (split(y, clients, seed=seed, **given) for seed in range(seeds))
    return np.array([[len(part) for part in parts] for parts in drawn])


@pytest.mark.parametrize("name", CALLS)
@FAST
@given(
    st.integers(0, 2**31), st.integers(1, 12), st.integers(2, 7), st.integers(60, 300)
)
def test_every_sample_once_and_nobody_empty(name, seed, clients, classes, samples):
    y = labels_of(seed, classes, samples)
    with warnings.catch_warnings(action="ignore"):
        parts = partition.PARTITIONERS[name](y, clients, seed=seed, **CALLS[name])
    assert len(parts) == clients
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 1 and (name != "lda" or max(sizes) - min(sizes) <= 1)
    assert_each_once(parts, samples)


@pytest.mark.parametrize("name", ["iid", "quantity", "dirichlet", "lda"])
def test_seed_decides_everything(name):
    y = labels_of(0, 5, 400)
    split = partition.PARTITIONERS[name]
    first, same, other = (split(y, 8, seed=s, **CALLS[name]) for s in (3, 3, 4))
    for a, b in zip(first, same, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(set(a) != set(b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
@FAST
@given(st.integers(0, 2**31), st.integers(1, 15), st.floats(0.05, 5))
def test_everyone_has_the_minimum(name, seed, minimum, alpha):
    y, given = labels_of(seed, 4, 60), {"alpha": alpha, "min_samples": minimum}
    with warnings.catch_warnings(action="ignore"):  # of samples that are moved
        parts = partition.PARTITIONERS[name](y, 4, seed=seed, **given)
    assert len(parts) == 4 and min(map(len, parts)) >= minimum
    assert_each_once(parts, 60)


def test_dirichlet_draws_until_everyone_has_a_test_sample():
    y, y_test = np.repeat(np.arange(3), 400), np.repeat(np.arange(3), 20)
    empty = {"without": 0, "with": 0}
    for seed in range(20):
        for kind, labels_test in (("without", None), ("with", y_test)):
            parts = partition.dirichlet(
                y, 4, seed=seed, alpha=0.3, min_samples=1, labels_test=labels_test
            )
            dataset = SimpleNamespace(y=y, y_test=y_test)
            test = holdout.match(dataset, parts, np.random.default_rng(0))
            empty[kind] += min(map(len, test)) == 0
    assert empty["without"] > 0 and empty["with"] == 0


def test_dirichlet_matches_spafl_sizes_and_cuts_test_alike():
    y, y_test = np.repeat(np.arange(10), 500), np.repeat(np.arange(10), 100)
    parts = partition.dirichlet(
        y, 20, seed=1, alpha=0.1, min_samples=16, labels_test=y_test
    )
    dataset = SimpleNamespace(y=y, y_test=y_test)
    test = holdout.match(dataset, parts, np.random.default_rng(0))
    assert_each_once(test, 1000)
    assert min(map(len, test)) >= 1
    # A floor of a cumulative sum: 5 training samples for each test sample.
    ends = np.cumsum([np.bincount(y[p], minlength=10) for p in parts], axis=0)
    ends_test = np.cumsum([np.bincount(y_test[p], minlength=10) for p in test], axis=0)
    np.testing.assert_array_equal(ends // 5, ends_test)


@pytest.mark.parametrize("alpha, expected", [(0.1, 0.94), (0.2, 0.69)])
def test_dirichlet_unevenness_is_that_of_spafl(alpha, expected):
    y = np.repeat(np.arange(10), 5000)
    given = {"alpha": alpha, "min_samples": 16 if alpha == 0.1 else 1}
    found = sizes(partition.dirichlet, y, 100, 8, **given)
    variation = np.mean(np.std(found, axis=1) / np.mean(found, axis=1))
    assert variation == pytest.approx(expected, abs=0.06)


def test_dirichlet_balanced_caps_growth():
    y = np.repeat(np.arange(100), 50)
    spread = [
        np.std(sizes(partition.dirichlet, y, 20, 1, balanced=b)) for b in (False, True)
    ]
    assert spread[1] < 0.7 * spread[0]


def test_lda_follows_the_mixture_while_classes_last():
    """The third class is used up after 10; then the rest splits 0.2 : 0.3."""
    mixture = np.array([0.2, 0.3, 0.5])
    for left, want in (
        ((1000, 1000, 1000), (20, 30, 50)),
        ((1000, 1000, 10), (36, 54, 10)),
    ):
        rng = np.random.default_rng(0)
        counts = [
            partition._sample_mixture(rng, mixture, np.array(left), 100)
            for _ in range(200)
        ]
        np.testing.assert_allclose(np.mean(counts, 0), want, atol=1)


@pytest.mark.parametrize("clients, k", [(10, 2), (100, 2), (10, 5)])
def test_shards_are_those_of_fedsparsify(clients, k):
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    parts = partition.shards(y, clients, k=k)
    held = [tuple(np.unique(y[p])) for p in parts]
    groups = [tuple(range(c, c + k)) for c in range(0, 10, k)]
    assert held == [group for group in groups for _ in range(clients * k // 10)]
    assert {len(p) for p in parts} == {6000 // clients}


def test_quantity_sizes_have_the_spread_of_a_dirichlet():
    # The share of one of N clients has variance (1/N) (1 - 1/N) / (N alpha + 1).
    y, clients = np.arange(10_000) % 10, 100
    for alpha, variation in ((0.5, (99 / 51) ** 0.5), (10.0, (99 / 1001) ** 0.5)):
        drawn = sizes(partition.quantity, y, clients, 10, alpha=alpha)
        # One sample each is no part of the draw: 99 % of the samples are.
        found = np.mean(np.std(drawn, axis=1)) / 99
        assert found == pytest.approx(variation, rel=0.1)


@pytest.mark.parametrize("clients, classes, held", [(5, 2, {1}), (7, 3, {2, 3})])
def test_pathological_clients_hold_exactly_c_classes(clients, classes, held):
    y = np.random.default_rng(0).permutation(
        np.repeat(np.arange(10), range(10, 110, 10))
    )
    pairs = set()
    for seed in range(6):
        parts = partition.pathological(
            y, clients, seed=seed, classes_per_client=classes
        )
        assert_each_once(parts, 550)
        counts = np.array([np.bincount(y[p], minlength=10) for p in parts])
        assert (counts > 0).sum(1).tolist() == [classes] * clients
        assert set((counts > 0).sum(0).tolist()) == held
        for of_class in counts.T:
            of_class = of_class[of_class > 0]
            assert of_class.max() - of_class.min() <= 1
        pairs |= {tuple(np.unique(y[p])) for p in parts}
    assert len(pairs) > 2 * clients  # seeds and clients differ in their classes


def test_pathological_feddst():
    """400 clients with 20 images of each of 2 classes of MNIST's 10."""
    y = np.random.default_rng(0).integers(0, 10, 60_000)
    parts = partition.pathological(y, 400, seed=0, samples_per_class=20)
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows) == 400 * 40
    counts = np.array([np.bincount(y[p], minlength=10) for p in parts])
    assert np.sort(counts, 1).tolist() == [[0] * 8 + [20, 20]] * 400
    assert counts.sum(0).tolist() == [1600] * 10  # 80 clients hold each class


def test_natural_is_one_client_per_user():
    users = np.array([4, 2, 4, 9, 2, 4])
    y = np.zeros(6, np.int32)
    parts = partition.natural(y, users=users)
    assert [p.tolist() for p in parts] == [[1, 4], [0, 2, 5], [3]]
    with pytest.warns(UserWarning, match="num_clients=2 of 3 users"):
        some = partition.natural(y, 2, users=users, seed=1)
    assert len(some) == 2 and all(len(np.unique(users[p])) == 1 for p in some)


Y = np.repeat(np.arange(4), 10)
REFUSED = [
    ("iid", 41, {}, "num_clients=41"),
    ("dirichlet", 4, {"alpha": 1e308}, "alpha=1e+308"),
    ("dirichlet", 5, {}, "at least 10 samples each"),
    ("shards", 4, {"k": 5}, "k=5, expected in [1, 4]"),
    ("pathological", 3, {"classes_per_client": 1}, "=1 do not hold all 4"),
    ("pathological", 24, {}, "need 12 samples of class 0; there are 10"),
    ("natural", None, {"users": None}, "needs a data set with users"),
    ("natural", 3, {"users": Y % 2}, "expected 1 to 2, or 0 (in Python None) for all"),
    ("natural", None, {"users": Y[:5]}, "5 ids for 40 samples"),
]


@pytest.mark.parametrize("name, clients, given, said", REFUSED, ids=str)
def test_bad_arguments_are_named(name, clients, given, said):
    split = partition.PARTITIONERS[name]
    refused(lambda: split(Y, clients, seed=0, **given), said)


@pytest.mark.filterwarnings("ignore:test_split='within'")
@pytest.mark.parametrize(
    ("name", "given", "train", "val", "test"),
    [
        (
            "dirichlet",
            {"alpha": 0.5, "min_samples": 2},
            [[9, 6, 18, 0, 17], [2, 3, 20, 14], [19, 12, 13, 4, 8, 16, 10, 1, 5]],
            [[21, 15], [11], [7, 22, 23]],
            [[6, 9, 0], [5, 8], [3, 4, 7, 10, 1, 2, 11]],
        ),
        (
            "iid",
            {"test_split": "within"},
            [[23, 7, 18, 17], [16, 4, 2, 20], [14, 10, 15, 0]],
            [[6, 3], [12, 22], [8, 13]],
            [[0, 1], [2, 3], [4, 5]],
        ),
    ],
)
def test_who_has_which_sample_never_changes(name, given, train, val, test):
    """So that runs which are on disk can go on: these are drawn by this very code."""
    x, y = np.zeros((24, 2), np.float32), np.arange(24) % 3
    dataset = make_dataset(x, y, x_test=x[:12], y_test=y[:12], num_classes=3)
    split = federate(dataset, name, 3, seed=5, val_fraction=0.25, **given)
    for rows, want in ((split.train, train), (split.val, val), (split.test, test)):
        found = zip(rows.index, rows.size, strict=True)
        assert [index[:size].tolist() for index, size in found] == want
