"""Turns texts into hashed counts of runs of letters, as samples for a network."""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

import numpy as np

from sparsefl_jax.core.validate import at_least
from sparsefl_jax.data.tokens import TextEncoding, in_chunks

HASH = 768  # as many features as a DistilBERT has


def hashing(num_features: int = HASH) -> TextEncoding:
    """Returns the encoding of texts where the user names no other."""
    encode = partial(hashed, num_features=num_features)
    return TextEncoding("hash", encode, f"hash {num_features}")


def hashed(
    texts: Sequence[str], title: str | None = None, *, num_features: int
) -> np.ndarray:
    """Counts runs of letters in hashed buckets, with signs, and scales to length 1.

    This is feature hashing (Weinberger et al., ICML 2009, arXiv:0902.2206) of the runs
    of 3 and 4 letters of each lower-case word and the spaces around it, as
    scikit-learn's HashingVectorizer has it ("char_wb"). With few buckets, such runs are
    more informative than whole words. Nothing is learned, so the features are the same
    everywhere and leak nothing from one user to another.

    Args:
      texts: n strings.
      title: what a progress bar on a terminal is called; None for no bar.
      num_features: D, the number of buckets, at least 1.

    Returns:
      [n, D] float32; zeros for an empty text.

    Raises:
      ValueError: num_features is below 1.

    Example:
      >>> x = hashed(["good film", "film GOOD", ""], num_features=16)
      >>> x.shape, bool((x[0] == x[1]).all()), bool(x[2].any())
      ((3, 16), True, False)
    """
    at_least("hash", num_features, 1)

    def encode(chunk):
        x = np.zeros((len(chunk), num_features), np.float32)
        for row, text in zip(x, chunk, strict=True):
            hashes = np.array([_murmur(run) for run in _runs(text)], np.int64)
            np.add.at(row, abs(hashes) % num_features, np.where(hashes < 0, -1, 1))
        squares = np.square(x, dtype=np.float64).sum(1, keepdims=True)
        return x / np.sqrt(np.maximum(squares, 1))

    return in_chunks(encode, num_features, np.float32)(texts, title)


def _runs(text: str) -> Iterator[str]:
    """Yields the runs of 3 and 4 letters of each word and the spaces around it."""
    for word in text.lower().split():
        padded = f" {word} "
        for size in (3, 4):
            for start in range(len(padded) - size + 1):
                yield padded[start : start + size]


@lru_cache(1 << 20)  # texts share most of their runs
def _murmur(run: str) -> int:
    """Computes Appleby's MurmurHash3 (x86, 32 bits, seed 0), with a sign.

    Example:
      >>> _murmur(""), _murmur("abc"), _murmur("test")
      (0, -1277324294, -1167338989)
    """
    content, whole, found = run.encode(), 0xFFFFFFFF, 0
    for start in range(0, len(content), 4):
        block = content[start : start + 4]
        mixed = int.from_bytes(block, "little") * 0xCC9E2D51 & whole
        found ^= (mixed << 15 | mixed >> 17) * 0x1B873593 & whole
        if len(block) == 4:
            found = (found << 13 | found >> 19) * 5 + 0xE6546B64 & whole
    found ^= len(content)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        found = (found ^ found >> shift) * factor & whole
    return found - (found >> 31 << 32)
