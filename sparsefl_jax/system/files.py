"""Files: checked where they are read, named where they cannot be written.

What a file may hold is told by a pattern: the name of a kind of value, `("a", "b")` for
one of some texts, `[pattern]` for a list, `{str: pattern}` for fields of any name,
`{"a": pattern, "b?": pattern}` for fields by name, of which those with a question mark
may be absent or null. Other fields are not looked at.
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

import numpy as np

from sparsefl_jax.core.validate import one_line

_LARGEST = 1e300  # a number that sums and percentages can take


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
    """What a JSON file holds.

    Raises:
      ValueError: in one line, it cannot be read or holds something else.
    """
    return check(path, parse(path, read_text(path)), pattern)


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
      ValueError: in one line, it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def parse(path: Path, text: str) -> Any:
    """The JSON value that a text of a file is.

    Raises:
      ValueError: in one line, it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unreadable(path, error) from None


def read_array(path: Path, kind: str, ndim: int) -> np.ndarray:
    """The array of a `.npy` file that has entries, whole.

    Args:
      path: the file.
      kind: NumPy's letters of the dtypes allowed, as 'iu'.
      ndim: its number of axes.

    Raises:
      ValueError: in one line, it cannot be read or holds something else.
    """
    array = open_array(path)
    if array.dtype.kind not in kind or array.ndim != ndim or not array.size:
        raise ValueError(f"{path} holds {array.dtype} {list(array.shape)}")
    return np.array(array)


def open_array(path: Path) -> np.ndarray:
    """The array of a `.npy` file, without reading it.

    Raises:
      ValueError: in one line, it cannot be read.
    """
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy raises many kinds
        raise unreadable(path, error) from None


@contextlib.contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Tells of what fails in the context that it comes of a file, in one line.

    Example:
      >>> with blaming(Path("config.json")):
      ...     int("many")
      Traceback (most recent call last):
        ...
      ValueError: config.json: invalid literal for int() with base 10: 'many'
    """
    try:
        yield
    except Exception as error:  # of a damaged file anything can fail
        raise ValueError(f"{path}: {one_line(error)}") from error


@contextlib.contextmanager
def awaiting_all() -> Iterator[None]:
    """Lets event loops that are made in the context end all that was begun on them.

    orbax closes its loop at the first error, and what the other reads come to is then
    printed, a traceback for each.
    """
    new_event_loop = asyncio.new_event_loop

    async def rest():
        while begun := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*begun, return_exceptions=True)

    def patient():
        loop = new_event_loop()
        close = loop.close

        def close_when_done():
            loop.run_until_complete(rest())
            close()

        loop.close = close_when_done
        return loop

    asyncio.new_event_loop = patient
    try:
        yield
    finally:
        asyncio.new_event_loop = new_event_loop


def check_name(argument: str, path: str | Path) -> None:
    """Refuses a path that is no text, as of other letters than the locale has.

    Raises:
      ValueError: names the argument and what to do.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{argument}={ascii(str(path))} is no text in this locale, expected LC_ALL "
            "or PYTHONUTF8=1 to be set so that it is"
        ) from None


def unreadable(path: Path, error: Exception) -> ValueError:
    """The error that names a file which cannot be read."""
    if isinstance(error, OSError) and error.strerror:
        error = OSError(error.strerror)  # without the name once more
    return ValueError(f"{path} cannot be read: {one_line(error)}")


def check(path: Path, value: Any, pattern: Any, where: str = "") -> Any:
    """Gives the value back if it is as the pattern says.

    Args:
      path: the file that it is from, for the error.
      value: as JSON has it.
      pattern: see the head of this file.
      where: the name of the value in the file; '': it is all of it.

    Raises:
      ValueError: names file and field.

    Example:
      >>> check(Path("a.json"), {"b": [1, -1]}, {"b": [COUNT]})
      Traceback (most recent call last):
        ...
      ValueError: a.json holds b.1=-1, expected a whole number
    """
    if isinstance(pattern, str):
        if not KINDS[pattern](value):
            raise _other(path, where, value, pattern)
    elif isinstance(pattern, tuple):
        if value not in pattern:
            raise _other(path, where, value, " or ".join(map(repr, pattern)))
    elif isinstance(pattern, list):
        if not isinstance(value, list):
            raise _other(path, where, value, "a list")
        for i, item in enumerate(value):
            check(path, item, pattern[0], _joined(where, i))
    else:
        if not isinstance(value, dict):
            raise _other(path, where, value, "fields")
        for name, inner in pattern.items():
            _check_field(path, value, name, inner, where)
    return value


def _check_field(path: Path, value: dict, name, pattern: Any, where: str) -> None:
    if name is str:
        for key, item in value.items():
            check(path, item, pattern, _joined(where, key))
        return
    key = name.removesuffix("?")
    if key not in value and key == name:
        raise ValueError(f"{path} lacks {_joined(where, key)}")
    if key == name or value.get(key) is not None:
        check(path, value[key], pattern, _joined(where, key))


def _joined(where: str, name) -> str:
    return f"{where}.{name}" if where else str(name)


def _other(path: Path, where: str, value: Any, expected: str) -> ValueError:
    told = json.dumps(value)
    told = told if len(told) <= 40 else told[:37] + "..."
    return ValueError(
        f"{path} holds {where + '=' if where else ''}{told}, expected {expected}"
    )


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file whole or, if the process is killed, not at all.

    Raises:
      OSError: it cannot be written, as on a full disk; names the file.
    """
    temporary = path.with_name(path.name + ".tmp")
    with naming(path):
        temporary.write_bytes(content)
        os.replace(temporary, path)


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or, if the process is killed, not at all."""
    write_bytes(path, text.encode())


def write_array(path: Path, array: np.ndarray) -> None:
    """Writes a `.npy` file as `write_bytes` does."""
    np.save(content := io.BytesIO(), array)
    write_bytes(path, content.getvalue())


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Gives an error of the file system the name that a failed write lacks.

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
