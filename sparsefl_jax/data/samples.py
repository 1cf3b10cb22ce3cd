"""Samples of two real data sets that ship with the package, for runs without a network.

Each has 2,000 training and 500 test images with equally many of every class.
`scripts/cut_samples.py` made them; `samples/README.md` names sources and licences.
"""

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "samples"
SAMPLES = ("cifar10_sample", "fashion_mnist_sample")


def decode(differences: np.ndarray) -> np.ndarray:
    """Decodes differences from the row above, mod 256, to images [n, H, W, C] uint8.

    Example:
      >>> decode(np.array([3, 254, 1], np.uint8).reshape(1, 3, 1, 1)).ravel().tolist()
      [3, 1, 2]
    """
    return np.cumsum(differences, axis=1, dtype=np.uint8)


def read(name: str) -> dict[str, np.ndarray]:
    """Reads an embedded sample.

    Args:
      name: one of `SAMPLES`.

    Returns:
      `x` [n, H, W, C] uint8, `y` [n] int32, `x_test` and `y_test`.

    Example:
      >>> data = read("fashion_mnist_sample")
      >>> data["x"].shape, data["x_test"].shape, set(np.bincount(data["y"]).tolist())
      ((2000, 28, 28, 1), (500, 28, 28, 1), {200})
    """
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as f:
        return {
            "x": decode(f["x_train"]),
            "y": f["y_train"].astype(np.int32),
            "x_test": decode(f["x_test"]),
            "y_test": f["y_test"].astype(np.int32),
        }
