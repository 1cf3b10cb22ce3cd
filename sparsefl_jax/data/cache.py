"""Decoded data sets, kept as .npy files and memory-mapped from then on.

An entry is keyed by name, and by path, size and time of each file that it was decoded
from, so that another copy of the data set is not taken for this one.
"""

import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sparsefl_jax.devices import cache_directory


def through(name: str, folder: Path, files: Sequence[Path], decode: Callable) -> dict:
    """Decodes files once; later calls read what is kept in the cache directory.

    Args:
      name: what the entry's name begins with.
      folder: where the files lie.
      files: what `decode` reads, below `folder`.
      decode: `() -> arrays`, a dictionary of NumPy arrays by name.

    Returns:
      The arrays, memory-mapped where they could be kept.
    """
    entry = cache_directory() / key(name, folder, files)
    if not entry.is_dir():
        arrays = decode()
        if not store(entry, arrays):
            return arrays
    return {f.stem: np.load(f, mmap_mode="r") for f in entry.glob("*.npy")}


def key(name: str, folder: Path, files: Sequence[Path]) -> str:
    """Returns the name of an entry, another one whenever the files change."""
    stats = [(str(f.relative_to(folder)), f.stat()) for f in sorted(files)]
    facts = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return f"{name.replace('/', '-')}-{digest}"


def store(entry: Path, arrays: dict) -> bool:
    """Writes arrays as one folder, whole or not at all; returns whether it is there."""
    tmp = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        tmp = Path(tempfile.mkdtemp(prefix=".tmp-", dir=entry.parent))
        for name, array in arrays.items():
            np.save(tmp / f"{name}.npy", array)
        os.replace(tmp, entry)
    except OSError as error:
        if tmp:
            shutil.rmtree(tmp, ignore_errors=True)
        if not entry.is_dir():
            warnings.warn(f"decoded data not kept in {entry}: {error}", stacklevel=2)
    return entry.is_dir()
