"""Turns texts into fixed features by a pretrained encoder: a BERT or a DistilBERT.

The features of a text are the encoder's last state at the first token ([CLS]). They
are computed once and cached with the data set, see `cache`.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from sparsefl_jax.core.check import blaming
from sparsefl_jax.data.tokens import TextEncoding, make_tokenizer
from sparsefl_jax.models import transformer

_BATCH = 64  # texts at a time


def make_text_encoder(folder: str | Path) -> TextEncoding:
    """Reads an encoder and its tokenizer from a folder, never from a network.

    Args:
      folder: a folder with `config.json`, `model.safetensors`, and `tokenizer.json` or
        `vocab.txt`, as Hugging Face's libraries write it.

    Raises:
      ValueError: the folder holds no such encoder, or the extra `text` is missing.
    """
    with blaming("text_encoder"):
        states, positions = transformer.read_states(folder)
    tokenizer = make_tokenizer(folder, positions)
    with (Path(folder) / "model.safetensors").open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    encode = embedding(tokenizer.encode, states)
    return TextEncoding(
        f"text_encoder={str(folder)!r}", encode, f"{tokenizer.identity} {weights}"
    )


def embedding(tokenize: Callable, states: Callable) -> Callable:
    """Returns a function to an encoder's last state at each text's first token.

    Args:
      tokenize: `(texts) -> [n, T]` int32, padded with 0; texts that are too long for
        the encoder are cut.
      states: `(tokens [B, T]) -> [B, D]` float32.

    Returns:
      `(n strings) -> [n, D]` float32, D the encoder's width: 768 for DistilBERT.
    """

    def encode(texts: Sequence[str]) -> np.ndarray:
        # Batches of texts of similar length need little padding.
        order = np.argsort([len(text) for text in texts], kind="stable")
        parts = []
        for start in tqdm(range(0, len(texts), _BATCH), "text_encoder", disable=None):
            chosen = [texts[i] for i in order[start : start + _BATCH]]
            tokens = _trim(tokenize(chosen), _BATCH)
            parts.append(np.asarray(states(tokens))[: len(chosen)])
        return np.concatenate(parts)[np.argsort(order)]

    return encode


def _trim(tokens: np.ndarray, rows: int) -> np.ndarray:
    """Cuts padding off until the length is a power of two, and adds empty rows.

    The network is compiled once for each shape, so few shapes are better.

    Example:
      >>> _trim(np.array([[5, 6, 7, 0, 0, 0, 0]], np.int32), 2).tolist()
      [[5, 6, 7, 0], [0, 0, 0, 0]]
    """
    longest = max(1, int((tokens != 0).sum(1).max(initial=0)))
    tokens = tokens[:, : 2 ** (longest - 1).bit_length()]
    return np.pad(tokens, ((0, rows - len(tokens)), (0, 0)))
