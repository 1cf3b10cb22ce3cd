"""The lines of a run's logs: which of them are as they were written.

A checkpoint keeps a checksum of every line, so that a run that goes on knows what has
been cut off, altered or removed meanwhile, and never counts an altered number.
"""

import os
import zlib
from pathlib import Path
from typing import NamedTuple

SCHEMA = 2  # of metrics.jsonl, see `report.load`
HEADER = b'{"schema": %d}\n' % SCHEMA  # its first line
FILES = ("metrics.jsonl", "timing.jsonl")
_DIGITS = 8  # of a line's checksum


class Kept(NamedTuple):
    """What of a file is as it was."""

    content: bytes  # whole lines, in their order
    checks: str  # of these lines
    lost: str  # in words what is missing; '' if nothing is


def check(text: bytes) -> str:
    r"""A CRC-32 of every line in hexadecimal digits, one after the other.

    Example:
      >>> check(b"a\nb\n") == check(b"a\n") + check(b"b\n")
      True
    """
    return "".join(f"{zlib.crc32(x):08x}" for x in text.splitlines(keepends=True))


def kept(path: Path, checks: str) -> Kept:
    """The lines of a file that have the checksums; what stands behind them is left out.

    Args:
      path: a file, which may be gone.
      checks: from `check`, of the file as it was.

    Raises:
      OSError: it cannot be read.
    """
    found = path.read_bytes() if path.exists() else b""
    lines = found.splitlines(keepends=True)
    wanted = [checks[i : i + _DIGITS] for i in range(0, len(checks), _DIGITS)]
    before = b"".join(lines[: len(wanted)])
    if check(before) == checks:
        return Kept(before, checks, "")
    by_check = {check(line): line for line in lines}
    whole = [c for c in wanted if c in by_check]
    missing = [i for i, c in enumerate(wanted, 1) if c not in by_check]
    name = f"the {len(wanted)} lines of {path.name}"
    if not path.exists():
        lost = f"{path.name} is gone, with {len(wanted)} lines"
    elif missing:
        lost = f"{len(missing)} of {name} are cut off or altered ({_ranges(missing)})"
    else:
        lost = f"{name} are no longer in their order, or others stand between them"
    return Kept(b"".join(by_check[c] for c in whole), "".join(whole), lost)


def lost(workdir: Path, position: dict) -> list[str]:
    """What is missing of a run's logs up to a position, in words, by file.

    Args:
      workdir: the run's directory.
      position: from `sinks.Sinks.position`.
    """
    files = (kept(workdir / name, position[name]) for name in FILES)
    return [file.lost for file in files if file.lost]


def restore(workdir: Path, position: dict) -> dict:
    """Makes logs of the lines that are as they were.

    A file that holds others stays beside them as `metrics.jsonl.damaged`.

    Args:
      workdir, position: as in `lost`.

    Returns:
      The position at the end of these lines.
    """
    for name in FILES:
        path, whole = workdir / name, kept(workdir / name, position[name])
        if not whole.lost:
            continue
        if path.exists():
            aside, number = workdir / f"{name}.damaged", 1
            while aside.exists():
                aside, number = workdir / f"{name}.damaged{number}", number + 1
            os.replace(path, aside)
        content = whole.content
        if name == "metrics.jsonl" and not content.startswith(HEADER):
            content = HEADER + content
        path.write_bytes(content)
        position = position | {name: check(content)}
    return position


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers in words.

    Example:
      >>> _ranges([1, 4, 5, 6])
      '1, 4 to 6'
    """
    spans = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in spans)
