"""The samples that evaluate a client: its share of the test set, and held-out samples.

The splits follow the partition of the training samples. Everything is NumPy on the
host.
"""

from typing import Any

import numpy as np
from numpy.random import Generator

from sparsefl_jax.core.check import UserError
from sparsefl_jax.data.cuts import Parts, cut_classes, raise_to_minimum, scale_cuts

TEST_SPLITS = {
    "partition": "the test set, in the class proportions of each client",
    "natural": "the test samples of the same user",
    "within": "a fraction of each client's own samples, which replace the test set",
    "unseen": "as within; users that are in the test set alone are unseen clients",
    "overlap": "a share of the test set for each class, rounded up; clients overlap",
    "pooled": "none: only the pooled test set is used",
}

HELD_OUT = ("within", "unseen")  # splits that hold training samples out for testing


def test_parts(dataset: Any, parts: Parts, split: str, *, rng: Generator) -> Parts:
    """Returns each client's rows of the test set, for splits that hold out none.

    Args:
      dataset: a `Dataset`.
      parts: list of index arrays into the training samples.
      split: a name in `TEST_SPLITS` that is not in `HELD_OUT`.
      rng: a NumPy generator.

    Returns:
      A list of integer arrays; that of a client without test samples is empty.

    Raises:
      ValueError: there are too few test samples.
    """
    if split == "pooled":
        return [np.zeros(0, np.int32) for _ in parts]
    if split == "natural":
        users, users_test = dataset.users, dataset.users_test
        return [np.flatnonzero(np.isin(users_test, users[part])) for part in parts]
    if split == "overlap":
        return _draw_overlapping(dataset, parts, rng)
    test = match(dataset, parts, rng)
    if sum(map(len, test)) < len(parts):
        few = f"{len(dataset.y_test)} test samples for {len(parts)} clients"
        raise UserError(f"test_split={split!r} has {few}, expected 'pooled'")
    return raise_to_minimum(test, 1, "test samples")


def unseen_parts(dataset: Any, parts: Parts) -> dict[str, np.ndarray]:
    """Returns the rows of the test set of users that train nowhere, by their names.

    Args:
      dataset: a `Dataset` with users of both splits.
      parts: list of index arrays into the training samples.

    Raises:
      ValueError: there is no such user.
    """
    ids = np.setdiff1d(dataset.users_test, dataset.users[np.concatenate(parts)])
    if not ids.size:
        told = "test_split='unseen', but all users of the test set train"
        raise UserError(f"{told}, expected 'natural'")
    rows = [np.flatnonzero(dataset.users_test == i) for i in ids]
    return dict(zip(map(str, dataset.user_names[ids]), rows, strict=True))


def describe_lost(dataset: Any, parts: Parts, split: str) -> str:
    """Says which test samples a split does not give to their users; '' if all is well.

    Args:
      dataset: a `Dataset`.
      parts: list of index arrays into the training samples.
      split: a name in `TEST_SPLITS`.

    Raises:
      ValueError: "natural" or "unseen" lacks the users.
    """
    users, total = dataset.users_test, len(dataset.y_test)
    by_user = split != "within" and users is not None and dataset.users is not None
    if split in ("natural", "unseen") and not by_user:
        raise UserError(f"test_split={split!r} needs users of both splits")
    each = [dataset.users[part] for part in parts if by_user]
    seen = np.isin(users, np.concatenate(each)) if by_user else np.ones(total, bool)
    if split in HELD_OUT and seen.any():
        return f"{seen.sum()} of {total} test samples of the data set are not read"
    if split == "natural" and not seen.all():
        number, known = (np.unique(ids).size for ids in (users, users[seen]))
        told = f"{known or 'none'} of {number} test users train; {(~seen).sum()} of "
        return f"{told}{total} test samples are of others, see test_split='unseen'"
    if (
        split in ("partition", "overlap")
        and by_user
        and all(np.ptp(ids) == 0 for ids in each)
    ):
        return "test samples go to clients by class, by user with test_split='natural'"
    return ""


def match(dataset: Any, parts: Parts, rng: Generator) -> Parts:
    """Splits a test set over clients in the class proportions of their samples.

    If a class has m times as many training as test samples, m an integer, this equals
    cutting both at the same proportions (SpaFL). Test samples of a class that no client
    trains on are left out.

    Args:
      dataset: a `Dataset`, or what has its `y` [n] and `y_test` [n_test], integers.
      parts: list of index arrays into `y`.
      rng: a NumPy generator, which shuffles the test samples of a class.

    Returns:
      A list of integer arrays, indices into `y_test`; some may be empty.

    Example:
      >>> from types import SimpleNamespace
      >>> parts, labels = [np.array([0, 1]), np.array([2, 3])], np.array([0, 0, 0, 1])
      >>> dataset = SimpleNamespace(y=labels, y_test=labels)
      >>> [p.size for p in match(dataset, parts, np.random.default_rng(0))]
      [2, 2]
    """
    num_classes = 1 + max(dataset.y.max(), dataset.y_test.max())
    counts = [np.bincount(dataset.y[part], minlength=num_classes) for part in parts]
    cuts = np.cumsum(counts, axis=0).T
    totals_test = np.bincount(dataset.y_test, minlength=num_classes)
    return cut_classes(dataset.y_test, scale_cuts(cuts, totals_test), rng)


def hold_out(
    parts: Parts, fraction: float, *, rng: Generator, minimum: int = 0
) -> tuple[Parts, Parts]:
    """Holds out a random fraction of each part, but never the whole part.

    Args:
      parts: list of index arrays.
      fraction: the share to hold out, [0, 1).
      rng: a NumPy generator.
      minimum: the least number of entries to hold out of a part of two or more.

    Returns:
      `(kept, held)`, two lists of index arrays.

    Example:
      >>> kept, held = hold_out([np.arange(10)], 0.2, rng=np.random.default_rng(0))
      >>> kept[0].size, held[0].size
      (8, 2)
    """
    kept, held = [], []
    for part in parts:
        count = min(max(minimum, round(fraction * len(part))), len(part) - 1)
        order = rng.permutation(len(part)) if count else np.arange(len(part))
        held.append(part[order[:count]])
        kept.append(part[order[count:]])
    return kept, held


def _draw_overlapping(dataset, parts, rng):
    """Draws ceil(test samples * the client's class share) rows per client and class."""
    classes = [np.flatnonzero(dataset.y_test == c) for c in range(dataset.num_classes)]
    test = []
    for part in parts:
        counts = np.bincount(dataset.y[part], minlength=len(classes))
        draws = [
            rng.permutation(rows)[: -(-len(rows) * count // len(part))]
            for rows, count in zip(classes, counts, strict=True)
        ]
        test.append(np.concatenate(draws))
    return test
