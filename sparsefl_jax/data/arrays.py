"""Forms of samples and labels that people bring, and the one form that is used."""

import warnings
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np


def with_channels(x: np.ndarray) -> np.ndarray:
    """Returns images with channels last; warns of shapes that are read unusually.

    Args:
      x: [n, H, W, C], [n, C, H, W] with 1, 3 or 4 channels, or grey images [n, H, W].

    Returns:
      [n, H, W, C].

    Example:
      >>> with_channels(np.zeros((4, 2, 2))).shape
      (4, 2, 2, 1)
    """
    shape, told = x.shape[1:], None
    if x.ndim == 3:
        if x.dtype.kind == "f" and shape[0] != shape[1]:
            told = "grey images; a series [n, T, C] is x[:, :, None], [n, T, 1, C]"
        x = x[..., None]
    elif shape[2] > 4 and shape[0] < min(shape[1:]):
        told = "[n, H, W, C]; if it is [n, C, H, W], pass np.moveaxis(x, 1, -1)"
        if shape[0] in (1, 3, 4):
            told = "channels first, [n, C, H, W]"
            x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    if told:
        warnings.warn(f"samples of shape {shape} are read as {told}", stacklevel=5)
    return x


def plain_labels(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns labels that are columns, whole floats, booleans or one-hot as integers.

    Args:
      y: [n], [n, 1] or one-hot rows [n, K]; whatever else it is stays as it is.
      x: the samples; integers of the shape of y have targets of their own.

    Example:
      >>> plain_labels(np.array([[0.0, 1.0], [1.0, 0.0]]), np.zeros((2, 5))).tolist()
      [1, 0]
    """
    y = np.asarray(y.tolist()) if y.dtype == object else y  # pandas has texts as such
    y = y[:, 0] if y.shape[1:] == (1,) else y
    if y.dtype.kind == "f" and ((y == np.rint(y)) & (np.abs(y) < 2**31)).all():
        y = y.astype(np.int64)
    y = y.astype(np.uint8) if y.dtype == bool else y
    tokens = x.shape == y.shape and x.dtype.kind in "iu"
    if y.ndim == 2 and y.dtype.kind in "iu" and len(y) and not tokens:
        y = y.argmax(1) if y.min() >= 0 and (y.sum(1) == 1).all() else y
    return y


def number_values(splits: Iterable[np.ndarray]) -> tuple[list[np.ndarray], Any]:
    """Numbers the values of all splits in ascending order.

    Args:
      splits: [n] integers or texts each.

    Returns:
      Each split as [n] int32, and the values by number.

    Example:
      >>> (y, y_test), classes = number_values([np.array([5, 3]), np.array([9])])
      >>> y.tolist(), y_test.tolist(), classes.tolist()
      ([1, 0], [2], [3, 5, 9])
    """
    splits = list(splits)
    found, places = np.unique(np.concatenate(splits), return_inverse=True)
    ends = np.cumsum([len(split) for split in splits])[:-1]
    return np.split(places.astype(np.int32), ends), found


def join_users(samples: Iterable[tuple]) -> dict[str, np.ndarray]:
    """Joins the samples of users into arguments of `make_dataset`.

    Args:
      samples: at a time a user, "" or "_test", and the user's x [n, ...] and y [n, ...]
        in the training or the test set.

    Example:
      >>> x, y = np.zeros((2, 3)), np.array([0, 1])
      >>> {k: len(v) for k, v in join_users([("a", "", x, y), ("b", "", x, y)]).items()}
      {'x': 4, 'y': 4, 'users': 4}
    """
    parts = defaultdict(list)
    for user, suffix, x, y in samples:
        for name, values in {"x": x, "y": y, "users": np.full(len(x), user)}.items():
            parts[name + suffix].append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}
