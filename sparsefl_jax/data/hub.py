"""Reads data sets of the Hugging Face hub, or of its library's files, decoded once.

A name is `ORGANISATION/NAME`, a folder or file (parquet, CSV, JSON, images), or a
folder that `save_to_disk` wrote. The library checks the hub for a newer version, and
reads its cache if the hub cannot be reached, or if HF_HUB_OFFLINE=1. `columns` says
which columns are read.
"""

import contextlib
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sparsefl_jax.core.check import UserError, check, one_line
from sparsefl_jax.core.extras import imported
from sparsefl_jax.data import cache, hub_samples
from sparsefl_jax.data.tokens import TextEncoding

PREFIX = "hf:"
OPTIONS = ("image", "text", "table", "label", "user", "hash", "train", "test")
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves


def read(
    name: str, encoding: TextEncoding | None = None, **options: Any
) -> tuple[dict[str, np.ndarray], int | None]:
    """Reads a data set into arrays for `sources.make_dataset`.

    Args:
      name: `ORGANISATION/NAME` or a path, with an optional `:CONFIG`.
      encoding: what turns texts into samples; None for hashed features.
      **options: columns, as `columns.choose` takes them; `hash`, the features of each
        text, by default 768; `train` and `test`, the names of the splits, by default
        `train` or the only one, and `test` or `validation`, whichever has labels.

    Returns:
      The arrays, and the number of classes where labels have names. Images become
      uint8, texts hashed features or tokens. Texts of one length whose labels are
      characters become tokens and the next token of each, as `leaf` has it.

    Raises:
      ValueError: the data set is not available, its columns or splits leave a choice,
        or a sample cannot be read.
    """
    for option in options:
        check("hf", option, OPTIONS)
    identity = [encoding.identity] if encoding else []
    facts = repr((_split(name), sorted(options.items()), *identity))
    digest = hashlib.sha256(facts.encode()).hexdigest()[:8]
    title = title_of(name)
    entry = f"hf-{title}-{digest}".replace(":", "-")
    with _blaming(name), tempfile.TemporaryDirectory() as scratch:
        path, config = _local(name)
        if path is None:
            data = fetch(name)
            cached = (f for split in data.values() for f in split.cache_files)
            files = [Path(file["filename"]) for file in cached]
            folder = files[0].parent
        else:
            files = [path] if path.is_file() else _files(path)
            folder = path.parent if path.is_file() else path

        def decode():
            splits = data if path is None else _load_files(path, config, scratch)
            return hub_samples.decode(splits, title, encoding=encoding, **options)

        arrays = dict(cache.through(entry, folder, files, decode))
    known = arrays.pop("num_classes", None)
    return arrays, None if known is None else int(known[0])


def title_of(name: str) -> str:
    """Returns the name of a data set in reports.

    Example:
      >>> title_of("ylecun/mnist"), title_of("sparsefl_jax/data/hub.py")
      ('mnist', 'hub')
    """
    path, _ = _local(name)
    return path.resolve().stem if path is not None else _split(name)[0].split("/")[-1]


def fetch(name: str) -> Any:
    """Returns a data set of the hub, downloaded unless it is in the library's cache.

    Args:
      name: `ORGANISATION/NAME`, with an optional `:CONFIG`.

    Returns:
      A `datasets.DatasetDict`.

    Raises:
      ValueError: the library is not installed, the hub cannot be reached, or has no
        such data set.
    """
    library = _library()
    repository, config = _split(name)
    with _blaming(name):
        if repository.count("/") != 1:
            raise UserError("expected ORGANISATION/NAME, a folder or a file")
        return library.load_dataset(repository, config)


def is_cached(name: str) -> bool:
    """Returns whether the library's cache holds a data set of the hub."""
    try:
        cache = Path(_library().config.HF_DATASETS_CACHE)
    except ValueError:  # the library is not installed
        return False
    return any(cache.glob(f"{_split(name)[0].replace('/', '___')}/*/*/*"))


def _library():
    """Imports `datasets`; its progress bars appear only on a terminal."""
    datasets = imported("datasets", "hf", "a data set of Hugging Face")
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are raised
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Turns every error into one line that names the data set."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  damaged files raise many types
        cause = error.__cause__ or error  # "An error occurred while generating ..."
        reason = one_line(error if isinstance(error, ValueError) else cause)
        if not reason.startswith("data set "):
            reason = f"data set {PREFIX + name!r} cannot be used: {reason}"
        raise UserError(reason) from None


def _split(name: str) -> tuple[str, str | None]:
    """Returns a name and its configuration."""
    name, _, config = name.partition(":")
    return name, config or None


def _local(name: str) -> tuple[Path | None, str | None]:
    """Returns a path and a configuration; no path for a name of the hub."""
    for path, config in ((name, None), _split(name)):
        if (found := Path(path).expanduser()).exists():
            return found, config
    if name.startswith((".", "/", "~")):
        raise UserError(f"data set {PREFIX + name!r}: there is no such folder or file")
    return None, None


def _files(folder: Path) -> list[Path]:
    """Returns the files of a folder and its subfolders, except hidden ones."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.is_file()
        and not any(part[0] == "." for part in file.relative_to(folder).parts)
    )


def _load_files(path: Path, config: str | None, scratch: str):
    """Returns the splits of a folder or a file; `scratch` takes the library's copy."""
    library = _library()
    if any((path / name).is_file() for name in _SAVED):
        return library.load_from_disk(str(path))
    folder, file = (path.parent, path.name) if path.is_file() else (path, None)
    # A relative folder could have the name of one of the library's builders, as "csv".
    folder = str(folder.resolve())
    return library.load_dataset(folder, config, data_files=file, cache_dir=scratch)
