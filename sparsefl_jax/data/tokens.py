"""Turns texts into samples: tokens of one length, or hashed counts of runs of letters.

Tokens are a vocabulary's word pieces, or hashed words. Token 0 is padding, and the
first token of a text stands for all of it, as `models.encoder` expects them.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from sparsefl_jax.core.check import UserError, blaming, check
from sparsefl_jax.core.extras import imported

HASH = 768  # as many features as a DistilBERT has
WORDS = "words"
MAX_TOKENS = 64
NUM_WORDS = 4096  # tokens of hashed words, as many as `models.encoder` reads
_CHUNK = 4096  # texts at a time, so that sparse counts of them stay small
_WORD = re.compile(r"\w+|[^\w\s]")


class TextEncoding(NamedTuple):
    """How texts become samples: tokens [n, T] int32, or features [n, D] float32.

    Attributes:
      field: of the configuration that chose it, for messages.
      encode: `(texts, title=None) -> [n, ...]`; `title` is what a progress bar on a
        terminal is called.
      identity: differs between encodings that give different samples.
    """

    field: str
    encode: Callable
    identity: str


def make_tokenizer(name: str | Path, max_tokens: int | None = None) -> TextEncoding:
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
        ids, source = partial(_hashed_words, length=length), WORDS
    else:
        pieces, content = _read_vocabulary(Path(name))
        pieces.no_padding()
        pieces.enable_truncation(length)
        source = hashlib.sha256(content).hexdigest()
        ids = lambda texts: [p.ids for p in pieces.encode_batch(texts)]  # noqa: E731

    encode = in_chunks(ids, length, np.int32)
    return TextEncoding("tokenizer", encode, f"{source} {length}")


def hashing(num_features: int = HASH) -> TextEncoding:
    """Returns the default encoding: counts of runs of letters in hashed buckets.

    Samples are [n, D] float32. The counts have signs, and those of a text are scaled to
    length 1; zeros stand for an empty text.

    This is feature hashing (Weinberger et al., ICML 2009, arXiv:0902.2206) of the runs
    of 3 and 4 letters of each lower-case word and the spaces around it, as
    scikit-learn's HashingVectorizer has it ("char_wb"). With few buckets, such runs are
    more informative than whole words. Nothing is learned, so the features are the same
    everywhere and leak nothing from one user to another.

    Args:
      num_features: D, the number of buckets, at least 1.

    Raises:
      ValueError: num_features is below 1.

    Example:
      >>> x = hashing(16).encode(["good film", "film GOOD", ""])
      >>> x.shape, bool((x[0] == x[1]).all()), bool(x[2].any())
      ((3, 16), True, False)
    """
    check("hash", num_features, "[1, inf)")

    def counts(chunk):
        x = np.zeros((len(chunk), num_features), np.float32)
        for row, text in zip(x, chunk, strict=True):
            hashes = np.array([_murmur(run) for run in _runs(text)], np.int64)
            np.add.at(row, abs(hashes) % num_features, np.where(hashes < 0, -1, 1))
        squares = np.square(x, dtype=np.float64).sum(1, keepdims=True)
        return x / np.sqrt(np.maximum(squares, 1))

    encode = in_chunks(counts, num_features, np.float32)
    return TextEncoding("hash", encode, f"hash {num_features}")


def in_chunks(function: Callable, size: int, dtype: type) -> Callable:
    """Returns a function of all texts, with a progress bar.

    Args:
      function: `(list of m strings)` to m sequences of at most `size` entries.
      size: the entries of a sample; shorter sequences are padded with 0.
      dtype: that of all samples.

    Returns:
      `(n strings, title=None) -> [n, size]`; the bar has the title, and there is none
      without one.
    """

    def encode(texts: Sequence[str], title: str | None = None) -> np.ndarray:
        hide = True if title is None else None  # None shows it on a terminal alone
        x = np.zeros((len(texts), size), dtype)
        with tqdm(total=len(texts), desc=title, unit=" texts", disable=hide) as bar:
            for start in range(0, len(texts), _CHUNK):
                chunk = list(texts[start : start + _CHUNK])
                rows = x[start : start + len(chunk)]
                for row, found in zip(rows, function(chunk), strict=True):
                    row[: len(found)] = found
                bar.update(len(chunk))
        return x

    return encode


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


def _hashed_words(texts: list[str], length: int) -> Iterator[list[int]]:
    """Yields 1 and then a token from 2 on for each word and mark of a text."""
    for text in texts:
        words = _WORD.findall(text.lower())[: length - 1]
        hashes = [zlib.crc32(word.encode()) % (NUM_WORDS - 2) for word in words]
        yield [1, *(2 + h for h in hashes)]


def _read_vocabulary(folder: Path) -> tuple[Any, bytes]:
    """Returns a tokenizer of the library, and its source."""
    begin = f"tokenizer={str(folder)!r}"
    names = ("tokenizer.json", "vocab.txt")
    path = next((folder / n for n in names if (folder / n).is_file()), None)
    if path is None:
        raise UserError(
            f"{begin}, expected {WORDS!r} or a folder with {' or '.join(names)}"
        )
    tokenizers = imported("tokenizers", "text", begin)
    with blaming(f"{begin} cannot be used"):
        content = path.read_bytes()
        if path.name == names[0]:
            pieces = tokenizers.Tokenizer.from_file(str(path))
        else:
            settings = _settings(folder)
            pieces = tokenizers.BertWordPieceTokenizer(str(path), **settings)
            content += repr(settings).encode()
        padding = pieces.token_to_id("[PAD]")
        if padding != 0:
            raise UserError(f"[PAD] is {padding}, expected 0")
    return pieces, content


def _settings(folder: Path) -> dict[str, bool]:
    """Returns whether a vocabulary is of lower-case words, as BERT's usually is."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {"lowercase": bool(settings.get("do_lower_case", True))}
