"""Reads and checks files, and names the file in every error.

A type of msgspec, such as a `Struct` or `dict[str, Number]`, says what a JSON file may
hold. Fields that it does not name are ignored.
"""

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from sparsefl_jax.core.check import UserError, blame

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# A larger number could overflow in a sum or a percentage.
Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]


def read_json(path: Path, kind: Any = Any) -> Any:
    """Reads a JSON file.

    Args:
      path: the file.
      kind: the type of its content.

    Returns:
      The content as dictionaries, lists and plain values.

    Raises:
      ValueError: the file cannot be read, or does not fit the type.
    """
    with blame(f"{path} cannot be read"):
        value = msgspec.json.decode(path.read_bytes())
        msgspec.convert(value, kind)
    return value


def read_optional(path: Path, kind: Any = Any) -> Any:
    """Reads a JSON file as `read_json` does; returns {} if there is none."""
    return read_json(path, kind) if path.exists() else {}


def read_array(path: Path, kind: str, ndim: int) -> np.ndarray:
    """Reads a `.npy` file into memory.

    Args:
      path: the file.
      kind: NumPy's letters of the dtypes allowed, such as 'iu'.
      ndim: the number of axes.

    Raises:
      ValueError: the file cannot be read, is empty, or holds another dtype or number of
        axes.
    """
    array = open_array(path)
    if array.dtype.kind not in kind or array.ndim != ndim or not array.size:
        raise UserError(f"{path} holds {array.dtype} {list(array.shape)}")
    return np.array(array)


def open_array(path: Path) -> np.ndarray:
    """Memory-maps a `.npy` file.

    Raises:
      ValueError: the file cannot be read.
    """
    with blame(f"{path} cannot be read"):
        return np.lib.format.open_memmap(path, mode="r")


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically: if the process is killed, the old content stays.

    Raises:
      OSError: the file cannot be written, such as on a full disk; names the file.
    """
    temporary = path.with_name(path.name + ".tmp")
    with name_file(path):
        temporary.write_bytes(content)
        os.replace(temporary, path)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file atomically, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically, as `write_bytes` does.

    Raises:
      ValueError: a number is not finite, for which JSON has no text.
    """
    with blame(path):
        text = json.dumps(value, indent=2, allow_nan=False)
    write_text(path, text)


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes a `.npy` file atomically, as `write_bytes` does."""
    np.save(content := io.BytesIO(), array)
    write_bytes(path, content.getvalue())


@contextlib.contextmanager
def name_file(path: str | Path) -> Iterator[None]:
    """Adds the name of a file to an OSError that lacks it.

    Example:
      >>> with name_file("metrics.jsonl"):
      ...     raise OSError(28, "No space left on device")
      Traceback (most recent call last):
        ...
      OSError: [Errno 28] No space left on device: 'metrics.jsonl'
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
