"""Texts to features: hashed letters, and real sentences as tokens."""

import numpy as np
import pytest

from sparsefl_jax.data import tokens

pytestmark = pytest.mark.slow


def murmur(run):
    """Computes Appleby's MurmurHash3 (x86, 32 bits, seed 0), with a sign.

    >>> murmur(""), murmur("abc"), murmur("test")
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


def test_letters_are_hashed_by_the_published_function():
    """Runs of 3 and 4 letters of each word and the spaces around it, with a sign."""
    assert [murmur(run) for run in ("", "abc", "test")] == [0, -1277324294, -1167338989]
    texts = [
        "To be, or not",
        "à  la\tcarte \u3000 ß",
        "a",
        "I 漢字 😀😀",
        " ",
        "x" * 60,
    ]
    want = np.zeros((len(texts), 768))
    for row, text in zip(want, texts, strict=True):
        for word in text.lower().split():
            padded = f" {word} "
            for end in range(3, len(padded) + 1):
                for run in {padded[end - 3 : end], padded[max(0, end - 4) : end]}:
                    row[abs(murmur(run)) % 768] += 1 if murmur(run) >= 0 else -1
    want /= np.maximum(np.linalg.norm(want, axis=1, keepdims=True), 1)
    found = tokens.hash_letters(texts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, want, rtol=1e-6)
