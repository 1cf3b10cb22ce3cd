"""A cache of decoded data sets: .npy files that later runs memory-map.

The key of an entry covers what was read and how, and the file attributes that change
when a file is written or replaced. An entry is put in its place once it is whole.
"""

import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsefl_jax.core.check import blame
from sparsefl_jax.system.hardware import cache_directory


_DECODERS = 2  # counts their changes, so that no entry of an older one is read


class Source(NamedTuple):
    """A data set that was found.

    Attributes:
      title: its name in reports.
      files: those that `decode` reads; none if that takes no time worth a cache.
      decode: `() -> arguments of make_dataset` by name; x may be a list of texts, and y
        a list of labels that are not yet numbered.
    """

    title: str
    files: Sequence[Path]
    decode: Callable


def through(source: Source, identity: object, decode: Callable) -> dict:
    """Decodes files once; later calls read the entry in the cache directory.

    Args:
      source: has the `title` and the `files`; without files nothing is cached.
      identity: what else the arrays depend on; its `repr` tells entries apart.
      decode: `() -> arrays`, a dictionary of NumPy arrays by name.

    Returns:
      The arrays by name, memory-mapped if the entry could be stored.
    """
    if not source.files:
        return decode()
    entry = cache_directory() / key(source.title, identity, source.files)
    if not entry.is_dir():
        arrays = decode()
        if not store(entry, arrays):
            return arrays
    with blame(f"decoded data in {entry} are damaged, remove them"):
        return {file.stem: np.load(file, "r") for file in entry.glob("*.npy")}


def key(title: str, identity: object, files: Sequence[Path]) -> str:
    """Returns the name of an entry, which changes whenever the files change.

    The modification time alone would not do: a copy can preserve it. Only the operating
    system sets the inode number and the time of the last status change.
    """
    facts = [_DECODERS, identity]
    for file in sorted(files):
        s, name = file.stat(), str(file.resolve())
        facts.append((name, s.st_size, s.st_ino, s.st_mtime_ns, s.st_ctime_ns))
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return f"{re.sub('[/:]', '-', title)}-{digest}"


def store(entry: Path, arrays: dict) -> bool:
    """Writes arrays as one folder, atomically; returns whether the folder exists."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".tmp-", dir=entry.parent, ignore_cleanup_errors=True
        ) as tmp:
            for name, array in arrays.items():
                np.save(Path(tmp, f"{name}.npy"), array)
            os.replace(tmp, entry)
    except OSError as error:
        if not entry.is_dir():
            warnings.warn(
                f"cannot cache decoded data in {entry}: {error}", stacklevel=2
            )
    return entry.is_dir()
