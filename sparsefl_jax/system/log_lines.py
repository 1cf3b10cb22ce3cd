"""Checks a run's logs against the length and checksum in its checkpoint.

What was written after the checkpoint is cut off. If a log was cut off or altered before
that, the run is refused: no altered number is ever counted.
"""

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


def check(workdir: Path, position: dict) -> None:
    """Checks that the logs hold all that they held at a position.

    Args:
      workdir: the run's directory.
      position: from `sinks.Sinks.position`; has the end of each file by name.

    Raises:
      ValueError: a log does not.
    """
    for name in FILES:
        if not _whole(workdir / name, position[name]):
            raise ValueError(
                f"workdir={str(workdir)!r}: the first {position[name][0]} bytes of "
                f"{name} are not as the checkpoint knows them, expected the file of "
                "this run; restore it, or start the run again in another folder"
            )


def cut(workdir: Path, position: dict) -> None:
    """Cuts off what the logs hold behind a position, see `check`."""
    for name in FILES:
        os.truncate(workdir / name, position[name][0])


def _whole(path: Path, end: Sequence[int]) -> bool:
    """Returns whether a file begins with what it held when it had this end."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return after(EMPTY, file.read(end[0])) == list(end)
