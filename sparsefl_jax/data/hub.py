"""Finds data sets of the Hugging Face hub, or of its library's files.

A name is `ORGANISATION/NAME`, a folder or file (parquet, CSV, JSON, images), or a
folder that `save_to_disk` wrote. The library checks the hub for a newer version, and
reads its cache if the hub cannot be reached, or if HF_HUB_OFFLINE=1. `columns` says
which columns are read.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.extras import imported
from sparsefl_jax.data import hub_samples
from sparsefl_jax.data.cache import Source

PREFIX = "hf:"
OPTIONS = ("image", "text", "table", "label", "user", "hash", "train", "test")
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves


def matches(name: str) -> bool:
    """Returns whether a name begins with `hf:`."""
    return name.startswith(PREFIX)


def find(name: str, **options: Any) -> Source:
    """Finds a data set, and downloads it if it is of the hub and not in the cache.

    Args:
      name: `hf:` and `ORGANISATION/NAME` or a path, with an optional `:CONFIG`.
      **options: columns, as `columns.choose` takes them; `train` and `test`, the names
        of the splits, by default `train` or the only one, and `test` or `validation`,
        whichever has labels.

    Raises:
      ValueError: the data set is not available.
    """
    path, config = _locate(name)
    if path is None:
        data, title = fetch(name), name.partition(":")[2].split(":")[0].split("/")[-1]
        cached = (file for split in data.values() for file in split.cache_files)
        files = [Path(file["filename"]) for file in cached]
        return Source(title, files, lambda: hub_samples.decode(data, title, **options))
    title = path.resolve().stem

    def decode():
        with tempfile.TemporaryDirectory() as scratch:
            data = _load_files(path, config, scratch)
            return hub_samples.decode(data, title, **options)

    return Source(title, [path] if path.is_file() else _files(path), decode)


def prepare(name: str) -> str:
    """Downloads a data set; returns its splits and their numbers of samples."""
    splits = fetch(name).items()
    return ", ".join(f"{split}: {len(rows):,} samples" for split, rows in splits)


def fetch(name: str) -> Any:
    """Returns a data set of the hub, a `datasets.DatasetDict`."""
    repository, _, config = name.removeprefix(PREFIX).partition(":")
    if repository.count("/") != 1:
        raise UserError("expected ORGANISATION/NAME, a folder or a file")
    return _load(repository, config or None)


def is_cached(repository: str) -> bool:
    """Returns whether the library's cache holds a data set of the hub."""
    try:
        cache = Path(_library().config.HF_DATASETS_CACHE)
    except ValueError:  # the library is not installed
        return False
    return any(cache.glob(f"{repository.replace('/', '___')}/*/*/*"))


def _library():
    """Imports `datasets`; its progress bars appear only on a terminal."""
    datasets = imported("datasets", "hf", "a data set of Hugging Face")
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are raised
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


def _load(*args, **kwargs):
    """Calls `load_dataset`; a failure is told by its cause."""
    library = _library()
    try:
        return library.load_dataset(*args, **kwargs)
    except library.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _locate(name: str) -> tuple[Path | None, str | None]:
    """Returns a path and a configuration; no path for a name of the hub."""
    name = name.removeprefix(PREFIX)
    for path, _, config in ((name, "", ""), name.partition(":")):
        if (found := Path(path).expanduser()).exists():
            return found, config or None
    if name.startswith((".", "/", "~")):
        raise UserError("there is no such folder or file")
    return None, None


def _files(folder: Path) -> list[Path]:
    """Returns the files of a folder and its subfolders, except hidden ones."""
    return [
        file
        for file in folder.rglob("*")
        if file.is_file()
        and not any(part[0] == "." for part in file.relative_to(folder).parts)
    ]


def _load_files(path: Path, config: str | None, scratch: str):
    """Returns the splits of a folder or a file; `scratch` takes the library's copy."""
    if any((path / name).is_file() for name in _SAVED):
        return _library().load_from_disk(str(path))
    folder, file = (path.parent, path.name) if path.is_file() else (path, None)
    # A relative folder could have the name of one of the library's builders, as "csv".
    return _load(str(folder.resolve()), config, data_files=file, cache_dir=scratch)
