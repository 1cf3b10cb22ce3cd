"""Finds data sets of the Hugging Face hub, or of its library's files.

A name is `ORGANISATION/NAME`, a folder or file (parquet, CSV, JSON, images), or a
folder that `save_to_disk` wrote. The library checks the hub for a newer version, and
reads its cache if the hub cannot be reached, or if HF_HUB_OFFLINE=1. Files are read
through that cache too. `columns` says which columns are read.
"""

import sys
from pathlib import Path
from typing import Any

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.extras import imported
from sparsefl_jax.data import hub_samples
from sparsefl_jax.data.cache import Source

PREFIX = "hf:"
OPTIONS = ("image", "text", "table", "label", "user", "train", "test")
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves


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
    title, data = fetch(name)
    cached = (file for split in data.values() for file in split.cache_files)
    files = [Path(file["filename"]) for file in cached]
    return Source(title, files, lambda: hub_samples.decode(data, title, **options))


def fetch(name: str) -> tuple[str, dict[str, Any]]:
    """Returns the title of a data set, and each split, a `datasets.Dataset`."""
    library = _library()
    name = name.removeprefix(PREFIX)
    whole = Path(name).expanduser().exists()  # the name of a file may have a colon
    name, _, config = (name, "", "") if whole else name.partition(":")
    path, file = Path(name).expanduser().resolve(), None
    if any((path / kept).is_file() for kept in _SAVED):
        data = library.load_from_disk(str(path))
        return path.stem, data if isinstance(data, dict) else {"train": data}
    title = path.stem
    if path.is_file():
        path, file = path.parent, path.name
    if not path.exists():
        path, title = name, name.rpartition("/")[2]
        if name.count("/") != 1 or name.startswith((".", "/", "~")):
            raise UserError("expected ORGANISATION/NAME, a folder or a file")
    try:
        # A relative folder could have the name of one of the library's builders.
        return title, library.load_dataset(str(path), config or None, data_files=file)
    except library.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _library():
    """Imports `datasets`; its progress bars appear only on a terminal."""
    datasets = imported("datasets", "hf", "a data set of Hugging Face")
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are raised
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets
