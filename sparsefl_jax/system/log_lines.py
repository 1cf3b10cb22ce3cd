"""Checks a run's logs against the length and checksum in its checkpoint.

What was written after the checkpoint is cut off. A log that was cut off or altered
before that is not read: no altered number is ever counted.
"""

import itertools
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

SCHEMA = 1  # of metrics.jsonl, see `report.load`
HEADER = b'{"schema": %d}\n' % SCHEMA  # the first line of metrics.jsonl
FILES = ("metrics.jsonl", "timing.jsonl")
EMPTY = (0, 0)  # the end of an empty file


def after(end: Sequence[int], content: bytes) -> list[int]:
    r"""Returns the end of a file after more content: its length and CRC-32.

    Example:
      >>> after(after(EMPTY, b"a\n"), b"b\n") == after(EMPTY, b"a\nb\n")
      True
    """
    return [end[0] + len(content), zlib.crc32(content, end[1])]


def lost(workdir: Path, position: dict) -> list[str]:
    """Describes the logs that are not as they were at a position.

    Args:
      workdir: the run's directory.
      position: from `sinks.Sinks.position`; has the end of each file by name.

    Returns:
      A line for each such file.
    """
    return [
        f"{name} is not as the checkpoint knows it, {position[name][0]} bytes"
        for name in FILES
        if not _whole(workdir / name, position[name])
    ]


def restore(workdir: Path, position: dict) -> dict:
    """Cuts off the logs behind a position, and begins those anew that are not whole.

    A file that is not whole is kept as `metrics.jsonl.damaged`.

    Args:
      workdir, position: as in `lost`.

    Returns:
      The position at which the logs now end.
    """
    for name in FILES:
        path = workdir / name
        if _whole(path, position[name]):
            os.truncate(path, position[name][0])
            continue
        if path.exists():
            names = (workdir / f"{name}.damaged{n or ''}" for n in itertools.count())
            os.replace(path, next(aside for aside in names if not aside.exists()))
        content = HEADER if name == "metrics.jsonl" else b""
        path.write_bytes(content)
        position = position | {name: after(EMPTY, content)}
    return position


def _whole(path: Path, end: Sequence[int]) -> bool:
    """Returns whether a file begins with what it held when it had this end."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return after(EMPTY, file.read(end[0])) == list(end)
