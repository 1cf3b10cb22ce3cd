"""Sentences of a play by speaker; the mark that ends a sentence is its label."""

import re
from collections.abc import Callable

import numpy as np

from sparsefl_jax.data.characters import speeches

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
    parts = {"": [], "_test": []}
    for role, words in speeches(play).items():
        found = _SENTENCE.findall(" ".join(words.split()))
        found = [(text.strip(), mark, role) for text, mark in found]
        found = [sentence for sentence in found if " " in sentence[0]]
        end = len(found) - max(1, round(test_share * len(found)))
        if end > 0:
            parts[""] += found[:end]
            parts["_test"] += found[end:]
    arrays = {}
    for suffix, sentences in parts.items():
        texts, marks, roles = zip(*sentences, strict=True)
        arrays[f"x{suffix}"] = encode(texts)
        arrays[f"y{suffix}"] = np.array([MARKS.index(mark) for mark in marks], np.int32)
        arrays[f"users{suffix}"] = np.array(roles)
    return arrays
