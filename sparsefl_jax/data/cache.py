"""Decoded data sets, kept as .npy files and memory-mapped from then on.

An entry is keyed by name, by the folder that it was decoded from, and by whatever of
its files changes when they are written or replaced. It holds a checksum of every array:
an entry that is not whole is decoded anew.
"""

import hashlib
import json
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sparsefl_jax.system.hardware import cache_directory

_ABOUT = "arrays.json"  # dtype, shape and CRC-32 by name


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
    if entry.is_dir():
        try:
            return load(entry)
        except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
            told = f"decoded data in {entry} are damaged ({error}): decoded anew"
            warnings.warn(told, stacklevel=2)
            shutil.rmtree(entry, ignore_errors=True)
    arrays = decode()
    return load(entry) if store(entry, arrays) else arrays


def key(name: str, folder: Path, files: Sequence[Path]) -> str:
    """Returns the name of an entry, another one whenever the files change.

    A file's time of last modification can be that of another one, as where it was
    copied; that of its last change, and its number, the system alone sets.
    """
    facts = [str(folder.resolve())]
    for file in sorted(files):
        stat = file.stat()
        when = stat.st_mtime_ns, stat.st_ctime_ns
        facts.append((str(file.relative_to(folder)), stat.st_size, stat.st_ino, *when))
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return f"{name.replace('/', '-')}-{digest}"


def load(entry: Path) -> dict:
    """Returns the arrays of an entry, memory-mapped, each looked through once.

    Raises:
      OSError, ValueError, EOFError, KeyError, TypeError: one is not as it was stored.
    """
    about = json.loads((entry / _ABOUT).read_text())["arrays"]
    arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="r") for name in about}
    for name, array in arrays.items():
        if _facts(array) != about[name]:
            raise ValueError(f"{name}.npy is another array")
    return arrays


def store(entry: Path, arrays: dict) -> bool:
    """Writes arrays as one folder, whole or not at all; returns whether it is there."""
    tmp = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        tmp = Path(tempfile.mkdtemp(prefix=".tmp-", dir=entry.parent))
        for name, array in arrays.items():
            np.save(tmp / f"{name}.npy", array)
        about = {name: _facts(array) for name, array in arrays.items()}
        (tmp / _ABOUT).write_text(json.dumps({"arrays": about}))
        os.replace(tmp, entry)
    except OSError as error:
        if tmp:
            shutil.rmtree(tmp, ignore_errors=True)
        if not entry.is_dir():
            warnings.warn(f"decoded data not kept in {entry}: {error}", stacklevel=2)
    return entry.is_dir()


def _facts(array: np.ndarray) -> list:
    crc = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return [str(array.dtype), list(array.shape), crc]
