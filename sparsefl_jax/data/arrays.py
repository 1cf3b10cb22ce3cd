"""Forms of samples and labels that people bring, and the one form that is used."""

import warnings
from collections.abc import Sequence

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


def number_classes(
    y: np.ndarray, y_test: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Sequence[str]]:
    """Numbers labels in ascending order.

    Args:
      y: [n] integers or texts.
      y_test: [n_test], like y.

    Returns:
      `y` [n] int32, `y_test` [n_test] int32, and the labels that were numbered.

    Example:
      >>> y, y_test, classes = number_classes(np.array([5, 3]), np.array([9]))
      >>> y.tolist(), y_test.tolist(), classes
      ([1, 0], [2], ['3', '5', '9'])
    """
    found, places = np.unique(np.concatenate([y, y_test]), return_inverse=True)
    y, y_test = np.split(places.astype(np.int32), [len(y)])
    return y, y_test, found.astype(str).tolist()
