"""Turns texts into samples: tokens of one length, or hashed counts of runs of letters.

Tokens are a vocabulary's word pieces, or hashed words. Token 0 is padding, and the
first token of a text stands for all of it, as `models.encoder` expects them.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.extras import import_extra

HASH = 768  # as many features as a DistilBERT has
WORDS = "words"
MAX_TOKENS = 64
NUM_WORDS = 4096  # tokens of hashed words, as many as `models.encoder` reads
_CHUNK = 4096  # texts at a time, so that sparse counts of them stay small
_WORD = re.compile(r"\w+|[^\w\s]")


class Tokenizer(NamedTuple):
    """How texts become tokens.

    Attributes:
      given: the field that chose it and its value, for messages.
      encode: `(texts) -> [n, T]` int32.
      identity: differs between tokenizers that give different tokens.
    """

    given: str
    encode: Callable
    identity: str


def make_tokenizer(name: str | Path, max_tokens: int | None = None) -> Tokenizer:
    """Returns a tokenizer.

    Args:
      name: a folder with the `tokenizer.json` or the `vocab.txt` of a BERT, or "words"
        for the hashes of lower-case words and punctuation marks.
      max_tokens: T, by default 64; a longer text is cut, a shorter one padded.

    Raises:
      ValueError: the folder holds no such vocabulary, or `max_tokens` is below 2.

    Example:
      >>> words = make_tokenizer("words", 4)
      >>> x = words.encode(["Good film", "good, good film"])
      >>> x.shape, x[:, 0].tolist(), x[0, 3].item(), bool(x[0, 1] == x[1, 1] == x[1, 3])
      ((2, 4), [1, 1], 0, True)
    """
    length = MAX_TOKENS if max_tokens is None else max_tokens
    check("max_tokens", length, "[2, inf)")
    if name == WORDS:
        ids, source = partial(_hash_words, length=length), WORDS
    else:
        pieces = _read_vocabulary(Path(name))
        pieces.no_padding()
        pieces.enable_truncation(length)
        source = hashlib.sha256(pieces.to_str().encode()).hexdigest()
        ids = lambda texts: [p.ids for p in pieces.encode_batch(texts)]  # noqa: E731

    encode = partial(encode_chunks, function=ids, size=length, dtype=np.int32)
    return Tokenizer(f"tokenizer={str(name)!r}", encode, f"{source} {length}")


def hash_letters(texts: Sequence[str]) -> np.ndarray:
    """Counts a text's runs of letters in hashed buckets.

    This is feature hashing (Weinberger et al., ICML 2009, arXiv:0902.2206) of the runs
    of 3 and 4 letters of each lower-case word and the spaces around it, as
    scikit-learn's HashingVectorizer has it ("char_wb"). With few buckets, such runs are
    more informative than whole words. Nothing is learned, so the features are the same
    everywhere and leak nothing from one user to another.

    Args:
      texts: n strings.

    Returns:
      [n, 768] float32. The counts have signs, and those of a text are scaled to length
      1; zeros stand for an empty text.

    Example:
      >>> x = hash_letters(["good film", "film GOOD", ""])
      >>> x.shape, bool((x[0] == x[1]).all()), bool(x[2].any())
      ((3, 768), True, False)
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(
        n_features=HASH, dtype=np.float32, analyzer="char_wb", ngram_range=(3, 4)
    )
    counts = lambda chunk: vectorizer.transform(chunk).toarray()  # noqa: E731
    return encode_chunks(texts, counts, HASH, np.float32)


def encode_chunks(
    texts: Sequence[str], function: Callable, size: int, dtype: type
) -> np.ndarray:
    """Encodes texts, with a progress bar on a terminal.

    Args:
      texts: n strings.
      function: `(list of m strings)` to m sequences of at most `size` entries.
      size: the entries of a sample; shorter sequences are padded with 0.
      dtype: that of all samples.

    Returns:
      [n, size].
    """
    x = np.zeros((len(texts), size), dtype)
    for start in tqdm(range(0, len(texts), _CHUNK), "texts", disable=None):
        chunk = list(texts[start : start + _CHUNK])
        for row, found in zip(x[start:], function(chunk), strict=False):
            row[: len(found)] = found
    return x


def _hash_words(texts: list[str], length: int) -> Iterator[list[int]]:
    """Yields 1 and then a token from 2 on for each word and mark of a text."""
    for text in texts:
        words = _WORD.findall(text.lower())[: length - 1]
        yield [1, *(2 + zlib.crc32(word.encode()) % (NUM_WORDS - 2) for word in words)]


def _read_vocabulary(folder: Path) -> Any:
    """Returns a tokenizer of the library."""
    begin = f"tokenizer={str(folder)!r}"
    whole, pieces = folder / "tokenizer.json", folder / "vocab.txt"
    if not whole.is_file() and not pieces.is_file():
        names = "tokenizer.json or vocab.txt"
        raise UserError(f"{begin}, expected {WORDS!r} or a folder with {names}")
    tokenizers = import_extra("tokenizers", "text", begin)
    with blame(f"{begin} cannot be used"):
        if whole.is_file():
            found = tokenizers.Tokenizer.from_file(str(whole))
        else:
            config = folder / "tokenizer_config.json"
            told = json.loads(config.read_bytes()) if config.is_file() else {}
            lowercase = bool(told.get("do_lower_case", True))
            found = tokenizers.BertWordPieceTokenizer(str(pieces), lowercase=lowercase)
        padding = found.token_to_id("[PAD]")
        if padding != 0:
            raise UserError(f"[PAD] is {padding}, expected 0")
    return found
