"""Samples of real data sets that ship with the package, for runs without a network.

Two have 2,000 training and 500 test images with equally many of every class, and one
digits of 48 writers; `scripts/cut_samples.py` made them. The others are the beginning
of a play, whose characters are the users: its text, and its sentences with the marks
that end them as labels. `samples/README.md` names sources and licences.
"""

from functools import partial
from pathlib import Path

import numpy as np

from sparsefl_jax.data.characters import by_character, by_speaker, windows
from sparsefl_jax.data.tokens import TextEncoding, hashing

FOLDER = Path(__file__).parent / "samples"
PLAY, PIECE = "shakespeare_sample", 40  # characters of a sample
SENTENCES = "sentences_sample"
SAMPLES = ("cifar10_sample", "fashion_mnist_sample", "mnist_sample", PLAY, SENTENCES)


def decode(differences: np.ndarray) -> np.ndarray:
    """Decodes differences from the row above, mod 256, to images [n, H, W, C] uint8.

    Example:
      >>> decode(np.array([3, 254, 1], np.uint8).reshape(1, 3, 1, 1)).ravel().tolist()
      [3, 1, 2]
    """
    return np.cumsum(differences, axis=1, dtype=np.uint8)


def read(name: str, encoding: TextEncoding | None = None) -> dict[str, np.ndarray]:
    """Reads an embedded sample.

    Args:
      name: one of `SAMPLES`.
      encoding: what turns sentences into samples; None for hashed features.

    Returns:
      `x` [n, H, W, C] uint8, `y` [n] int32, `x_test` and `y_test`; of the play `x`
      [n, T] uint8, `y` [n, T] int32, and the `users` of both splits; of its sentences
      `x` [n, D] float32, or tokens [n, T] int32. The digits have `users` of the
      training images.

    Example:
      >>> data = read("fashion_mnist_sample")
      >>> data["x"].shape, data["x_test"].shape, set(np.bincount(data["y"]).tolist())
      ((2000, 28, 28, 1), (500, 28, 28, 1), {200})
    """
    if name in (PLAY, SENTENCES):
        play = (FOLDER / f"{PLAY}.txt").read_text(encoding="ascii")
        if name == PLAY:
            return by_character(play, partial(windows, length=PIECE))
        return by_speaker(play, (encoding or hashing()).encode)
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as f:
        users = {"users": f["users"].astype(np.int32)} if "users" in f else {}
        return users | {
            "x": decode(f["x_train"]),
            "y": f["y_train"].astype(np.int32),
            "x_test": decode(f["x_test"]),
            "y_test": f["y_test"].astype(np.int32),
        }
