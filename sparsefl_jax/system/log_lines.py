"""The logs of a run: JSON lines whose length and checksum every checkpoint holds.

What was written after the checkpoint is cut off. If a log was cut off or altered before
that, the run is refused: no altered number is ever counted.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from sparsefl_jax.core.check import UserError
from sparsefl_jax.system import files

SCHEMA = 1  # of metrics.jsonl, see `report.load`
FILES = ("metrics.jsonl", "timing.jsonl")


def begin(workdir: Path, position: dict | None) -> dict[str, list[int]]:
    """Begins the logs of a run, or cuts off what they hold behind a position.

    Returns:
      The end of each log by name: its length and CRC-32.
    """
    ends = {name: (position or {}).get(name, [0, 0]) for name in FILES}
    for name, end in ends.items():
        with files.name_file(workdir / name), (workdir / name).open("ab") as file:
            file.truncate(end[0])
    if position is None:  # the first line of metrics.jsonl
        ends[FILES[0]] = append(workdir / FILES[0], [{"schema": SCHEMA}], [0, 0])
    return ends


def append(path: Path, records: Iterable[dict], end: list[int]) -> list[int]:
    """Appends records to a log; numbers that are not finite become null.

    Args:
      path: of the log.
      records: a line each.
      end: of the log so far.

    Returns:
      The new end. It follows from what was written, not from the file, so that a log
      that others have altered is found out.

    Raises:
      OSError: the file cannot be written; the message names it, and no part stays.
    """
    plain = msgspec.json.decode(msgspec.json.encode(list(records)))
    content = "".join(json.dumps(line) + "\n" for line in plain).encode()
    # Unbuffered: no buffer can write the rest of a failed line later.
    with files.name_file(path), path.open("ab", buffering=0) as file:
        rest = memoryview(content)
        try:
            while rest:  # a full disk takes the part that fits first
                rest = rest[file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(end[0])
            raise
    return _after(end, content)


def flush(workdir: Path) -> None:
    """Writes the logs to the disk."""
    for path in (workdir / name for name in FILES):
        with files.name_file(path), path.open("rb+") as file:
            os.fsync(file)


def check_logs(workdir: Path, position: dict) -> None:
    """Checks that the logs hold all that they held at a position.

    Args:
      workdir: the run's directory.
      position: has the end of each file, as `append` returned it.

    Raises:
      ValueError: a log does not.
    """
    for name, path in ((name, workdir / name) for name in FILES):
        size = position[name][0]
        content = path.read_bytes() if path.exists() else b""
        if _after([0, 0], content[:size]) != list(position[name]):
            raise UserError(
                f"workdir={str(workdir)!r}: the first {size} bytes of {name} are not "
                "as the checkpoint knows them, expected the file of this run; restore "
                "it, or start the run again in another folder"
            )


def _after(end: list[int], content: bytes) -> list[int]:
    """Returns the end of a file after more content."""
    return [end[0] + len(content), zlib.crc32(content, end[1])]
