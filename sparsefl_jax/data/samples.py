"""Samples of real data sets that ship with the package, for runs without a network.

Two have 2,000 training and 500 test images with equally many of every class, and one
digits of 48 writers; `scripts/cut_samples.py` made them. The others are the beginning
of a play, whose roles are the users: its text, and its sentences with the marks that
end them as labels. `samples/README.md` names sources and licences.
"""

import collections
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from sparsefl_jax.data import npz
from sparsefl_jax.data.arrays import join_users
from sparsefl_jax.data.cache import Source
from sparsefl_jax.data.characters import windows

FOLDER = Path(__file__).parent / "samples"
PLAY, PIECE = "shakespeare_sample", 40  # characters of a sample
SENTENCES = "sentences_sample"
MARKS = (".", "!", "?")  # that end a sentence
SAMPLES = ("cifar10_sample", "fashion_mnist_sample", "mnist_sample", PLAY, SENTENCES)
_SENTENCE = re.compile(r"([^.!?]+)([.!?])")


def find(name: str) -> Source:
    """Finds one of `SAMPLES`."""
    files = [FOLDER / f"{PLAY}.txt"] if name == SENTENCES else []  # to be encoded
    return Source(name, files, partial(read, name))


def read(name: str) -> dict:
    """Reads an embedded sample.

    Returns:
      `x` [n, H, W, C] uint8, `y` [n] integers, `x_test` and `y_test`; of the play `x`
      [n, T] uint8, `y` [n, T] int32, and the `users` of both splits; of its sentences
      `x` [n] texts. The digits have `users` of the training images.

    Example:
      >>> data = read("fashion_mnist_sample")
      >>> data["x"].shape, data["x_test"].shape, set(np.bincount(data["y"]).tolist())
      ((2000, 28, 28, 1), (500, 28, 28, 1), {200})
    """
    if name == PLAY:
        return _by_role(partial(windows, length=PIECE))
    if name == SENTENCES:
        return _by_role(_sentences)
    arrays = npz.read(FOLDER / f"{name}.npz")
    for key in ("x", "x_test"):  # holds differences from the row above, mod 256
        arrays[key] = np.cumsum(arrays[key], axis=1, dtype=np.uint8)
    return arrays


def _by_role(samples: Callable) -> dict:
    """Returns the play as a data set whose users are its roles.

    The last fifth of a role's samples, at least one, is for testing. Roles with less
    than two are left out.

    Args:
      samples: `(words) -> (x [n, ...], y [n, ...])`, of all that a role says.
    """
    said, parts = collections.defaultdict(str), []
    play = (FOLDER / f"{PLAY}.txt").read_text(encoding="ascii")
    for speech in re.split(r"\n\n+", play.strip()):
        role, _, words = speech.partition(":\n")
        said[role] += words + "\n"
    for role, words in said.items():
        x, y = samples(words)
        end = len(x) - max(1, round(len(x) / 5))
        if end > 0:
            parts += (role, "", x[:end], y[:end]), (role, "_test", x[end:], y[end:])
    return join_users(parts)


def _sentences(words: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns sentences of two words and more, and the places of their marks."""
    found = _SENTENCE.findall(" ".join(words.split()))
    found = [(text.strip(), mark) for text, mark in found if " " in text.strip()]
    texts, marks = ([sentence[i] for sentence in found] for i in (0, 1))
    return np.array(texts), np.array(list(map(MARKS.index, marks)))
