"""Turns texts into tokens of one length: a vocabulary's word pieces, or hashed words.

Token 0 is padding, and the first token of a text stands for all of it, as
`models.encoder` expects them.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from sparsefl_jax.core.extras import imported
from sparsefl_jax.core.validate import at_least, blaming

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
      identity: tells apart what gives other samples.
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
    at_least("max_tokens", length, 2)
    if name == WORDS:
        encode = in_chunks(
            lambda texts: [_hashed_words(text, length) for text in texts],
            length,
            np.int32,
        )
        return TextEncoding("tokenizer", encode, f"{WORDS} {length}")
    pieces, content = _read_vocabulary(Path(name))
    pieces.no_padding()
    pieces.enable_truncation(length)

    def ids(texts):
        return [found.ids for found in pieces.encode_batch(texts)]

    identity = f"{hashlib.sha256(content).hexdigest()} {length}"
    return TextEncoding("tokenizer", in_chunks(ids, length, np.int32), identity)


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


def _hashed_words(text: str, length: int) -> list[int]:
    """Returns 1 and then a token from 2 on for each word and mark."""
    words = _WORD.findall(text.lower())[: length - 1]
    hashes = [zlib.crc32(word.encode()) % (NUM_WORDS - 2) for word in words]
    return [1, *(2 + h for h in hashes)]


def _read_vocabulary(folder: Path) -> tuple[Any, bytes]:
    """Returns a tokenizer of the library, and what it was read from."""
    begin = f"tokenizer={str(folder)!r}"
    names = ("tokenizer.json", "vocab.txt")
    path = next((folder / n for n in names if (folder / n).is_file()), None)
    if path is None:
        raise ValueError(
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
            raise ValueError(f"[PAD] is {padding}, expected 0")
    return pieces, content


def _settings(folder: Path) -> dict[str, bool]:
    """Returns whether a vocabulary is of lower-case words, as BERT's usually is."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {"lowercase": bool(settings.get("do_lower_case", True))}
