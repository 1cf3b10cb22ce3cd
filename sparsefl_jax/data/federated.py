"""A federated data set: flat arrays, and a table of row numbers for each client.

The arrays are never copied per client. `Rows.index` is padded to the largest client,
and `Rows.size` counts the valid entries. Everything is NumPy on the host.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sparsefl_jax.core import keys
from sparsefl_jax.core.check import UserError, check, unread
from sparsefl_jax.core.types import Count
from sparsefl_jax.data import holdout
from sparsefl_jax.data.partition import BY_CLASS, PARTITIONERS
from sparsefl_jax.data.sources import Dataset, make_dataset, one_label, statistics
from sparsefl_jax.data.statistics import moments


class Rows(NamedTuple):
    """The rows that belong to each client, padded with 0 beyond `size`."""

    index: np.ndarray  # [N, M] int32
    size: np.ndarray  # [N] int32

    def gather(self) -> np.ndarray:
        """Returns the rows of all clients, client after client, [n] int32."""
        return self.index[np.arange(self.index.shape[1]) < self.size[:, None]]


class FederatedData(NamedTuple):
    """A data set and its split over N clients.

    `train` and `val` are rows of `x`, `test` holds rows of `x_test`. The sizes of a
    split that does not exist are 0. A client without training samples is unseen: it
    never trains, and is tested. `x` and `x_test` of a table are standardised already,
    by `scaling`.
    """

    x: np.ndarray  # [n, H, W, C] uint8, or float32, or [n, D] integers
    y: np.ndarray  # [n] or [n, T] int32; float32 of numbers, bool of several labels
    x_test: np.ndarray  # [n_test, ...]
    y_test: np.ndarray  # [n_test, ...] like y
    mean: tuple | None  # per channel, on the scale 0 to 1
    std: tuple | None
    num_classes: int
    name: str
    numeric: np.ndarray | None  # [D] bool, the columns of a table that are numbers
    columns: str  # which columns of a file were read, and as what
    scaling: tuple | None  # mean and deviation of each column of a table
    train: Rows
    val: Rows
    test: Rows
    classes: tuple[str, ...] | None = None  # names, where there are any
    clients: Sequence[str] | None = None
    tests: str = ""  # the split of the test samples, for the plan


def federate(
    dataset: Dataset,
    partition: str | Callable | Sequence[ArrayLike] | Mapping = "iid",
    num_clients: int | None = None,
    *,
    seed: int = 0,
    val_fraction: float = 0.0,
    max_samples: int | None = None,
    unseen_fraction: float = 0.0,
    test_split: str = "partition",
    test_fraction: float | None = None,
    standardize: bool = True,
    **kwargs: Any,
) -> FederatedData:
    """Splits a data set over clients, and standardises the columns of a table.

    Args:
      dataset: a `Dataset`.
      partition: a name in `PARTITIONERS`, a function like those, a list with the rows
        of each client, or a mapping from clients' names to their rows. Rows are
        integers, or True at the client's rows of all [n]. If clients share rows, a
        warning says how many that are held out are also trained on.
      num_clients: N; None if the partition itself determines it.
      seed: an integer; equal seeds give equal splits.
      val_fraction: the share of each client's samples held out of training, [0, 1).
      max_samples: the most training samples of a client that are used, drawn at random
        after validation samples are held out; None for all.
      unseen_fraction: the share of clients that never train, [0, 1), rounded to whole
        clients. They keep their test samples and lose the others.
      test_split: a name in `holdout.TEST_SPLITS`, which says how clients get their test
        samples. With "unseen", users that are in the test set alone are further
        clients, behind those of the partition, that never train. A warning says how
        many test samples are not read or do not reach their users.
      test_fraction: the share that test_split="within" or "unseen" holds out, (0, 1);
        by default a fifth.
      standardize: whether to subtract from each column of a table (see `numeric` of
        `make_dataset`) its mean, and to divide it by its deviation, over the training
        samples of all clients that train. A constant column becomes 0.
      **kwargs: further arguments of the partitioner, such as `alpha`.

    Returns:
      A `FederatedData` in which every seen client has at least one training sample.
      Its `clients` are the names of a mapping, or of users if each client has one.

    Raises:
      ValueError: an argument is out of range, or a client would be empty.

    Example:
      >>> from sparsefl_jax.data.sources import load
      >>> data = load("fashion_mnist_sample")
      >>> fed = federate(data, "dirichlet", 10, seed=0, alpha=0.5, val_fraction=0.1)
      >>> int(fed.train.size.sum() + fed.val.size.sum()), int(fed.test.size.sum())
      (2000, 500)
    """
    check("val_fraction", val_fraction, "[0, 1)")
    check("unseen_fraction", unseen_fraction, "[0, 1)")
    check("max_samples", max_samples, Count | None)
    check("test_split", test_split, holdout.TEST_SPLITS)
    if test_fraction is not None:
        check("test_fraction", test_fraction, "(0, 1)")
        if test_split not in holdout.HELD_OUT:
            raise unread(f"{test_fraction=}", f"{test_split=}, expected 'within'")
    if test_split != "within" and not len(dataset.x_test):
        raise UserError(f"{test_split=} needs x_test, expected 'within' without it")
    y, y_test = one_label(dataset.y), one_label(dataset.y_test)
    by_label = dataset._replace(y=y, y_test=y_test)
    by_class = dataset.y.dtype.kind == "i"
    if not by_class and (name := getattr(partition, "__name__", partition)) in BY_CLASS:
        raise UserError(f"partition {name!r} divides classes, expected iid, or another")
    labelled = by_label if by_class else dataset
    parts = _split(labelled, partition, num_clients, seed, test_split, kwargs)
    clients, parts = _client_names(dataset, parts), list(parts.values())
    rng_test = keys.on_host(seed, keys.TEST_SPLIT)
    if lost := holdout.describe_lost(dataset, parts, test_split):
        warnings.warn(f"{test_split=}: {lost}", stacklevel=2)
    if test_split in holdout.HELD_OUT:
        others = holdout.unseen_parts(dataset, parts) if test_split == "unseen" else {}
        share = 0.2 if test_fraction is None else test_fraction
        parts, held = holdout.hold_out(parts, share, rng=rng_test, minimum=1)
        rows, sizes = np.concatenate(held), map(len, (*held, *others.values()))
        away = np.concatenate([*others.values(), np.zeros(0, np.int32)])
        if not rows.size:
            few = "clients with one sample each, expected fewer clients, or x_test"
            raise UserError(f"{test_split=} holds no sample out of {few}")
        x_test = np.append(dataset.x[rows], dataset.x_test[away], axis=0)
        y_test = np.append(dataset.y[rows], dataset.y_test[away], axis=0)
        dataset = dataset._replace(x_test=x_test, y_test=y_test)
        test = np.split(np.arange(len(y_test)), np.cumsum([*sizes])[:-1])
        parts = [*parts, *[rows[:0]] * len(others)]
        clients = clients and [*clients, *others]
    else:
        held = []
        test = holdout.test_parts(by_label, parts, test_split, rng=rng_test)
    rng_val = keys.on_host(seed, keys.VALIDATION)
    train, val = holdout.hold_out(parts, val_fraction, rng=rng_val)
    if val_fraction > 0 and not any(map(len, val)):
        raise UserError(f"{val_fraction=} holds no sample out, expected more, or 0")
    shared = {k: v for k, v in dataset._asdict().items() if k in FederatedData._fields}
    if max_samples is not None:
        rng = keys.on_host(seed, keys.USED)
        train = [rng.permutation(rows)[:max_samples] for rows in train]
    if unseen_fraction > 0:
        for client in _draw_unseen(unseen_fraction, test, seed):
            train[client], val[client] = train[client][:0], val[client][:0]
    if max_samples is not None or unseen_fraction > 0:
        found = statistics(dataset.x[np.concatenate(train)], dataset.name)
        shared["mean"], shared["std"] = found
    if standardize and dataset.numeric is not None:
        shared |= _standardize(dataset, np.concatenate(train))
    _warn_of_overlap(train, {"test": held, "validation": val})
    rows = {"train": pack(train), "val": pack(val), "test": pack(test)}
    shared["tests"] = f"{test_split}: {lost or holdout.TEST_SPLITS[test_split]}"
    return FederatedData(**{"scaling": None} | shared | rows, clients=clients)


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    num_classes: int | None = None,
    task: str = "classification",
    users: ArrayLike | None = None,
    users_test: ArrayLike | None = None,
    name: str = "arrays",
    test_split: str | None = None,
    **kwargs: Any,
) -> FederatedData:
    """Splits your own arrays over clients.

    Args:
      x: [n, H, W, C], [n, H, W] or [n, D]; see `sources.make_dataset`. Columns of
        floats [n, D] are standardised, unless `standardize=False`: `data.scaling` has
        their mean and deviation.
      y: [n] integers or texts; of another task see `sources.make_dataset`.
      x_test: like x. None holds out a fifth (`test_fraction`) of each client's samples;
        together they are the test set.
      y_test: like y.
      num_classes: the number of classes; None: of the different labels.
      task: 'classification', 'multilabel' or 'regression'.
      users: [n], the user of each sample, for partition="natural".
      users_test: [n_test], the user of each sample of x_test.
      name: the name of the data set in reports.
      test_split: as in `federate`; None is "within" without x_test, else "partition".
      **kwargs: further arguments of `federate`, such as `partition`, `num_clients`,
        `standardize` and `seed`, and of the partitioner.

    Returns:
      A `FederatedData`.

    Raises:
      ValueError: as `make_dataset` and `federate` do.

    Example:
      >>> x, y = np.arange(100) % 4 * np.array([[1], [1000]]), np.arange(100) % 4
      >>> data = from_arrays(x.T.astype(np.float32), y, num_clients=10)
      >>> data.train.index.shape, bool(abs(data.x).max() < 2)
      ((10, 8), True)
    """
    given = {"num_classes": num_classes, "users": users, "users_test": users_test}
    dataset = make_dataset(x, y, x_test, y_test, task=task, name=name, **given)
    test_split = test_split or ("within" if x_test is None else "partition")
    return federate(dataset, test_split=test_split, **kwargs)


def partition_counts(data: FederatedData) -> np.ndarray:
    """Counts each client's training samples by class.

    Args:
      data: a `FederatedData`.

    Returns:
      [N, num_classes] int64.

    Example:
      >>> x, y = np.zeros((8, 2), np.float32), np.arange(8) % 2
      >>> parts = [[0, 2], [1, 3, 5]]
      >>> partition_counts(from_arrays(x, y, x_test=x, y_test=y, partition=parts))
      array([[2, 0],
             [0, 3]])
    """
    labels = [one_label(data.y)[rows[:n]] for rows, n in zip(*data.train, strict=True)]
    return np.stack([np.bincount(y, minlength=data.num_classes) for y in labels])


def names(data: FederatedData) -> dict[str, Sequence[str]]:
    """Returns the names of all classes and of all clients, where there are any.

    Example:
      >>> x, y = np.zeros((4, 2), np.float32), ["ill", "well"] * 2
      >>> parts = {"north": [0, 1], "south": [2, 3]}
      >>> names(from_arrays(x, y, partition=parts))
      {'clients': ['north', 'south'], 'classes': ['ill', 'well']}
    """
    found = {} if data.clients is None else {"clients": data.clients}
    if known := data.classes:
        numbers = range(len(known), data.num_classes)  # of classes without a name
        found["classes"] = [*known, *map(str, numbers)][: data.num_classes]
    return found


def pack(parts: Sequence[np.ndarray]) -> Rows:
    """Packs index arrays into one padded table.

    Example:
      >>> pack([np.array([4, 2]), np.array([7])])
      Rows(index=array([[4, 2],
             [7, 0]], dtype=int32), size=array([2, 1], dtype=int32))
    """
    size = np.array([len(part) for part in parts], np.int32)
    index = np.zeros((len(parts), max(1, size.max())), np.int32)
    for row, part in zip(index, parts, strict=True):
        row[: len(part)] = part
    return Rows(index, size)


def pad(data: FederatedData, widths: Sequence[int]) -> FederatedData:
    """Pads the clients' tables, so that runs on other splits have the same shapes.

    Padding changes no result: valid rows come first, and their order in an epoch does
    not depend on the width of the table.

    Args:
      data: a `FederatedData`.
      widths: the columns of `train`, `val` and `test`, at least the largest client's.

    Example:
      >>> x, y = np.zeros((8, 2), np.float32), np.arange(8) % 2
      >>> data = from_arrays(x, y, x_test=x, y_test=y, partition=[[0, 2], [1, 3, 5]])
      >>> pad(data, (4, 1, 6)).train.index.tolist()
      [[0, 2, 0, 0], [1, 3, 5, 0]]
    """

    def wider(rows: Rows, width: int) -> Rows:
        index = np.pad(rows.index, ((0, 0), (0, width)))
        return rows._replace(index=index[:, :width])

    train, val, test = map(wider, (data.train, data.val, data.test), widths)
    return data._replace(train=train, val=val, test=test)


def widths(data: FederatedData) -> tuple[int, ...]:
    """Returns the columns of the tables `train`, `val` and `test`."""
    return tuple(rows.index.shape[1] for rows in (data.train, data.val, data.test))


def _draw_unseen(fraction, test, seed):
    """Returns the ids of the clients that never train."""
    count, tested = round(fraction * len(test)), np.array([len(t) > 0 for t in test])
    order = keys.on_host(seed, keys.UNSEEN).permutation(len(test))
    if not (tested[order[:count]].any() and tested[order[count:]].any()):
        told = f"unseen_fraction={fraction} of {len(test)} clients, expected one that "
        told += "leaves seen and unseen clients with test samples of their own"
        raise UserError(told)
    return order[:count]


def _standardize(dataset, rows):
    """Returns a table in the scale of its training rows, and this scale."""
    usual = [[0.0], [1.0]]  # of columns that are not numbers
    scale = np.where(dataset.numeric, moments(dataset.x[rows]), usual)
    mean, std = scale.astype(np.float32)
    x, x_test = ((v - mean) / std for v in (dataset.x, dataset.x_test))
    scaling = tuple(mean.tolist()), tuple(std.tolist())
    return {"x": x, "x_test": x_test, "scaling": scaling}


def _warn_of_overlap(train, held):
    """Says how many rows that were held out are trained on, where clients overlap."""
    trained = np.concatenate(train)
    for split, parts in held.items():
        rows = np.concatenate([np.zeros(0, np.int32), *parts])
        if shared := np.isin(rows, trained).sum():
            text = f"{shared} of {len(rows)} {split} samples are also trained on"
            warnings.warn(f"clients overlap: {text}", stacklevel=3)


def _client_names(dataset, parts):
    """Returns the keys of a mapping, or the users of clients that have one each."""
    if list(parts) != list(range(len(parts))):
        return list(map(str, parts))
    if dataset.user_names is None:
        return None
    users = [dataset.users[part] for part in parts.values()]
    names = [str(dataset.user_names[own[0]]) for own in users]
    plain = names == [str(i) for i in range(len(names))]
    return None if plain or any(own.min() < own.max() for own in users) else names


def _split(dataset, partition, num_clients, seed, test_split, kwargs):
    """Runs the partitioner, or takes the lists; returns checked parts by client."""
    if isinstance(partition, str):
        check("partition", partition, PARTITIONERS)
        partition = PARTITIONERS[partition]
    if callable(partition):
        parameters = inspect.signature(partition).parameters
        if "users" in parameters:
            kwargs = {"users": dataset.users} | kwargs
        if "labels_test" in parameters and test_split == "partition":
            kwargs = {"labels_test": dataset.y_test} | kwargs
        parts = partition(dataset.y, num_clients, seed=seed, **kwargs)
    elif kwargs:
        raise UserError(f"{min(kwargs)} has no effect when partition is a list")
    else:
        parts = partition
    return _check_parts(parts, num_clients, len(dataset.y))


def _check_parts(parts, num_clients, num_samples):
    """Returns integer arrays by client; refuses empty ones and rows out of range."""
    parts = dict(parts if isinstance(parts, Mapping) else enumerate(parts))
    if not parts or num_clients not in (None, len(parts)):
        raise UserError(f"partition has {len(parts)} parts; {num_clients=}")
    for i, part in parts.items():
        part = np.asarray(part)
        if part.dtype == bool and part.shape == (num_samples,):
            part = np.flatnonzero(part)
        if not part.size:
            raise UserError(f"client {i} of the partition has no training sample")
        if part.ndim != 1 or part.dtype.kind not in "iu":
            form = f"integers, or of {num_samples} booleans"
            raise UserError(f"client {i} of the partition is not a list of {form}")
        if part.min() < 0 or part.max() >= num_samples:
            rows = f"rows from {part.min()} to {part.max()}"
            raise UserError(f"client {i} has {rows}, expected 0 to {num_samples - 1}")
        parts[i] = part
    return parts
