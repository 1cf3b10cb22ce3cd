"""Sentences of a play by speaker; the mark that ends a sentence is its label."""

import re
from collections.abc import Callable

import numpy as np

from sparsefl_jax.data.characters import by_character

MARKS = (".", "!", "?")
_SENTENCE = re.compile(r"([^.!?]+)([.!?])")


def by_speaker(play: str, encode: Callable, test_share: float = 0.2) -> dict:
    r"""Returns the sentences of a play as a data set whose users are its roles.

    A sentence has at least two words, and loses the mark that ends it. The last
    sentences of a role are for testing. Roles with a single sentence are left out.

    Args:
      play: as `characters.speeches` takes it.
      encode: `(texts) -> [n, ...]`, the samples.
      test_share: the share of a role's sentences for testing, at least one.

    Returns:
      The arrays that `sources.make_dataset` takes: `x` [n, ...], `y` [n] int32, the
      place in `MARKS`, and `users` [n], and the same of the test samples.

    Example:
      >>> arrays = by_speaker("A:\nWho is it? Come in! I am not here.\n", np.array)
      >>> arrays["y"].tolist(), arrays["y_test"].tolist(), arrays["users"].tolist()
      ([2, 1], [0], ['A', 'A'])
    """
    arrays = by_character(play, _sentences, test_share)
    return arrays | {x: encode(arrays[x].tolist()) for x in ("x", "x_test")}


def _sentences(words: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sentences of what a role says, and the places of their marks."""
    found = _SENTENCE.findall(" ".join(words.split()))
    found = [(text.strip(), MARKS.index(mark)) for text, mark in found]
    found = [sentence for sentence in found if " " in sentence[0]]
    texts, marks = ([sentence[i] for sentence in found] for i in (0, 1))
    return np.array(texts), np.array(marks, np.int32)
