"""Turns texts into tokens, one a character, and into the next character of each.

The alphabet is newline and printable ASCII, 96 characters; '?' stands for any other.
Of a play the users are the roles; the mark that ends a sentence can be its label.
"""

import collections
import re
from collections.abc import Callable

import numpy as np

from sparsefl_jax.core.check import UserError

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
MARKS = (".", "!", "?")  # that end a sentence
_SENTENCE = re.compile(r"([^.!?]+)([.!?])")


def encode(text: str) -> np.ndarray:
    r"""Returns the place of each character in `ALPHABET`, [len(text)] uint8.

    Example:
      >>> encode("a b\n\u00e9").tolist() == [ALPHABET.index(c) for c in "a b\n?"]
      True
    """
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    other = ALPHABET.index("?")
    printable = np.where((codes >= 32) & (codes < 127), codes - 31, other)
    return np.where(codes == ord("\n"), 0, printable).astype(np.uint8)


def windows(text: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a text into pieces, each with the next character after every character.

    Args:
      text: any text.
      length: T; a rest of up to T characters is left out.

    Returns:
      `x` [n, T] uint8 and `y` [n, T] int32.

    Example:
      >>> x, y = windows("abcdefg", 3)
      >>> ["".join(ALPHABET[c] for c in row) for row in (*x, *y)]
      ['abc', 'def', 'bcd', 'efg']
    """
    codes = encode(text)
    count = max(0, (len(codes) - 1) // length)
    x, y = (codes[i : i + count * length].reshape(count, length) for i in (0, 1))
    return x, y.astype(np.int32)


def followed(texts: list[str], following: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns texts as tokens, and the next character after each of theirs.

    Args:
      texts: n texts of T characters.
      following: the character after each text.

    Returns:
      `x` [n, T] uint8 and `y` [n, T] int32.

    Raises:
      ValueError: texts differ in length, or more than a character follows one.

    Example:
      >>> x, y = followed(["abc"], ["d"])
      >>> "".join(ALPHABET[c] for c in y[0])
      'bcd'
    """
    lengths = sorted({len(text) for text in texts})
    if len(lengths) > 1 or not lengths[0]:
        raise UserError(f"texts of {lengths} characters, expected one length")
    if any(len(character) != 1 for character in following):
        raise UserError("labels of several characters, expected the next one of each")
    joined = "".join(map("".join, zip(texts, following, strict=True)))
    codes = encode(joined).reshape(len(texts), -1)
    return codes[:, :-1], codes[:, 1:].astype(np.int32)


def speeches(play: str) -> dict[str, str]:
    r"""Returns all that each character of a play says, by name.

    Args:
      play: speeches apart by empty lines, each below a line `NAME:`.

    Example:
      >>> speeches("A:\nOne.\n\nB:\nTwo.\n\nA:\nThree.\n")
      {'A': 'One.\nThree.\n', 'B': 'Two.\n'}
    """
    lines = {}
    for speech in re.split(r"\n\n+", play.strip()):
        name, _, words = speech.partition(":\n")
        lines[name] = lines.get(name, "") + words + "\n"
    return lines


def by_character(play: str, samples: Callable) -> dict:
    r"""Returns a play as a data set whose users are its characters.

    The last fifth of a character's samples, at least one, is for testing. Characters
    with less than two are left out.

    Args:
      play: as `speeches` takes it.
      samples: `(words) -> (x [n, ...], y [n, ...])`, of all that a character says.

    Returns:
      The arrays that `sources.make_dataset` takes.

    Example:
      >>> play = "A:\nOne two three.\n\nB:\nNo.\n"
      >>> arrays = by_character(play, lambda words: windows(words, 5))
      >>> arrays["x"].shape, arrays["x_test"].shape, arrays["users"]
      ((1, 5), (1, 5), array(['A'], dtype='<U1'))
    """
    parts = collections.defaultdict(list)
    for name, words in speeches(play).items():
        x, y = samples(words)
        end = len(x) - max(1, round(len(x) / 5))
        if end > 0:
            arrays = {"x": x, "y": y, "users": np.full(len(x), name)}
            for key, values in arrays.items():
                parts[key].append(values[:end])
                parts[f"{key}_test"].append(values[end:])
    return {key: np.concatenate(values) for key, values in parts.items()}


def by_speaker(play: str, encode: Callable) -> dict:
    r"""Returns the sentences of a play as a data set whose users are its roles.

    A sentence has at least two words, and loses the mark that ends it. The last
    sentences of a role are for testing. Roles with a single sentence are left out.

    Args:
      play: as `speeches` takes it.
      encode: `(texts) -> [n, ...]`, the samples.

    Returns:
      The arrays that `sources.make_dataset` takes: `x` [n, ...], `y` [n] int32, the
      place in `MARKS`, and `users` [n], and the same of the test samples.

    Example:
      >>> arrays = by_speaker("A:\nWho is it? Come in! I am not here.\n", np.array)
      >>> arrays["y"].tolist(), arrays["y_test"].tolist(), arrays["users"].tolist()
      ([2, 1], [0], ['A', 'A'])
    """
    arrays = by_character(play, _sentences)
    return arrays | {x: encode(arrays[x].tolist()) for x in ("x", "x_test")}


def _sentences(words: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sentences of what a role says, and the places of their marks."""
    found = _SENTENCE.findall(" ".join(words.split()))
    found = [(text.strip(), MARKS.index(mark)) for text, mark in found]
    found = [sentence for sentence in found if " " in sentence[0]]
    texts, marks = ([sentence[i] for sentence in found] for i in (0, 1))
    return np.array(texts), np.array(marks, np.int32)
