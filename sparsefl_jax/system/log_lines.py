"""The logs of a run: JSON lines whose length and checksum every checkpoint holds.

What was written after the checkpoint is cut off. If a log was cut off or altered before
that, the run is refused: no altered number is ever counted.
"""

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from sparsefl_jax.system import files

SCHEMA = 1  # of metrics.jsonl, see `report.load`
HEADER = b'{"schema": %d}\n' % SCHEMA  # the first line of metrics.jsonl
FILES = ("metrics.jsonl", "timing.jsonl")


def begin(workdir: Path, position: dict | None) -> None:
    """Begins the logs of a run, or cuts off what they hold behind a position."""
    if position is None:
        for name, content in zip(FILES, (HEADER, b""), strict=True):
            with files.naming(workdir / name):
                (workdir / name).write_bytes(content)
        return
    for name in FILES:
        os.truncate(workdir / name, position[name][0])


def append(path: Path, records: Iterable[dict]) -> None:
    """Appends records to a log; numbers that are not finite become null.

    Raises:
      OSError: the file cannot be written; the message names it.
    """
    with files.naming(path), path.open("a", encoding="utf-8") as file:
        file.writelines(map(_line, records))


def _line(record: dict) -> str:
    return json.dumps(msgspec.json.decode(msgspec.json.encode(record))) + "\n"


def ends(workdir: Path) -> dict[str, list[int]]:
    """Flushes the logs to disk; returns the length and CRC-32 of each by name."""
    found = {}
    for name in FILES:
        with files.naming(workdir / name), (workdir / name).open("rb+") as file:
            os.fsync(file)
            found[name] = _end(file.read())
    return found


def check(workdir: Path, position: dict) -> None:
    """Checks that the logs hold all that they held at a position.

    Args:
      workdir: the run's directory.
      position: has the end of each file, as `ends` returned them.

    Raises:
      ValueError: a log does not.
    """
    for name, path in ((name, workdir / name) for name in FILES):
        size = position[name][0]
        content = path.read_bytes() if path.exists() else b""
        if _end(content[:size]) != list(position[name]):
            raise ValueError(
                f"workdir={str(workdir)!r}: the first {size} bytes of {name} are not "
                "as the checkpoint knows them, expected the file of this run; restore "
                "it, or start the run again in another folder"
            )


def _end(content: bytes) -> list[int]:
    return [len(content), zlib.crc32(content)]
