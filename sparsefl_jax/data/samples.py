"""Samples of real data sets that ship with the package, for runs without a network.

Two have 2,000 training and 500 test images with equally many of every class, which
`scripts/cut_samples.py` made. One is the beginning of a play, whose characters are the
users. `samples/README.md` names sources and licences.
"""

from pathlib import Path

import numpy as np

from sparsefl_jax.data import characters

FOLDER = Path(__file__).parent / "samples"
PLAY, PIECE = "shakespeare_sample", 40  # characters of a sample
SAMPLES = ("cifar10_sample", "fashion_mnist_sample", PLAY)


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
      `x` [n, H, W, C] uint8, `y` [n] int32, `x_test` and `y_test`; of the play `x`
      [n, T] uint8, `y` [n, T] int32, and the `users` of both splits.

    Example:
      >>> data = read("fashion_mnist_sample")
      >>> data["x"].shape, data["x_test"].shape, set(np.bincount(data["y"]).tolist())
      ((2000, 28, 28, 1), (500, 28, 28, 1), {200})
    """
    if name == PLAY:
        play = (FOLDER / f"{name}.txt").read_text(encoding="ascii")
        return characters.by_character(play, PIECE)
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as f:
        return {
            "x": decode(f["x_train"]),
            "y": f["y_train"].astype(np.int32),
            "x_test": decode(f["x_test"]),
            "y_test": f["y_test"].astype(np.int32),
        }
