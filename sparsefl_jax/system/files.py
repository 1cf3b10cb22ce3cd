"""Reads and checks files, and names the file in every error.

A pattern describes the JSON value that a file may hold: a name in `KINDS`; `("a", "b")`
for one of several strings; `[pattern]` for a list; `{str: pattern}` for an object with
any keys; `{"a": pattern, "b?": pattern}` for an object with these keys, of which those
with a question mark may be absent or null. Other keys are ignored.
"""

import asyncio
import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from sparsefl_jax.core.validate import one_line

_LARGEST = 1e300  # a larger number could overflow in a sum or a percentage


def _number(value) -> bool:
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and not (isinstance(value, Integral) and abs(int(value)) > _LARGEST)


KINDS: dict[str, Callable[[Any], bool]] = {
    "a whole number": lambda v: type(v) is int and 0 <= v < 2**63,
    "a number": _number,
    "a number or null": lambda v: v is None or _number(v),
    "a text": lambda v: isinstance(v, str),
    "fields": lambda v: isinstance(v, dict),
    "anything": lambda v: True,
}
COUNT, NUMBER, VALUE, TEXT, FIELDS, ANY = KINDS


def read_json(path: Path, pattern: Any = ANY) -> Any:
    """Reads a JSON file.

    Args:
      path: the file.
      pattern: the values allowed, as the head of this file explains.

    Raises:
      ValueError: the file cannot be read, or does not fit the pattern.
    """
    with _reading(path):
        value = json.loads(path.read_text(encoding="utf-8"))
    return check(path, value, pattern)


def read_optional(path: Path, pattern: Any = ANY) -> Any:
    """Reads a JSON file as `read_json` does; returns {} if there is none."""
    return read_json(path, pattern) if path.exists() else {}


def read_text(path: Path) -> str:
    """Reads a text file.

    Raises:
      ValueError: the file cannot be read, or is not UTF-8.
    """
    with _reading(path):
        return path.read_text(encoding="utf-8")


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
        raise ValueError(f"{path} holds {array.dtype} {list(array.shape)}")
    return np.array(array)


def open_array(path: Path) -> np.ndarray:
    """Memory-maps a `.npy` file.

    Raises:
      ValueError: the file cannot be read.
    """
    with _reading(path):
        return np.lib.format.open_memmap(path, mode="r")


def awaiting_all() -> contextlib.AbstractContextManager:
    """Makes event loops created in the context finish all their tasks before closing.

    orbax closes its loop at the first error. Python would then print a traceback for
    every other read that fails.
    """
    new_event_loop = asyncio.new_event_loop

    async def finish_tasks():
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*tasks, return_exceptions=True)

    def new_waiting_loop():
        loop = new_event_loop()
        close = loop.close

        def close_when_done():
            loop.run_until_complete(finish_tasks())
            close()

        loop.close = close_when_done
        return loop

    return mock.patch.object(asyncio, "new_event_loop", new_waiting_loop)


def check_name(argument: str, path: str | Path) -> None:
    """Refuses a path with characters that the locale cannot encode.

    Args:
      argument: the name of the argument, for the error.
      path: its value.

    Raises:
      ValueError: the path cannot be encoded.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{argument}={ascii(str(path))} is not text in this locale; set LC_ALL or "
            "PYTHONUTF8=1"
        ) from None


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Names the file, once, in errors while it is read."""
    try:
        yield
    except Exception as error:  # NumPy raises errors of many types
        if isinstance(error, OSError) and error.strerror:
            error = OSError(error.strerror)
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from None


def check(path: Path, value: Any, pattern: Any, where: str = "") -> Any:
    """Returns a JSON value after checking it against a pattern.

    Args:
      path: the file of the value, for the error.
      value: the JSON value.
      pattern: the values allowed, as the head of this file explains.
      where: the name of the value in the file; '' for the whole file.

    Raises:
      ValueError: the value does not fit; names the file and the field.

    Example:
      >>> check(Path("a.json"), {"b": [1, -1]}, {"b": [COUNT]})
      Traceback (most recent call last):
        ...
      ValueError: a.json holds b.1=-1, expected a whole number
    """
    if isinstance(pattern, str):
        fits, expected = KINDS[pattern](value), pattern
    elif isinstance(pattern, tuple):
        fits, expected = value in pattern, " or ".join(map(repr, pattern))
    else:
        fits = isinstance(value, type(pattern))
        expected = "a list" if isinstance(pattern, list) else "fields"
    if not fits:
        text = json.dumps(value)
        text = text if len(text) <= 40 else text[:37] + "..."
        name = f"{where}=" if where else ""
        raise ValueError(f"{path} holds {name}{text}, expected {expected}")
    if isinstance(pattern, list):
        for i, item in enumerate(value):
            check(path, item, pattern[0], _joined(where, i))
    elif isinstance(pattern, dict):
        for name, inner in pattern.items():
            for key in value if name is str else [name.removesuffix("?")]:
                if name == f"{key}?" and value.get(key) is None:
                    continue
                if key not in value:
                    raise ValueError(f"{path} lacks {_joined(where, key)}")
                check(path, value[key], inner, _joined(where, key))
    return value


def _joined(where: str, name: str | int) -> str:
    return f"{where}.{name}" if where else str(name)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically: if the process is killed, the old content stays.

    Raises:
      OSError: the file cannot be written, such as on a full disk; names the file.
    """
    temporary = path.with_name(path.name + ".tmp")
    with naming(path):
        temporary.write_bytes(content)
        os.replace(temporary, path)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file atomically, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes a `.npy` file atomically, as `write_bytes` does."""
    np.save(content := io.BytesIO(), array)
    write_bytes(path, content.getvalue())


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Adds the name of a file to an OSError that lacks it.

    Example:
      >>> with naming("metrics.jsonl"):
      ...     raise OSError(28, "No space left on device")
      Traceback (most recent call last):
        ...
      OSError: [Errno 28] No space left on device: 'metrics.jsonl'
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
