"""Decodes the splits of a Hugging Face data set into arrays."""

import sys
import warnings
from typing import Any

import numpy as np
from tqdm import tqdm

from sparsefl_jax.core.check import UserError, blaming, check, unread
from sparsefl_jax.data import characters
from sparsefl_jax.data.columns import choose, kind_of
from sparsefl_jax.data.tokens import HASH, TextEncoding, hashing

_ROWS = 1024  # read at a time
_MODES = {"1": "L", "P": "RGB"}  # Pillow's modes that are converted without loss
_PIXELS = ("L", "RGB", "RGBA")


def decode(
    data: Any,
    title: str,
    *,
    train: str | None = None,
    test: str | None = None,
    hash: int | None = None,
    encoding: TextEncoding | None = None,
    **columns: Any,
) -> dict[str, np.ndarray]:
    """Decodes the samples, labels and users of a data set.

    Args:
      data: a `datasets.DatasetDict`, or a `datasets.Dataset`, which has no test split.
      title: the name on the progress bars.
      train: the split to train on; None for `train`, or the only one.
      test: the split to test on; None for `test` or `validation`, whichever has labels.
      hash: the number of features of a text, by default 768.
      encoding: what turns texts into samples instead.
      **columns: as `columns.choose` takes them.

    Returns:
      The arrays that `sources.make_dataset` takes, and, where the labels have names,
      `num_classes` [1].

    Raises:
      ValueError: columns or splits leave a choice, or a sample cannot be read.
    """
    data = dict(data) if isinstance(data, dict) else {"train": data}
    train, tests = _splits(list(data), train, test)
    features = data[train].features
    chosen = choose(features, **columns)
    given = [encoding.field] if encoding else []
    given += [] if hash is None else [f"hf.hash={hash}"]
    if given and chosen.kind != "text" or len(given) > 1:
        reason = f"the samples are no texts, but of kind {chosen.kind}"
        reason = reason if chosen.kind != "text" else f"{given[-1]} is set"
        raise unread(given[0], reason)
    first = _labelled(data[train], train, chosen)
    if first is None:
        raise UserError(f"split {train!r} has no sample with a label")
    found = (_labelled(data[name], name, chosen) for name in tests)
    second = next((part for part in found if part is not None), None)
    if test and second is None:
        raise UserError(f"hf.test={test!r} has no sample with a label")
    parts = [first] if second is None else [first, second]
    read = [f"{chosen.kind} from {', '.join(map(repr, chosen.samples))}"]
    read += [f"label from {chosen.label!r}"]
    read += [f"user from {chosen.user!r}"] if chosen.user is not None else []
    read += [f"splits {', '.join(name for _, name in parts)}"]
    # Later starts read the cache and say nothing.
    print(f"{title}: {'; '.join(read)}", file=sys.stderr, flush=True)
    samples = [_samples(split, name, chosen, title) for split, name in parts]
    labels = [_values(split, name, chosen.label) for split, name in parts]
    label = features[chosen.label]
    if not encoding and _are_characters(samples, labels, label, chosen):
        x, y = zip(*map(characters.followed, samples, labels), strict=True)
    else:
        if chosen.kind == "text":
            encode = (encoding or hashing(hash or HASH)).encode
            samples = [encode(texts, title=title) for texts in samples]
        if kind_of(label) != "classes":
            place = {c: i for i, c in enumerate(sorted(set().union(*labels)))}
            labels = [[place[c] for c in y] for y in labels]
        x, y = samples, [np.array(y, np.int32) for y in labels]
    found = {"x": x, "y": y}
    if chosen.user is not None:
        users = [_values(split, name, chosen.user) for split, name in parts]
        found["users"] = map(np.array, users)
    arrays = {
        name + suffix: values
        for name, of_splits in found.items()
        for suffix, values in zip(("", "_test"), of_splits, strict=False)
    }
    if kind_of(label) == "classes":
        arrays["num_classes"] = np.array([label.num_classes])
    return arrays


def _splits(names, train, test) -> tuple[str, list[str]]:
    """Returns the split to train on, and those that may be tested on, best first."""
    if train is not None:
        check("hf.train", train, names)
    elif "train" in names or len(names) == 1:
        train = "train" if "train" in names else names[0]
    else:
        raise UserError(f"its splits are {', '.join(names)}: name one as hf.train")
    if test is not None:
        check("hf.test", test, [name for name in names if name != train])
        return train, [test]
    return train, [n for n in ("test", "validation") if n in names and n != train]


def _labelled(split, name, columns) -> tuple[Any, str] | None:
    """Returns the rows of a split that have a label, and its name; None if none has.

    The library marks a class that is kept secret by -1.
    """
    labels = split[columns.label][:]
    kind = kind_of(split.features[columns.label])
    unknown = (None, -1) if kind == "classes" else (None,)
    keep = [i for i, label in enumerate(labels) if label not in unknown]
    secret = kind == "integer" and set(labels) == {-1}
    if not keep or secret:
        return None
    if kind == "integer" and min(labels[i] for i in keep) < 0:
        raise UserError(
            f"label {columns.label!r} of split {name!r} has {min(labels)}, expected at "
            "least 0, or texts"
        )
    if len(keep) < len(labels):
        missing = len(labels) - len(keep)
        warnings.warn(
            f"{missing} of {len(labels)} samples of split {name!r} have no label and "
            "are left out",
            stacklevel=2,
        )
        split = split.select(keep)
    return split, name


def _values(split, name, column) -> list:
    """Returns a column as a list; refuses a row that has none."""
    values = split[column][:]
    if None in values:
        row = values.index(None)
        raise UserError(f"row {row} of split {name!r}: {column!r} is missing")
    return values


def _samples(split, name, columns, title):
    """Returns the samples of a split: images, texts, or rows of numbers."""
    if columns.kind == "text":
        return _values(split, name, columns.samples[0])
    with tqdm(
        total=len(split), desc=f"{title} {name}", unit=" samples", disable=None
    ) as bar:
        if columns.kind == "image":
            return _images(split, name, columns.samples[0], bar)
        return _numbers(split, name, columns, bar)


def _images(split, name, column, bar) -> np.ndarray:
    """Returns images [n, H, W, C] uint8; if the first has colours, all have."""
    from datasets import Image

    stored = split.select_columns([column]).cast_column(column, Image(decode=False))
    values = (v for b in stored.iter(batch_size=_ROWS) for v in b[column])
    images = np.zeros(0, np.uint8)
    for row, value in enumerate(values):
        with blaming(f"row {row} of split {name!r}: {column!r}"):
            if value is None:
                raise UserError("there is none")
            pixels = _pixels(Image().decode_example(value))
            if not row:
                images = np.empty((len(split), *pixels.shape), np.uint8)
            if (images.shape[-1], pixels.shape[-1]) == (3, 1):
                pixels = np.repeat(pixels, 3, axis=-1)
            if pixels.shape != images.shape[1:]:
                raise UserError(
                    f"has shape {pixels.shape}, but the first image has "
                    f"{images.shape[1:]}: resize them to one size"
                )
        images[row] = pixels
        bar.update()
    return images


def _pixels(image) -> np.ndarray:
    """Returns an image of Pillow as [H, W, C] uint8."""
    image = image.convert(_MODES.get(image.mode, image.mode))
    check("mode", image.mode, _PIXELS)
    pixels = np.asarray(image, np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def _numbers(split, name, columns, bar) -> np.ndarray:
    """Returns rows of numbers: [n, D], or arrays [n, H, W] and [n, H, W, C]."""
    parts, rows = [], split.select_columns(list(columns.samples))
    with blaming(f"the table of split {name!r}"):
        for batch in rows.iter(batch_size=_ROWS):
            arrays = [np.array(batch[column]) for column in columns.samples]
            parts.append(arrays[0] if arrays[0].ndim > 1 else np.stack(arrays, axis=1))
            bar.update(len(parts[-1]))
        numbers = np.concatenate(parts)
        if numbers.dtype == object:
            raise UserError("a number is missing")
    return numbers


def _are_characters(samples, labels, feature, columns) -> bool:
    """Returns whether each label is the character after a text, all of one length."""
    if columns.kind != "text" or kind_of(feature) != "text":
        return False
    lengths = {len(text) for texts in samples for text in texts}
    return len(lengths) == 1 and all(len(c) == 1 for y in labels for c in y)
