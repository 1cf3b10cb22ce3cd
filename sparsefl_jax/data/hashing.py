"""Turns texts into hashed counts of runs of letters, as samples for a network."""

from collections.abc import Sequence
from functools import partial

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

    This applies scikit-learn's HashingVectorizer (Weinberger et al., ICML 2009,
    arXiv:0902.2206) to the runs of 3 and 4 letters of each lower-case word and the
    spaces around it. With few buckets, such runs are more informative than whole words.
    Nothing is learned, so the features are the same everywhere and leak nothing from
    one user to another.

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
    from sklearn.feature_extraction.text import HashingVectorizer

    at_least("hash", num_features, 1)
    vectorizer = HashingVectorizer(
        n_features=num_features,
        dtype=np.float32,
        analyzer="char_wb",
        ngram_range=(3, 4),
    )
    encode = in_chunks(
        lambda chunk: vectorizer.transform(chunk).toarray(), num_features, np.float32
    )
    return encode(texts, title)
