"""Where the records of a run go: JSON lines always, other logs by name.

After an interruption they go on from a position, which a checkpoint has saved, as if
they had never stopped. What another log raises becomes one line that names it.
"""

import contextlib
import importlib.util
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsefl_jax.core.validate import blaming, one_of
from sparsefl_jax.runs import trackers
from sparsefl_jax.system import log_lines
from sparsefl_jax.system.files import naming


class JsonLines:
    """`metrics.jsonl`, a line per record, and `timing.jsonl`, a line per segment.

    The first line of `metrics.jsonl` is the schema of the records, see `report.load`. A
    number that is not finite becomes null: JSON has no NaN.

    Args:
      workdir: an existing directory.
      position: where the files end and go on, see `log_lines.restore`. None: start
        empty.

    Raises:
      OSError: a write failed, with the file's name; no part of the write stays.
    """

    def __init__(self, workdir: Path, position: dict | None = None):
        start = position or {"rounds": 0, "seconds": 0.0}
        self._rounds, self._seconds = start["rounds"], start["seconds"]
        self._ends = {n: start.get(n, log_lines.EMPTY) for n in log_lines.FILES}
        # Unbuffered: no buffer can write the rest of a failed line later.
        mode = "w" if position is None else "a"
        self._metrics, self._timing = (
            io.FileIO(workdir / name, mode) for name in log_lines.FILES
        )
        if position is None:
            self._append(self._metrics, log_lines.HEADER.decode())

    def write(
        self, records: list[dict], seconds: float, compile_seconds: float = 0.0
    ) -> None:
        """Appends the records of one segment; `seconds` since the run's start.

        `compile_seconds` of the segment's time went into compiling.
        """
        rounds = sum(record["phase"] == "train" for record in records)
        line = {
            "stage": records[-1]["stage"],
            "round": records[-1]["round"],
            "seconds": seconds,
            "rounds_per_second": rounds / (seconds - self._seconds),
            "compile_seconds": compile_seconds,
        }
        self._append(self._metrics, "".join(map(_line, records)))
        self._append(self._timing, _line(line))
        self._rounds += rounds
        self._seconds = seconds

    def position(self) -> dict:
        """Flushes the files to disk and returns their ends as JSON values.

        Holds the end of each file by name, as `log_lines.after` gives it, `rounds` over
        all stages, and the `seconds` of the last segment.
        """
        for file in (self._metrics, self._timing):
            with naming(file.name):
                os.fsync(file.fileno())
        return self._ends | {"rounds": self._rounds, "seconds": self._seconds}

    def _append(self, file: io.FileIO, text: str) -> None:
        """Appends the whole text or, on failure, nothing."""
        content = text.encode()
        size, rest = os.fstat(file.fileno()).st_size, memoryview(content)
        try:
            with naming(file.name):
                while rest:  # a full disk takes the part that fits first
                    rest = rest[file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise
        name = Path(file.name).name
        self._ends[name] = log_lines.after(self._ends[name], content)

    def close(self) -> None:
        """Closes both files."""
        self._metrics.close()
        self._timing.close()


_MODULES = {"tensorboard": "tensorboardX"}  # others have the name of the sink


class Sinks(NamedTuple):
    """All logs of a run: `write(records, seconds, compile_seconds)`, and `position()`.

    A run goes on from a position.
    """

    write: Callable[..., None]
    position: Callable[[], dict]


def check(names: Sequence[str]) -> None:
    """Refuses sinks that are unknown or lack a package.

    Args:
      names: keys of `trackers.TOOLS`.

    Raises:
      ValueError: in one line.

    Example:
      >>> check(["tensorbord"])
      Traceback (most recent call last):
      ValueError: sinks='tensorbord' (did you mean 'tensorboard'?), expected one of
      mlflow, tensorboard, wandb
    """
    for name in names:
        one_of("sinks", name, sorted(trackers.TOOLS))
        module = _MODULES.get(name, name)
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:  # W&B leaves folders `wandb`
            raise ValueError(
                f"sinks={name!r}, expected {module} to be installed: "
                f"pip install 'sparsefl_jax[{name}]'"
            )


@contextlib.contextmanager
def open_sinks(
    names: Sequence[str], workdir: str | Path, position: dict | None = None
) -> Iterator[Sinks]:
    r"""Opens `JsonLines` and the named sinks, and closes them on leaving.

    Args:
      names: keys of `trackers.TOOLS`.
      workdir: an existing directory.
      position: where the files end, as `position()` gave it; None: start empty.

    Yields:
      `Sinks`. `write` takes the records of one segment, as `metrics.jsonl` has them,
      the seconds since the run's start, interruptions not counted, and those of the
      segment that went into compiling.

    Raises:
      ValueError: `check` refuses a name.
      OSError: a write failed, as on a full disk, or a tool refuses the run or what is
        logged; names the file or the tool.

    Example:
      >>> import tempfile
      >>> record = {"stage": 0, "phase": "train", "round": 1, "loss": math.nan}
      >>> with tempfile.TemporaryDirectory() as path, open_sinks((), path) as sinks:
      ...     sinks.write([record], 0.5)
      ...     print((Path(path) / "metrics.jsonl").read_text(), end="")
      ...     sinks.position()["rounds"]
      {"schema": 1}
      {"stage": 0, "phase": "train", "round": 1, "loss": null}
      1
    """
    check(names)
    workdir = Path(workdir)
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(contextlib.closing(JsonLines(workdir, position)))
        step = position["rounds"] if position else 0
        logs = {}

        def call(name: str, function: Callable, *arguments) -> Any:
            with blaming(f"sinks={name!r}", OSError):
                return function(*arguments)

        def close(name: str) -> None:
            summary = trackers.fields_of(workdir / "summary.json")
            call(name, logs[name].close, summary)

        for name in names:
            logs[name] = call(name, trackers.opened, name, workdir, step)
            stack.callback(close, name)

        def write(
            records: list[dict], seconds: float, compile_seconds: float = 0.0
        ) -> None:
            nonlocal step
            files.write(records, seconds, compile_seconds)
            if not logs:
                return
            rows = {}
            for record in records:
                step += record["phase"] == "train"
                row = rows.setdefault(step, {"stage": float(record["stage"])})
                row |= trackers.scalars(record, record["phase"])
            rows[step]["seconds"] = seconds
            for name, log in logs.items():
                call(name, log.write, rows)

        yield Sinks(write, files.position)


def _line(record: dict) -> str:
    return json.dumps(_nulled(record), allow_nan=False) + "\n"


def _nulled(value):
    """Replaces every number that is not finite by None."""
    if isinstance(value, dict):
        return {key: _nulled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nulled(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
