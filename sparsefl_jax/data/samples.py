"""Samples of two real data sets that ship with the package, for runs without a network.

Each has 2,000 training and 500 test images with equally many of every class.
`scripts/cut_samples.py` made them; `samples/README.md` names sources and licences.
"""

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "samples"
SAMPLES = ("cifar10_sample", "fashion_mnist_sample")


def encode(x: np.ndarray) -> np.ndarray:
    """Encodes uint8 images [n, H, W, C] as differences from the row above, mod 256.

    Example:
      >>> encode(np.array([3, 1, 2], np.uint8).reshape(1, 3, 1, 1)).ravel().tolist()
      [3, 254, 1]
    """
    return np.diff(x, axis=1, prepend=np.uint8(0))


def decode(differences: np.ndarray) -> np.ndarray:
    """Decodes the output of `encode` back into images [n, H, W, C] uint8.

    Example:
      >>> x = np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2)[:, ::-1]
      >>> bool((decode(encode(x)) == x).all())
      True
    """
    return np.cumsum(differences, axis=1, dtype=np.uint8)


def read(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reads an embedded sample.

    Args:
      name: one of `SAMPLES`.

    Returns:
      `(x, y, x_test, y_test)`: images [n, H, W, C] uint8, labels [n] int32.

    Example:
      >>> x, y, x_test, y_test = read("fashion_mnist_sample")
      >>> x.shape, x_test.shape, np.bincount(y).tolist() == [200] * 10
      ((2000, 28, 28, 1), (500, 28, 28, 1), True)
    """
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as f:
        return (
            decode(f["x_train"]),
            f["y_train"].astype(np.int32),
            decode(f["x_test"]),
            f["y_test"].astype(np.int32),
        )
