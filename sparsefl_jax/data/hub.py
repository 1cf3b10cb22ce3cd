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

from sparsefl_jax.core.check import UserError, blame, check
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.data import images
from sparsefl_jax.data.cache import Source
from sparsefl_jax.data.columns import Columns, choose, kind_of

PREFIX = "hf:"
LOOKS = ("mode", "size")  # of images
OPTIONS = ("image", "text", "table", "label", "user", "train", "test")
FILES = (".csv", ".tsv", ".parquet", ".json", ".jsonl", ".arrow")
_FEW = 10  # users of one sample each, which can be true
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves


def matches(name: str) -> bool:
    """Returns whether a name begins with `hf:`, or is that of a table's file."""
    saved = any(Path(name, kept).is_file() for kept in _SAVED)
    return name.startswith(PREFIX) or name.endswith(FILES) or saved


def is_path(name: str) -> bool:
    """Returns whether a name is that of a folder, or can only be a path."""
    return Path(name).is_dir() or name.startswith(("/", "."))


def find(name: str, **options: Any) -> Source:
    """Finds a data set, and downloads it if it is of the hub and not in the cache.

    Args:
      name: `hf:` and `ORGANISATION/NAME` or a path, with an optional `:CONFIG`; or a
        path alone.
      **options: columns, as `columns.choose` takes them; `train` and `test`, the names
        of the splits, by default `train`, and `test` or `validation`, whichever has
        labels; `mode` and `size` of images, as `images.read` takes them.

    Raises:
      ValueError: the data set is not available.
    """
    title, data = _fetch(name)
    files = [Path(f["filename"]) for split in data.values() for f in split.cache_files]
    looks = {name: options.pop(name) for name in LOOKS if name in options}
    return Source(title, files, lambda: _decode(data, title, looks=looks, **options))


def _fetch(name: str) -> tuple[str, dict[str, Any]]:
    """Returns the title of a data set, and each split, a `datasets.Dataset`."""
    datasets = import_extra("datasets", "hf", "a data set of Hugging Face")
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are raised
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    local = not name.startswith(PREFIX)
    name, _, config = name.removeprefix(PREFIX).partition(":")
    path, file = Path(name).expanduser().resolve(), None
    title = f"{path.name}{'/' * path.is_dir()}" if path.exists() else path.stem
    if any((path / kept).is_file() for kept in _SAVED):
        data = datasets.load_from_disk(str(path))
        return title, data if isinstance(data, dict) else {"train": data}
    if path.is_file():
        path, file = path.parent, path.name
    if path.exists():  # in full, as it could have the name of one of the builders
        name = str(path)
    elif local:
        raise UserError("there is no such file or folder")
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
    looks: dict[str, Any],
    **columns: Any,
) -> dict:
    """Decodes the samples, labels and users of a data set.

    Args:
      data: by the name of a split, a `datasets.Dataset`.
      title: the name on the progress bars.
      train: the split to train on; None for `train`.
      looks: the `mode` and `size` of images.
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
    arrays = {}
    if named:
        arrays = {"num_classes": np.array(label.num_classes), "classes": label.names}
    for split, suffix in zip(splits, ("", "_test"), strict=False):
        rows = data[split]
        with blame(f"split {split!r}"):
            if not _has_labels(rows, chosen.label):
                raise UserError("it has samples without a label: leave them out")
            labels = rows[chosen.label][:]
            arrays[f"x{suffix}"] = _samples(rows, chosen, f"{title} {split}", looks)
            arrays[f"y{suffix}"] = np.array(labels) if named else labels
            if chosen.user is not None:
                users = np.array(_values(rows, chosen.user))
                if len(users) >= _FEW and len(np.unique(users)) == len(users):
                    told = f"hf.user={chosen.user!r} differs in all {len(users)} rows"
                    raise UserError(f"{told}, expected users of several samples")
                arrays[f"users{suffix}"] = users
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


def _samples(rows: Any, columns: Columns, title: str, looks: dict) -> Any:
    """Returns the samples of a split: images, texts, or rows of numbers."""
    if columns.kind == "text":
        return _values(rows, columns.samples[0])
    if columns.kind == "image":
        return images.read(rows, columns.samples[0], title, **looks)
    found = rows.select_columns(list(columns.samples)).with_format("numpy")[:]
    numbers = [found[column] for column in columns.samples]
    numbers = numbers[0] if numbers[0].ndim > 1 else np.stack(numbers, axis=1)
    if numbers.dtype == object:
        raise UserError("its lists differ in length")
    return numbers
