"""Logs of a run's records: JSON lines always, and logs of other tools by name.

After an interruption they continue from a position that a checkpoint has saved, as if
they had never stopped. The package of a tool, an extra, is imported where it is used,
and its errors become one line that names the tool. The step is the number of rounds
over all stages.
"""

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flax.traverse_util import flatten_dict

from sparsefl_jax.core.check import blame, check
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.system import files, log_lines

PROJECT = "sparsefl_jax"  # unless the tool's own environment variable names another
Rows = dict[int, dict[str, float]]  # the numbers of a round by their names, by step


class Sink(NamedTuple):
    """A log of a run."""

    write: Callable[[Rows], None]  # the rows survive a kill of the process
    close: Callable[[dict], None]  # takes the summary, {} if the run has not ended


@contextlib.contextmanager
def open_sinks(
    names: Sequence[str],
    workdir: str | Path,
    position: dict | None = None,
    rounds: int = 0,
    seconds: float = 0.0,
) -> Iterator[tuple[Callable, Callable]]:
    r"""Opens the logs of a run, and closes those of tools on leaving.

    Args:
      names: keys of `TOOLS`, see `check_sinks`.
      workdir: an existing directory.
      position: where the files continue, as the second function returned it; None to
        begin.
      rounds: those completed, over all stages.
      seconds: since the run's start, without interruptions.

    Yields:
      Two functions. The first one writes: it takes the records of a segment, as in
      `metrics.jsonl`, the seconds since the run's start, and those of the segment that
      were spent on compilation. The second one flushes the files and returns their
      ends, from which a resumed run continues.

    Raises:
      OSError: a write failed, as on a full disk, or a tool failed; the message names
        the file or the tool. After an error of the run itself, errors of tools are
        ignored.

    Example:
      >>> import tempfile
      >>> record = {"stage": 0, "phase": "train", "round": 1, "loss": float("nan")}
      >>> with tempfile.TemporaryDirectory() as path, open_sinks((), path) as logs:
      ...     write, _ = logs
      ...     write([record], 0.5)
      ...     print((Path(path) / "metrics.jsonl").read_text(), end="")
      {"schema": 1}
      {"stage": 0, "phase": "train", "round": 1, "loss": null}
    """
    workdir, step, last = Path(workdir), rounds, seconds
    ends = log_lines.begin(workdir, position)
    tools: dict[str, Sink] = {}

    def write(records: list[dict], seconds: float, compile_seconds: float = 0.0):
        nonlocal step, last
        before, rows = step, {}
        for record in records:
            step += record["phase"] == "train"
            row = rows.setdefault(step, {"stage": float(record["stage"])})
            row |= scalars(record, record["phase"])
        rows[step]["seconds"] = seconds
        line = {
            "stage": records[-1]["stage"],
            "round": records[-1]["round"],
            "seconds": seconds,
            "rounds_per_second": (step - before) / (seconds - last),
            "compile_seconds": compile_seconds,
        }
        last = seconds
        for name, lines in zip(log_lines.FILES, (records, [line]), strict=True):
            ends[name] = log_lines.append(workdir / name, lines, ends[name])
        for name, tool in tools.items():
            with blame(f"sinks={name!r}", OSError):
                tool.write(rows)

    def flush() -> dict:
        log_lines.flush(workdir)
        return dict(ends)

    def close(name: str, kind, error, trace) -> None:
        try:
            with blame(f"sinks={name!r}", OSError):
                tools[name].close(files.read_optional(workdir / "summary.json"))
        except OSError:
            if error is None:  # else the run's own error counts
                raise

    with contextlib.ExitStack() as stack:
        for name in names:
            with blame(f"sinks={name!r}", OSError):
                tools[name] = TOOLS[name](workdir, step)
            stack.push(functools.partial(close, name))
        yield write, flush


def tensorboard(workdir: Path, step: int) -> Sink:
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


def weights_and_biases(workdir: Path, step: int) -> Sink:
    """Logs to a run of Weights & Biases, by default of the project `sparsefl_jax`.

    W&B's own environment variables apply (`WANDB_MODE=offline`, `WANDB_PROJECT`,
    `WANDB_ENTITY`); its files are in `wandb/`. The run has the configuration, every
    number of the records and, once it has ended, the summary. Several seeds are a
    group.

    `wandb.json` in the run's folder holds the id of the run and the last logged round.
    When a killed run is resumed, rounds after the last checkpoint run again with the
    same values; those already logged are skipped, including evaluations that are new in
    them because `eval_every` has changed.
    """
    import wandb

    path = workdir / "wandb.json"
    state = {"id": None, "rounds": 0} | files.read_optional(path, dict)
    group, name = names_of(workdir)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        dir=workdir,
        id=state["id"],
        resume="allow",
        reinit="create_new",
        name=name,
        group=group,
        settings=wandb.Settings(console="off"),
    )
    config = files.read_optional(workdir / "config.json")
    run.config.update(config, allow_val_change=True)

    def write(rows: Rows) -> None:
        new = {step: row for step, row in rows.items() if step > state["rounds"]}
        for step, row in new.items():
            run.log(row, step=step, commit=True)
        rounds = state["rounds"] = max([state["rounds"], *new])
        files.write_json(path, {"id": run.id, "rounds": rounds})

    def close(summary: dict) -> None:
        run.summary.update(summary)
        run.finish(exit_code=0 if summary else 1)

    write({})
    return Sink(write, close)


TOOLS: dict[str, Callable[[Path, int], Sink]] = {
    "tensorboard": tensorboard,
    "wandb": weights_and_biases,
}
# Modules that show that a tool is installed; W&B leaves folders called `wandb`.
_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb.sdk"}


def check_sinks(names: Sequence[str]) -> None:
    """Checks that sinks are known and that their packages are installed.

    Args:
      names: keys of `TOOLS`.

    Raises:
      ValueError: a sink is unknown or lacks its package.

    Example:
      >>> check_sinks(["tensorbord"])
      Traceback (most recent call last):
      sparsefl_jax.UserError: sinks='tensorbord' (did you mean 'tensorboard'?),
      expected one of
      tensorboard, wandb
    """
    for name in names:
        check("sinks", name, sorted(TOOLS))
        import_extra(_MODULES.get(name, name), name, f"sinks={name!r}")


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
