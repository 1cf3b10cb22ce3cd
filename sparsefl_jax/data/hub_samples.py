"""Decodes the splits of a Hugging Face data set into arrays and lists."""

import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from sparsefl_jax.core.check import UserError, blaming, check
from sparsefl_jax.data.columns import choose, kind_of

_MODES = {"1": "L", "P": "RGB"}  # Pillow's modes that are converted without loss


class _Part(NamedTuple):
    """The rows of a split that have a label."""

    name: str
    rows: Any
    labels: list


def decode(
    data: Any,
    title: str,
    *,
    train: str | None = None,
    test: str | None = None,
    **columns: Any,
) -> dict:
    """Decodes the samples, labels and users of a data set.

    Args:
      data: by the name of a split, a `datasets.Dataset`.
      title: the name on the progress bars.
      train: the split to train on; None for `train`, or the only one.
      test: the split to test on; None for `test` or `validation`, whichever has labels.
      **columns: as `columns.choose` takes them.

    Returns:
      The arguments of `make_dataset`, see `cache.Source`. Texts are a list, and so are
      labels without names; where they have names, there is `num_classes`.

    Raises:
      ValueError: columns or splits leave a choice, or a sample cannot be read.
    """
    train, tests = _splits(list(data), train, test)
    chosen = choose(data[train].features, **columns)
    label = data[train].features[chosen.label]
    first = _keep_labelled(train, data[train], chosen.label)
    if first is None:
        raise UserError(f"split {train!r} has no sample with a label")
    found = (_keep_labelled(name, data[name], chosen.label) for name in tests)
    second = next(filter(None, found), None)
    if test and second is None:
        raise UserError(f"hf.test={test!r} has no sample with a label")
    parts = {"": first} | ({"_test": second} if second else {})
    splits = ", ".join(part.name for part in parts.values())
    # Later starts read the cache and say nothing.
    print(f"{title}: {chosen} of {splits}", file=sys.stderr, flush=True)
    named = kind_of(label) == "classes"
    arrays = {"num_classes": np.array(label.num_classes)} if named else {}
    for suffix, part in parts.items():
        arrays[f"x{suffix}"] = _samples(part, chosen, title)
        arrays[f"y{suffix}"] = np.array(part.labels) if named else part.labels
        if chosen.user is not None:
            arrays[f"users{suffix}"] = np.array(_values(part, chosen.user))
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


def _keep_labelled(name, rows, column) -> _Part | None:
    """Returns the rows of a split that have a label; None if none has.

    The library marks a class that is kept secret by -1.
    """
    labels, kind = rows[column][:], kind_of(rows.features[column])
    unknown = (None, -1) if kind == "classes" or set(labels) == {-1} else (None,)
    keep = [i for i, label in enumerate(labels) if label not in unknown]
    if not keep:
        return None
    if len(keep) < len(labels):
        missing = len(labels) - len(keep)
        warnings.warn(
            f"{missing} of {len(labels)} samples of split {name!r} have no label and "
            "are left out",
            stacklevel=2,
        )
        rows, labels = rows.select(keep), [labels[i] for i in keep]
    if kind == "integer" and min(labels) < 0:
        raise UserError(
            f"label {column!r} of split {name!r} has {min(labels)}, expected at least "
            "0, or texts"
        )
    return _Part(name, rows, labels)


def _values(part, column) -> list:
    """Returns a column as a list; refuses a row that has none."""
    values = part.rows[column][:]
    if None in values:
        row = values.index(None)
        raise UserError(f"row {row} of split {part.name!r}: {column!r} is missing")
    return values


def _samples(part, columns, title) -> list | np.ndarray:
    """Returns the samples of a split: images, texts, or rows of numbers."""
    if columns.kind == "text":
        return _values(part, columns.samples[0])
    if columns.kind == "image":
        return _images(part, columns.samples[0], f"{title} {part.name}")
    with blaming(f"the table of split {part.name!r}"):
        return _numbers(part.rows, columns.samples)


def _images(part, column, title) -> np.ndarray:
    """Returns images [n, H, W, C] uint8; if the first has colours, all have."""
    from datasets import Image

    rows = part.rows.select_columns([column]).cast_column(column, Image(decode=False))
    images = np.zeros(0, np.uint8)
    for i, row in enumerate(tqdm(rows, title, unit=" samples", disable=None)):
        with blaming(f"row {i} of split {part.name!r}: {column!r}"):
            if row[column] is None:
                raise UserError("there is none")
            pixels = _pixels(Image().decode_example(row[column]))
            if not i:
                images = np.empty((len(rows), *pixels.shape), np.uint8)
            if (images.shape[-1], pixels.shape[-1]) == (3, 1):
                pixels = np.repeat(pixels, 3, axis=-1)
            if pixels.shape != images.shape[1:]:
                raise UserError(
                    f"has shape {pixels.shape}, but the first image has "
                    f"{images.shape[1:]}: resize them to one size"
                )
        images[i] = pixels
    return images


def _pixels(image) -> np.ndarray:
    """Returns an image of Pillow as [H, W, C] uint8."""
    image = image.convert(_MODES.get(image.mode, image.mode))
    check("mode", image.mode, ("L", "RGB", "RGBA"))
    return np.asarray(image, np.uint8).reshape(image.height, image.width, -1)


def _numbers(rows, columns) -> np.ndarray:
    """Returns rows of numbers: [n, D], or arrays [n, H, W] and [n, H, W, C]."""
    found = rows.select_columns(list(columns)).with_format("numpy")[:]
    numbers = [found[column] for column in columns]
    numbers = numbers[0] if numbers[0].ndim > 1 else np.stack(numbers, axis=1)
    if numbers.dtype == object:
        raise UserError("its lists differ in length")
    if np.isnan(numbers).any():
        raise UserError("a number is missing")
    return numbers
