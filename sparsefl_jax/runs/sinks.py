"""Logs of a run's records: JSON lines always, and logs of other tools by name.

After an interruption they continue from a position that a checkpoint has saved, as if
they had never stopped. The package of a tool, an extra, is imported where it is used,
and its errors become one line that names the tool. The step is the number of rounds
over all stages.
"""

import contextlib
import functools
import importlib.util
import io
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flax.traverse_util import flatten_dict

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.validate import blaming, one_of
from sparsefl_jax.system import files, log_lines

PROJECT = "sparsefl_jax"  # unless the tool's own environment variable names another
Rows = dict[int, dict[str, float]]  # the numbers of a round by their names, by step


class Sink(NamedTuple):
    """A log of a run."""

    write: Callable[[Rows], None]  # the rows survive a kill of the process
    close: Callable[[dict], None]  # takes the summary, {} if the run has not ended
    id: str | None = None  # of the run, by which the tool finds it again


class Sinks(NamedTuple):
    """All logs of a run."""

    write: Callable[..., None]  # (records, seconds, compile_seconds) of one segment
    position: Callable[[], dict]  # from which a run continues


@contextlib.contextmanager
def open_sinks(
    names: Sequence[str], workdir: str | Path, position: dict | None = None
) -> Iterator[Sinks]:
    r"""Opens `JsonLines` and the named sinks, and closes them on leaving.

    Args:
      names: keys of `TOOLS`.
      workdir: an existing directory.
      position: where the files end, as returned by `position()`; None to start empty.

    Yields:
      `Sinks`. `write` takes the records of one segment, as in `metrics.jsonl`, the
      seconds since the run's start without interruptions, and the seconds of the
      segment that were spent on compilation.

    Raises:
      ValueError: a name is unknown or lacks its package.
      OSError: a write failed, as on a full disk, or a tool failed; the message names
        the file or the tool. After an error of the run itself, errors of tools are
        ignored.

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
    workdir, step = Path(workdir), position["rounds"] if position else 0
    logs: dict[str, Sink] = {}

    def call(name: str, function: Callable, *arguments) -> Any:
        with blaming(f"sinks={name!r}", OSError):
            return function(*arguments)

    def write(records: list[dict], seconds: float, compile_seconds: float = 0.0):
        nonlocal step
        lines.write(records, seconds, compile_seconds)
        rows: Rows = {}
        for record in records:
            step += record["phase"] == "train"
            row = rows.setdefault(step, {"stage": float(record["stage"])})
            row |= scalars(record, record["phase"])
        rows[step]["seconds"] = seconds
        for name, log in logs.items():
            call(name, log.write, rows)

    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(contextlib.closing(JsonLines(workdir, position)))

        def close(name: str, kind, error, trace) -> None:
            try:
                summary = files.read_optional(workdir / "summary.json")
                call(name, logs[name].close, summary)
            except OSError:
                if error is None:  # else the run's own error counts
                    raise

        for name in names:
            logs[name] = call(name, opened, name, workdir, step)
            stack.push(functools.partial(close, name))
        yield Sinks(write, lines.position)


class JsonLines:
    """`metrics.jsonl`, a line per record, and `timing.jsonl`, a line per segment.

    The first line of `metrics.jsonl` is the schema of the records, see `report.load`. A
    number that is not finite becomes null: JSON has no NaN.

    Args:
      workdir: an existing directory.
      position: where the files end and continue, see `log_lines.restore`; None to start
        empty.

    Raises:
      OSError: a write failed; the message names the file, and no part of it stays.
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
        self, records: list[dict], seconds: float, compile_seconds: float
    ) -> None:
        """Appends the records of one segment; arguments as in `open_sinks`."""
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

        They hold the end of each file by name, from `log_lines.after`, `rounds` over
        all stages, and the `seconds` of the last segment.
        """
        for file in (self._metrics, self._timing):
            with files.naming(file.name):
                os.fsync(file.fileno())
        return self._ends | {"rounds": self._rounds, "seconds": self._seconds}

    def _append(self, file: io.FileIO, text: str) -> None:
        """Appends the whole text or, on failure, nothing."""
        content = text.encode()
        size, rest = os.fstat(file.fileno()).st_size, memoryview(content)
        try:
            with files.naming(file.name):
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


def _line(record: dict) -> str:
    return json.dumps(_nulled(record), allow_nan=False) + "\n"


def _nulled(value):
    """Replaces every number that is not finite by None."""
    if isinstance(value, dict):
        return {key: _nulled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nulled(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def opened(name: str, workdir: Path, step: int) -> Sink:
    """Opens the log of a tool where it ended.

    `NAME.json` in the run's folder holds the id of the run and the last logged round.
    When a killed run is resumed, rounds after the last checkpoint run again with the
    same values; those already logged are skipped, including evaluations that are new in
    them because `eval_every` has changed.

    Args:
      name: a key of `TOOLS`.
      workdir: the run's folder.
      step: completed rounds of a resumed run.

    Raises:
      Exception: whatever the tool raises.
    """
    path = workdir / f"{name}.json"
    state = {"id": None, "rounds": 0} | files.read_optional(path, dict)
    sink = TOOLS[name](workdir, step, state["id"])
    if sink.id is None:
        return sink

    def write(rows: Rows) -> None:
        new = {step: row for step, row in rows.items() if step > state["rounds"]}
        sink.write(new)
        rounds = state["rounds"] = max([state["rounds"], *new])
        files.write_json(path, {"id": sink.id, "rounds": rounds})

    write({})
    return sink._replace(write=write)


def tensorboard(workdir: Path, step: int, id: None) -> Sink:
    """Writes event files in `tensorboard/`: every number as a scalar.

    Rounds after `step`, which run again, are hidden.
    """
    # Not SummaryWriter: its thread loses pending events on a kill, and hides
    # errors.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary

    folder = workdir / "tensorboard"
    folder.mkdir(exist_ok=True)
    # Files are read in the order of their names; the suffix tells those of one second
    # apart.
    writer = EventsWriter(str(folder / "events"), f".{step:09d}")
    start = SessionLog(status=SessionLog.START)
    writer.write_event(Event(step=step + 1, session_log=start))

    def write(rows: Rows) -> None:
        for step, row in rows.items():
            values = [Summary.Value(tag=tag, simple_value=v) for tag, v in row.items()]
            summary = Summary(value=values)
            event = Event(step=step, wall_time=time.time(), summary=summary)
            writer.write_event(event)
        writer.flush()

    return Sink(write, lambda summary: writer.close())


def weights_and_biases(workdir: Path, step: int, id: str | None) -> Sink:
    """Logs to a run of Weights & Biases, by default of the project `sparsefl_jax`.

    W&B's own environment variables apply (`WANDB_MODE=offline`, `WANDB_PROJECT`,
    `WANDB_ENTITY`); its files are in `wandb/`. The run has the configuration, every
    number of the records and, once it has ended, the summary. Several seeds are a
    group.
    """
    import wandb

    group, name = names_of(workdir)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        dir=workdir,
        id=id,
        resume="allow",
        reinit="create_new",
        name=name,
        group=group,
        settings=wandb.Settings(console="off"),
    )
    config = files.read_optional(workdir / "config.json")
    run.config.update(config, allow_val_change=True)

    def write(rows: Rows) -> None:
        for step, row in rows.items():
            run.log(row, step=step, commit=True)

    def close(summary: dict) -> None:
        run.summary.update(summary)
        run.finish(exit_code=0 if summary else 1)

    return Sink(write, close, run.id)


def mlflow(workdir: Path, step: int, id: str | None) -> Sink:
    """Logs to a run of MLflow, by default in the experiment `sparsefl_jax`.

    MLflow's own environment variables apply (`MLFLOW_TRACKING_URI`,
    `MLFLOW_EXPERIMENT_NAME`); its default is `mlflow.db` in the current folder. Fields
    of the configuration are parameters, and those that a resumed run has changed are
    tags `resumed.FIELD`. Several seeds share the tag `group`.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    client = MlflowClient()
    if id is None:
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        there = client.get_experiment_by_name(project)
        where = there.experiment_id if there else client.create_experiment(project)
        group, name = names_of(workdir)
        tags = {"group": group} if group else {}
        id = client.create_run(where, run_name=name, tags=tags).info.run_id
    client.update_run(id, status="RUNNING")
    old = client.get_run(id).data.params
    fields = flatten(files.read_optional(workdir / "config.json")).items()
    now = {field: str(value) for field, value in fields}
    new = [Param(field, value) for field, value in now.items() if field not in old]
    changed = [(k, v) for k, v in now.items() if old.get(k, v) != v]
    client.log_batch(id, tags=[RunTag(f"resumed.{k}", v) for k, v in changed])
    for params in _batches(new, 100):
        client.log_batch(id, params=params)

    def write(rows: Rows) -> None:
        now = int(1000 * time.time())
        metrics = [
            Metric(re.sub(r"[^\w\-. :/]", "_", key), value, now, step)
            for step, row in rows.items()
            for key, value in row.items()
        ]
        for batch in _batches(metrics, 1000):
            client.log_batch(id, metrics=batch)

    def close(summary: dict) -> None:
        write({summary.get("rounds", 0): scalars(summary, "summary")})
        client.set_terminated(id, "FINISHED" if summary else "KILLED")

    return Sink(write, close, id)


TOOLS: dict[str, Callable[[Path, int, Any], Sink]] = {
    "tensorboard": tensorboard,
    "wandb": weights_and_biases,
    "mlflow": mlflow,
}
_MODULES = {"tensorboard": "tensorboardX"}  # others have the name of the sink


def check(names: Sequence[str]) -> None:
    """Checks that sinks are known and that their packages are installed.

    Args:
      names: keys of `TOOLS`.

    Raises:
      ValueError: a sink is unknown or lacks its package.

    Example:
      >>> check(["tensorbord"])
      Traceback (most recent call last):
      ValueError: sinks='tensorbord' (did you mean 'tensorboard'?), expected one of
      mlflow, tensorboard, wandb
    """
    for name in names:
        one_of("sinks", name, sorted(TOOLS))
        module = _MODULES.get(name, name)
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:  # W&B leaves folders `wandb`
            raise ValueError(
                f"sinks={name!r}, expected {module} to be installed: "
                f"pip install 'sparsefl_jax[{name}]'"
            )


def _batches(items: list, size: int) -> list[list]:
    """Splits a list into batches of the size that MLflow accepts."""
    return [items[first : first + size] for first in range(0, len(items), size)]


def names_of(workdir: Path) -> tuple[str | None, str]:
    """Returns the group of a run and its name: seeds of one folder are a group.

    Example:
      >>> names_of(Path("runs/a/seed_3")), names_of(Path("runs/a"))
      (('a', 'a/seed_3'), (None, 'a'))
    """
    folder = Path(os.path.abspath(workdir))
    if re.fullmatch(r"seed_\d+", folder.name):
        group = folder.parent.name
        return group, f"{group}/{folder.name}"
    return None, folder.name


def scalars(value: dict, tag: str) -> dict[str, float]:
    """Returns all numbers of nested dictionaries by path, except stage and round.

    Example:
      >>> scalars({"a": {"b": 1}, "c": "d", "round": 3}, "train")
      {'train/a/b': 1.0}
    """
    known = {k: item for k, item in value.items() if k not in ("stage", "round")}
    leaves = flatten_dict({tag: known}, sep="/").items()
    return {path: float(v) for path, v in leaves if isinstance(v, int | float)}
