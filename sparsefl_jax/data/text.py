"""Turns labelled texts into fixed features, and writes them as an .npz data set.

    python -m sparsefl_jax.data.text glue/sst2 sst2.npz --hash 768
    python -m sparsefl_jax.data.text tweets.csv tweets.npz --text=tweet --label=mood
        --user=author --encoder=models/distilbert-base-uncased

The source is a CSV file (.csv, or .tsv with tabs) or a prepared TFDS data set with one
text and one label. `--encoder` is a folder that holds a BERT or a DistilBERT in Hugging
Face's format, with its tokenizer; nothing is ever downloaded. `--hash N` counts runs of
letters in N buckets and knows nothing of their meaning. A CSV file has no test set:
train on it with `--config.test_split=within`, which holds out a fifth of each client's
samples.
"""

import argparse
import csv
import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsefl_jax.core.validate import at_least, one_of
from sparsefl_jax.data import prepared_tfds
from sparsefl_jax.data.hashing import hashed
from sparsefl_jax.data.tokens import make_tokenizer
from sparsefl_jax.models import transformer
from sparsefl_jax.system.files import naming

_TABLES = {".csv": ",", ".tsv": "\t"}


class Texts(NamedTuple):
    """The labelled texts of one split."""

    texts: list[str]
    y: np.ndarray  # [n] int32
    class_names: list[str]
    users: np.ndarray | None  # [n] int32


def read_table(
    path: str | Path,
    text: str,
    label: str,
    user: str | None = None,
    *,
    header: bool = True,
    encoding: str | None = None,
) -> Texts:
    """Reads columns of a CSV file.

    Args:
      path: a .csv file, or a .tsv file if tabs separate the columns.
      text, label, user: the names of columns; without a header, their numbers from "0".
      header: whether the first line names the columns.
      encoding: the encoding of the file; None for UTF-8.

    Returns:
      `Texts`. Labels and users are numbered in sorted order, which is numerical if all
      of them are integers.

    Raises:
      ValueError: the file is not such a table, or lacks a column or an entry.
      OSError: the file cannot be read.
    """
    wanted = {"text": text, "label": label} | ({"user": user} if user else {})
    columns, path = [], Path(path)
    try:
        with path.open(newline="", encoding=encoding or "utf-8-sig") as file:
            lines = csv.reader(file, delimiter=_TABLES[path.suffix])
            first = next(lines, [])
            names = first if header else [str(i) for i in range(len(first))]
            for role, name in wanted.items():
                one_of(role, name, names)
            places = [names.index(name) for name in wanted.values()]
            for line in lines if header else itertools.chain([first], lines):
                if not line:  # files often end in an empty line
                    continue
                if len(line) <= max(places) or not all(line[i] for i in places[1:]):
                    raise ValueError(
                        f"line {lines.line_num} lacks a text, label or user"
                    )
                columns.append([line[i] for i in places])
    except (ValueError, LookupError, csv.Error) as error:
        raise ValueError(f"table {str(path)!r} cannot be used: {error}") from None
    if not columns:
        raise ValueError(f"table {str(path)!r} has no texts")
    texts, labels, *users = zip(*columns, strict=True)
    class_names, y = _numbered(labels)
    return Texts(list(texts), y, class_names, _numbered(users[0])[1] if user else None)


class Encoder(NamedTuple):
    """A pretrained network that turns texts into features.

    Attributes:
      tokenize: `(texts) -> [n, T]` int32, padded with 0.
      states: `(tokens [B, T]) -> [B, D]` float32.
    """

    tokenize: Callable
    states: Callable


def load_encoder(folder: str | Path) -> Encoder:
    """Loads a BERT or a DistilBERT and its tokenizer from a folder, never a network.

    Args:
      folder: a folder with `config.json`, `model.safetensors`, and `tokenizer.json` or
        `vocab.txt`, as Hugging Face's libraries write it.

    Raises:
      ValueError: the folder holds no such encoder, or the extra `text` is missing.
    """
    states, positions = transformer.read_states(folder)
    return Encoder(make_tokenizer(folder, positions).encode, states)


def embed(
    texts: Sequence[str],
    encoder: Encoder,
    *,
    batch_size: int = 64,
    show: bool = False,
) -> np.ndarray:
    """Returns an encoder's last state at each text's first token ([CLS]).

    Args:
      texts: n strings; the encoder cuts those that are too long for it.
      encoder: as `load_encoder` returns it.
      batch_size: the number of texts that are encoded at a time.
      show: whether to show a progress bar.

    Returns:
      [n, D] float32, D the encoder's width: 768 for DistilBERT.

    Raises:
      ValueError: batch_size is below 1.
    """
    from tqdm import tqdm

    at_least("batch_size", batch_size, 1)
    # Batches of texts of similar length need little padding.
    order = np.argsort([len(text) for text in texts], kind="stable")
    parts = []
    for start in tqdm(range(0, len(texts), batch_size), disable=not show):
        chosen = [texts[i] for i in order[start : start + batch_size]]
        tokens = _trimmed(encoder.tokenize(chosen), batch_size)
        parts.append(np.asarray(encoder.states(tokens))[: len(chosen)])
    return np.concatenate(parts)[np.argsort(order)]


def _trimmed(tokens: np.ndarray, rows: int) -> np.ndarray:
    """Cuts padding off until the length is a power of two, and adds empty rows.

    So few shapes are left, for each of which the network is compiled.

    Example:
      >>> _trimmed(np.array([[5, 6, 7, 0, 0, 0, 0]], np.int32), 2).tolist()
      [[5, 6, 7, 0], [0, 0, 0, 0]]
    """
    longest = max(1, int((tokens != 0).sum(1).max(initial=0)))
    tokens = tokens[:, : 2 ** (longest - 1).bit_length()]
    return np.pad(tokens, ((0, rows - len(tokens)), (0, 0)))


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the .npz file of a source, and prints a line about its contents.

    Args:
      argv: the arguments; None for those of the command line.

    Returns:
      The exit code: 0, or 2 after an error, which is printed to stderr.

    Example:
      >>> main(["no/such.csv", "out.npz", "--text=a", "--label=b", "--hash=8"])
      2
    """
    arguments = _parser().parse_args(argv)
    try:
        print(_convert(arguments))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m sparsefl_jax.data.text",
        description="Turn labelled texts into features in an .npz data set.",
    )
    add = parser.add_argument
    add("source", help="a .csv or .tsv file, or a prepared TFDS data set (glue/sst2)")
    add("out", type=Path, help="the .npz file to write")
    add("--text", metavar="COLUMN", help="the CSV column of the texts")
    add("--label", metavar="COLUMN", help="the CSV column of the classes")
    add("--user", metavar="COLUMN", help="the CSV column of the texts' authors")
    add("--no_header", action="store_true", help="name columns by number, from 0")
    add("--encoding", help="encoding of the CSV, such as latin-1 (default: UTF-8)")
    add("--data_dir", help="folder of TFDS data sets (default: TFDS_DATA_DIR)")
    add("--batch_size", type=int, default=64, help="texts at a time (default: 64)")
    features = parser.add_mutually_exclusive_group(required=True)
    add = features.add_argument
    add("--encoder", metavar="DIR", type=Path, help="folder of a BERT or DistilBERT")
    add("--hash", metavar="N", type=int, help="hash runs of letters to N features")
    return parser


def _convert(arguments) -> str:
    if arguments.out.suffix != ".npz":
        raise ValueError(
            f"out={str(arguments.out)!r}, expected a name that ends in .npz"
        )
    if not arguments.out.parent.is_dir():
        raise ValueError(f"out={str(arguments.out)!r}, expected a folder that exists")
    if arguments.encoder:
        options = {"batch_size": arguments.batch_size, "show": True}
        features = partial(embed, encoder=load_encoder(arguments.encoder), **options)
        origin = f"first token of {arguments.encoder.resolve().name}"
    else:
        features = partial(hashed, num_features=arguments.hash, title="hash")
        origin = f"letters hashed to {arguments.hash} features"
    train, test = _read(arguments)
    arrays = {"x": features(train.texts), "y": train.y}
    if test:
        arrays |= {"x_test": features(test.texts), "y_test": test.y}
    if train.users is not None:
        arrays["users"] = train.users
    arrays |= {"class_names": train.class_names, "features": origin}
    with naming(arguments.out):
        np.savez_compressed(arguments.out, **arrays)
    return _summary(arguments.out, arrays)


def _read(arguments) -> tuple[Texts, Texts | None]:
    """Returns the training texts of the source, and its test texts or None."""
    columns = arguments.text, arguments.label, arguments.user
    if Path(arguments.source).suffix in _TABLES:
        if None in columns[:2]:
            raise ValueError("--text and --label are needed for a CSV file")
        options = {"header": not arguments.no_header, "encoding": arguments.encoding}
        return read_table(arguments.source, *columns, **options), None
    if any(columns):
        raise ValueError(
            f"source={arguments.source!r} has no columns to name; a CSV file ends in "
            f"{' or '.join(_TABLES)}"
        )
    arrays, names = prepared_tfds.read_texts(arguments.source, arguments.data_dir)
    texts, y, texts_test, y_test = arrays
    test = Texts(texts_test, np.array(y_test, np.int32), names, None)
    return Texts(texts, np.array(y, np.int32), names, None), test


def _summary(path, arrays) -> str:
    sizes = [f"{len(arrays['y']):,} training texts"]
    if "users" in arrays:
        sizes += [f"of {len(np.unique(arrays['users'])):,} users"]
    if "y_test" in arrays:
        sizes += [f"and {len(arrays['y_test']):,} test texts"]
    classes = ", ".join(f"{i} {name}" for i, name in enumerate(arrays["class_names"]))
    return (
        f"{path}: {' '.join(sizes)}; {arrays['features']}; classes {classes}; "
        f"{path.stat().st_size / 1e6:.1f} MB"
    )


def _numbered(names):
    """Returns the distinct names in order, and the number of each entry.

    Example:
      >>> _numbered(["10", "9", "10"])
      (['9', '10'], array([1, 0, 1], dtype=int32))
    """
    try:
        order = sorted(set(names), key=lambda name: (int(name), name))
    except ValueError:
        order = sorted(set(names))
    number = {name: i for i, name in enumerate(order)}
    return order, np.array([number[name] for name in names], np.int32)


if __name__ == "__main__":
    sys.exit(main())
