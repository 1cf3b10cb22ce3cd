"""Finds data sets of the Hugging Face hub, or of its library's files.

A name is `ORGANISATION/NAME`, a folder or file (parquet, CSV, JSON, images), or a
folder that `save_to_disk` wrote. The library checks the hub for a newer version, and
reads its cache if the hub cannot be reached, or if HF_HUB_OFFLINE=1. Files are read
through that cache too. `columns` says which columns are read.
"""

import csv
import functools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.core.check import UserError, blame, check, unread
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.core.formats import some
from sparsefl_jax.data import frames, images
from sparsefl_jax.data.cache import Source
from sparsefl_jax.data.columns import Columns, Values, choose, kind_of

PREFIX = "hf:"
LOOKS = ("mode", "size")  # of images
FIELDS = ("image", "text", "table", "label", "user", "train", "test", "fill")
OPTIONS = (*FIELDS, *LOOKS)
FILES = (".csv", ".tsv", ".parquet", ".json", ".jsonl", ".arrow")
_FEW = 10  # users of one sample each, which can be true
_NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}((?:\.\d{3})+))(,\d+)?")  # 1.234,5
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
        labels; `fill`, as `frames.encode` takes it; `mode` and `size` of images, as
        `images.read` takes them.

    Raises:
      ValueError: the data set is not available.
    """
    title, data = _fetch(name)
    files = [Path(f["filename"]) for split in data.values() for f in split.cache_files]
    return Source(title, files, functools.partial(_decode, data, title, **options))


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
    dialect = _dialect([path / file] if file else sorted(path.glob("*.[ct]sv")))
    if path.exists():  # in full, as it could have the name of one of the builders
        name = str(path)
    elif local or "/" not in name:
        expected = "expected ORGANISATION/NAME, a folder or a file"
        raise UserError(f"there is no such file or folder, {expected}")
    try:
        found = datasets.load_dataset(name, config or None, data_files=file, **dialect)
        return title, found
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _dialect(files: list[Path]) -> dict[str, str]:
    """Returns how the first of some files is read, if it is a table of texts.

    Raises:
      ValueError: its first line has no names.
    """
    import pandas as pd

    if not files or files[0].suffix not in (".csv", ".tsv"):
        return {}
    with files[0].open(encoding="utf-8-sig", errors="replace") as lines:
        head, *rows = [x for x, _ in zip(lines, range(1000), strict=False)] or [""]
    sep = max(",;\t|", key=head.count)
    names = next(csv.reader([head], delimiter=sep), [])
    numbers = pd.to_numeric(pd.Series(names, dtype=object), errors="coerce").dropna()
    if len(set(names)) < len(names) or set(numbers.diff().dropna()) - {1}:
        told = f"{files[0].name} begins with {some(names)}"
        raise UserError(f"{told}: expected a first line with a name for each column")
    if sep == ",":
        return {}  # as a folder of images would take nothing else
    cells = {cell.strip('" \n') for row in rows for cell in row.split(sep)}
    return {"sep": sep} | (_number_marks(cells) if sep == ";" else {})


def _number_marks(cells: set[str]) -> dict[str, str]:
    """Returns the marks of decimals and thousands, if decimals follow a comma.

    Raises:
      ValueError: some numbers have a point where others have a comma, or dates, which
        would be read as numbers, stand beside points between thousands.
    """
    found = sorted(filter(None, map(_NUMBER.fullmatch, cells)), key=lambda m: m[0])
    decimals, grouped = ([m[0] for m in found if m[group]] for group in (2, 1))
    if not decimals:
        return {}
    for cell in sorted(cells - {m[0] for m in found}):
        if re.fullmatch(r"\d+(\.\d+)+", cell) and (grouped or cell.count(".") == 1):
            told = f"it has {(grouped or decimals)[0]} and {cell}"
            raise UserError(f"{told}, expected points for decimals and nowhere else")
    return {"decimal": ","} | ({"thousands": "."} if grouped else {})


def _decode(data, title, train="train", test=None, fill=None, **options):
    """Decodes the samples, labels and users of a data set.

    Args:
      data: by the name of a split, a `datasets.Dataset`.
      title: the name on the progress bars.
      train: the split to train on.
      test: the split to test on; None for `test` or `validation`, whichever has labels.
      fill: as `frames.encode` takes it.
      **options: the `mode` and `size` of images, and columns, as `columns.choose` takes
        them.

    Returns:
      The arguments of `make_dataset`, see `cache.Source`. Texts are a list, and so are
      labels without names; where they have names, there is `num_classes`.

    Raises:
      ValueError: columns or splits leave a choice, or a sample cannot be read.
    """
    check("hf.train", train, list(data))
    others = [name for name in data if name != train]
    check("hf.test", test, (*others, None))
    values = functools.cache(functools.partial(_describe_values, data[train]))
    looks = {name: options.pop(name) for name in LOOKS if name in options}
    features = _find_numbers(data[train], list(options.values()))
    chosen = choose(features, values, **options)
    tests = [name for name in ("test", "validation") if name in others]
    tests = [name for name in tests if _has_labels(data[name], chosen.label)]
    splits = [train, *(tests[:1] if test is None else [test])]
    arrays = {}
    for split, suffix in zip(splits, ("", "_test"), strict=False):
        with blame(f"split {split!r}"):
            found = _read(data[split], chosen, f"{title} {split}", looks)
        arrays |= {f"{name}{suffix}": array for name, array in found.items()}
    label = data[train].features[chosen.label]
    count = len({label for key in ("y", "y_test") for label in arrays.get(key, ())})
    names = ["False", "True"] if label.dtype == "bool" else getattr(label, "names", ())
    if names:
        count = len(names)
        arrays |= {"num_classes": np.array(count), "classes": names}
    if chosen.kind == "table":
        keys = [key for key in ("x", "x_test") if key in arrays]
        samples, numeric = frames.encode([arrays[key] for key in keys], fill)
        arrays |= {**dict(zip(keys, samples, strict=True)), "numeric": numeric}
    elif fill is not None:
        raise unread(f"hf.fill={fill!r}", "there is no table")
    classes = f" ({count} classes)" * (kind_of(label) != "float")
    arrays["columns"] = np.array(_describe_columns(chosen, classes))
    # Later starts read the cache and say nothing.
    told = f"{title}: {arrays['columns']} ({', '.join(splits)})"
    print(told, file=sys.stderr, flush=True)
    return arrays


def _read(rows: Any, columns: Columns, title: str, looks: dict) -> dict:
    """Returns the samples of a split, their labels and their users, if any."""
    if not _has_labels(rows, columns.label):
        raise UserError("it has samples without a label: leave them out")
    labels, user = rows[columns.label][:], columns.user
    if kind_of(rows.features[columns.label]) == "classes":
        labels = np.array(labels)
    arrays = {"x": _samples(rows, columns, title, looks), "y": labels}
    if user is None:
        return arrays
    users = _values(rows, user)
    if _FEW <= len(users) == len(set(users)):
        told = f"hf.user={user!r} differs in all {len(users)} rows"
        raise UserError(f"{told}, expected users of several samples")
    return arrays | {"users": np.array(users)}


def _find_numbers(rows: Any, named: list) -> dict[str, Any]:
    """Returns the features; a column of texts that are numbers is one, if not named."""
    import pandas as pd
    from datasets import Value

    features, names = dict(rows.features), list(rows.features)
    texts = [c for c in names if kind_of(features[c]) == "text" and c not in named]
    head = rows.select_columns(texts)[:1000]
    found = [column for column in texts if frames.are_numbers(pd.Series(head[column]))]
    return features | dict.fromkeys(found, Value("float64"))


def _describe_values(rows: Any, column: str) -> Values:
    """Returns what `choose` asks about the values of a column."""
    found = _series(rows, column).dropna()
    years = found.dtype.kind in "iuf" and found.between(1900, 2100).all()
    return Values(found.nunique(), len(rows), bool(years))


def _series(rows: Any, column: str) -> Any:
    return rows.select_columns([column]).to_pandas()[column]


def _describe_columns(chosen: Columns, classes: str) -> str:
    """Returns which columns are read, and as what."""
    kind = "features" if chosen.kind == "table" else chosen.kind
    told = {kind: some(chosen.samples), "users": chosen.user or ""}
    told["left out"] = some(chosen.left_out)
    parts = [f"label {chosen.label}{classes}"]
    return "; ".join(parts + [f"{role} {text}" for role, text in told.items() if text])


def _has_labels(rows: Any, column: str) -> bool:
    """Returns whether all labels are known; those kept secret are -1."""
    labels = _series(rows, column)
    secret = labels.dtype.kind == "i" and (labels < 0).all()  # or numbers to predict
    return not secret and bool(labels.notna().all())


def _values(rows: Any, column: str) -> list:
    """Returns a column as a list; refuses a row that has none."""
    values = rows[column][:]
    if None in values:
        raise UserError(f"row {values.index(None)}: {column!r} is missing")
    return values


def _samples(rows: Any, columns: Columns, title: str, looks: dict) -> Any:
    """Returns the samples of a split: images, texts, lists, or a frame of a table."""
    if columns.kind == "text":
        return _values(rows, columns.samples[0])
    if columns.kind == "image":
        return images.read(rows, columns.samples[0], title, **looks)
    found, first = rows.select_columns(list(columns.samples)), columns.samples[0]
    if kind_of(rows.features[first]) != "list":
        frame = found.to_pandas()
        for name in columns.samples:
            if names := getattr(rows.features[name], "names", None):
                frame[name] = frame[name].map(dict(enumerate(names)))
        return frame
    numbers = found.with_format("numpy")[:][first]
    if numbers.dtype == object:
        raise UserError("its lists differ in length")
    return numbers
