"""Finds data sets of the Hugging Face hub, or of its library's files.

A name is `ORGANISATION/NAME`, a folder or file (parquet, CSV, JSON, images), or a
folder that `save_to_disk` wrote. The library checks the hub for a newer version, and
reads its cache if the hub cannot be reached, or if HF_HUB_OFFLINE=1. Files are read
through that cache too. `columns` says which columns are read.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.data.cache import Source
from sparsefl_jax.data.columns import Columns, choose, kind_of

PREFIX = "hf:"
OPTIONS = ("image", "text", "table", "label", "user", "train", "test")
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves
_MODES = {"1": "L", "P": "RGB"}  # Pillow's modes that are converted without loss


def matches(name: str) -> bool:
    """Returns whether a name begins with `hf:`."""
    return name.startswith(PREFIX)


def find(name: str, **options: Any) -> Source:
    """Finds a data set, and downloads it if it is of the hub and not in the cache.

    Args:
      name: `hf:` and `ORGANISATION/NAME` or a path, with an optional `:CONFIG`.
      **options: columns, as `columns.choose` takes them; `train` and `test`, the names
        of the splits, by default `train`, and `test` or `validation`, whichever has
        labels.

    Raises:
      ValueError: the data set is not available.
    """
    title, data = _fetch(name)
    files = [Path(f["filename"]) for split in data.values() for f in split.cache_files]
    return Source(title, files, lambda: _decode(data, title, **options))


def _fetch(name: str) -> tuple[str, dict[str, Any]]:
    """Returns the title of a data set, and each split, a `datasets.Dataset`."""
    datasets = import_extra("datasets", "hf", "a data set of Hugging Face")
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are raised
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    name, _, config = name.removeprefix(PREFIX).partition(":")
    path, file = Path(name).expanduser().resolve(), None
    title = path.stem
    if any((path / kept).is_file() for kept in _SAVED):
        data = datasets.load_from_disk(str(path))
        return title, data if isinstance(data, dict) else {"train": data}
    if path.is_file():
        path, file = path.parent, path.name
    if path.exists():  # in full, as it could have the name of one of the builders
        name = str(path)
    elif "/" not in name:
        raise UserError("expected ORGANISATION/NAME, a folder or a file")
    try:
        return title, datasets.load_dataset(name, config or None, data_files=file)
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _decode(
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
      train: the split to train on; None for `train`.
      test: the split to test on; None for `test` or `validation`, whichever has labels.
      **columns: as `columns.choose` takes them.

    Returns:
      The arguments of `make_dataset`, see `cache.Source`. Texts are a list, and so are
      labels without names; where they have names, there is `num_classes`.

    Raises:
      ValueError: columns or splits leave a choice, or a sample cannot be read.
    """
    train = train or "train"
    check("hf.train", train, list(data))
    if test is not None:
        check("hf.test", test, [name for name in data if name != train])
    chosen = choose(data[train].features, **columns)
    tests = [name for name in ("test", "validation") if name in data and name != train]
    tests = [name for name in tests if _has_labels(data[name], chosen.label)]
    splits = [train, *(tests[:1] if test is None else [test])]
    # Later starts read the cache and say nothing.
    print(f"{title}: {chosen} of {', '.join(splits)}", file=sys.stderr, flush=True)
    label = data[train].features[chosen.label]
    named = kind_of(label) == "classes"
    arrays = {"num_classes": np.array(label.num_classes)} if named else {}
    for split, suffix in zip(splits, ("", "_test"), strict=False):
        rows = data[split]
        with blame(f"split {split!r}"):
            if not _has_labels(rows, chosen.label):
                raise UserError("it has samples without a label: leave them out")
            labels = rows[chosen.label][:]
            arrays[f"x{suffix}"] = _samples(rows, chosen, f"{title} {split}")
            arrays[f"y{suffix}"] = np.array(labels) if named else labels
            if chosen.user is not None:
                arrays[f"users{suffix}"] = np.array(_values(rows, chosen.user))
    return arrays


def _has_labels(rows: Any, column: str) -> bool:
    """Returns whether all labels are known; those kept secret are -1."""
    labels = rows[column][:]
    return all(y is not None and (isinstance(y, str) or y >= 0) for y in labels)


def _values(rows: Any, column: str) -> list:
    """Returns a column as a list; refuses a row that has none."""
    values = rows[column][:]
    if None in values:
        raise UserError(f"row {values.index(None)}: {column!r} is missing")
    return values


def _samples(rows: Any, columns: Columns, title: str) -> list | np.ndarray:
    """Returns the samples of a split: images, texts, or rows of numbers."""
    if columns.kind == "text":
        return _values(rows, columns.samples[0])
    if columns.kind == "image":
        return _images(rows, columns.samples[0], title)
    found = rows.select_columns(list(columns.samples)).with_format("numpy")[:]
    numbers = [found[column] for column in columns.samples]
    numbers = numbers[0] if numbers[0].ndim > 1 else np.stack(numbers, axis=1)
    if numbers.dtype == object:
        raise UserError("its lists differ in length")
    return numbers


def _images(rows: Any, column: str, title: str) -> np.ndarray:
    """Returns images [n, H, W, C] uint8; if the first has colours, all have."""
    from datasets import Image

    coded = rows.select_columns([column]).cast_column(column, Image(decode=False))
    images = np.zeros(0, np.uint8)
    for i, row in enumerate(tqdm(coded, title, unit=" samples", disable=None)):
        with blame(f"row {i}: {column!r}"):
            if row[column] is None:
                raise UserError("there is none")
            pixels = _pixels(Image().decode_example(row[column]))
            if not i:
                images = np.empty((len(coded), *pixels.shape), np.uint8)
            if (images.shape[-1], pixels.shape[-1]) == (3, 1):
                pixels = np.repeat(pixels, 3, axis=-1)
            if pixels.shape != images.shape[1:]:
                first = f"the first image has {images.shape[1:]}: resize them"
                raise UserError(f"has shape {pixels.shape}, but {first}")
        images[i] = pixels
    return images


def _pixels(image: Any) -> np.ndarray:
    """Returns an image of Pillow as [H, W, C] uint8."""
    image = image.convert(_MODES.get(image.mode, image.mode))
    check("mode", image.mode, ("L", "RGB", "RGBA"))
    return np.asarray(image, np.uint8).reshape(image.height, image.width, -1)
