"""Turns texts into tokens, one a character, and into the next character of each.

The alphabet is newline and printable ASCII, 96 characters; '?' stands for any other.
"""

import numpy as np

from sparsefl_jax.core.check import UserError

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
_PLACES = np.full(128, ALPHABET.index("?"), np.uint8)
_PLACES[[ord(c) for c in ALPHABET]] = range(len(ALPHABET))


def encode(text: str) -> np.ndarray:
    r"""Returns the place of each character in `ALPHABET`, [len(text)] uint8.

    Example:
      >>> encode("a b\n\u00e9").tolist() == [ALPHABET.index(c) for c in "a b\n?"]
      True
    """
    return _PLACES[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]


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


def cut_texts(texts: list[str], following: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns texts as tokens, and the next character after each of theirs.

    Args:
      texts: n texts of T characters.
      following: the character after each text.

    Returns:
      `x` [n, T] uint8 and `y` [n, T] int32.

    Raises:
      ValueError: texts differ in length, or more than a character follows one.

    Example:
      >>> x, y = cut_texts(["abc"], ["d"])
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
