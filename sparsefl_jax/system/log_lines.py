"""Verifies the lines of a run's logs.

A checkpoint keeps a checksum of every line. So a resumed run knows which lines have
been cut off, altered or removed since, and never counts an altered number.
"""

import os
import zlib
from pathlib import Path
from typing import NamedTuple

SCHEMA = 2  # of metrics.jsonl, see `report.load`
HEADER = b'{"schema": %d}\n' % SCHEMA  # the first line of metrics.jsonl
FILES = ("metrics.jsonl", "timing.jsonl")
_DIGITS = 8  # of a line's checksum


class Kept(NamedTuple):
    """The lines of a file that are as they were written."""

    content: bytes  # whole lines, in their order
    checks: str  # the checksums of these lines
    lost: str  # a description of what is missing; '' if nothing is


def check(text: bytes) -> str:
    r"""Returns the CRC-32 of every line in hexadecimal digits, one after the other.

    Example:
      >>> check(b"a\nb\n") == check(b"a\n") + check(b"b\n")
      True
    """
    return "".join(f"{zlib.crc32(x):08x}" for x in text.splitlines(keepends=True))


def kept(path: Path, checks: str) -> Kept:
    """Returns the lines of a file that match checksums, and drops later lines.

    Args:
      path: a file, which may no longer exist.
      checks: the result of `check` when the file was whole.

    Raises:
      OSError: the file cannot be read.
    """
    found = path.read_bytes() if path.exists() else b""
    lines = found.splitlines(keepends=True)
    wanted = [checks[i : i + _DIGITS] for i in range(0, len(checks), _DIGITS)]
    expected = b"".join(lines[: len(wanted)])
    if check(expected) == checks:
        return Kept(expected, checks, "")
    by_check = {check(line): line for line in lines}
    present = [c for c in wanted if c in by_check]
    missing = [i for i, c in enumerate(wanted, 1) if c not in by_check]
    name = f"the {len(wanted)} lines of {path.name}"
    if not path.exists():
        lost = f"{path.name} is gone, with {len(wanted)} lines"
    elif missing:
        lost = f"{len(missing)} of {name} are cut off or altered, first {missing[0]}"
    else:
        lost = f"{name} are no longer in their order, or other lines are between them"
    return Kept(b"".join(by_check[c] for c in present), "".join(present), lost)


def lost(workdir: Path, position: dict) -> list[str]:
    """Describes what is missing from a run's logs up to a position.

    Args:
      workdir: the run's directory.
      position: from `sinks.Sinks.position`.

    Returns:
      A line for each file that has lost something.
    """
    files = (kept(workdir / name, position[name]) for name in FILES)
    return [file.lost for file in files if file.lost]


def restore(workdir: Path, position: dict) -> dict:
    """Cuts off the logs behind a position; rewrites damaged ones.

    These then have the lines that are as they were written, and the damaged file is
    kept as `metrics.jsonl.damaged`.

    Args:
      workdir, position: as in `lost`.

    Returns:
      The position at the end of the lines that remain.
    """
    for name in FILES:
        path, intact = workdir / name, kept(workdir / name, position[name])
        if not intact.lost:
            if path.exists():
                os.truncate(path, len(intact.content))
            continue
        if path.exists():
            aside, number = workdir / f"{name}.damaged", 1
            while aside.exists():
                aside, number = workdir / f"{name}.damaged{number}", number + 1
            os.replace(path, aside)
        content = intact.content
        if name == "metrics.jsonl" and not content.startswith(HEADER):
            content = HEADER + content
        path.write_bytes(content)
        position = position | {name: check(content)}
    return position
