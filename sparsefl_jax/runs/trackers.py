"""Logs of a run by other tools: TensorBoard, Weights & Biases, MLflow.

The package of a tool, an extra, is imported where it is used. The step is the number of
rounds over all stages. A run of W&B or MLflow has the configuration, every number of
the records and, once it has ended, the summary.
"""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from flax.traverse_util import flatten_dict

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.validate import blaming
from sparsefl_jax.system import files

PROJECT = "sparsefl_jax"  # unless the tool's own environment variable names another
Rows = dict[int, dict[str, float]]  # the numbers of a round by their names, by step


class Sink(NamedTuple):
    """A log of a run."""

    write: Callable[[Rows], None]  # outlives a kill of the process
    close: Callable[[dict], None]  # takes the summary, {} if the run has not ended
    id: str | None = None  # of the run, by which the tool finds it again


def opened(name: str, workdir: Path, step: int) -> Sink:
    """Opens the log of a tool where it ended.

    `NAME.json` in the run's folder has the id of the run and the last round that is
    logged. Rounds that were logged after the last checkpoint come again when a killed
    run is resumed, with the same values; they are left out. So are evaluations in those
    rounds that a resumed run has because its `eval_every` has changed.

    Args:
      name: a key of `TOOLS`.
      workdir: the run's folder.
      step: rounds that a resumed run has behind it.

    Raises:
      Exception: whatever the tool raises.
    """
    path = workdir / f"{name}.json"
    kept = {"id": None, "rounds": 0} | fields_of(path)
    write, close, kept["id"] = TOOLS[name](workdir, step, kept["id"])

    def write_new(rows: Rows) -> None:
        new = {step: row for step, row in rows.items() if step > kept["rounds"]}
        write(new)
        kept["rounds"] = max([kept["rounds"], *new])
        files.write_text(path, json.dumps(kept))

    if kept["id"] is None:
        return Sink(write, close)
    write_new({})
    return Sink(write_new, close, kept["id"])


def tensorboard(workdir: Path, step: int, id: None) -> Sink:
    """Writes event files in `tensorboard/`: every number as a scalar.

    TensorBoard is told to hide the rounds behind `step`.
    """
    # Not SummaryWriter, whose thread loses on a kill what it has been given, and its
    # errors always.
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
    `WANDB_ENTITY`); its files are in `wandb/`. The runs of several seeds are a group.
    """
    import wandb

    group, name = names(workdir)
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
    run.config.update(fields_of(workdir / "config.json"), allow_val_change=True)

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
    tags `resumed.FIELD`. The runs of several seeds share the tag `group`.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    client = MlflowClient()
    if id is None:
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = client.get_experiment_by_name(project)
        where = found.experiment_id if found else client.create_experiment(project)
        group, name = names(workdir)
        tags = {"group": group} if group else {}
        id = client.create_run(where, run_name=name, tags=tags).info.run_id
    old = client.get_run(id).data.params
    client.update_run(id, status="RUNNING")
    fields = flatten(fields_of(workdir / "config.json")).items()
    now = {field: str(value) for field, value in fields}
    for batch in _batches([Param(k, v) for k, v in now.items() if k not in old], 100):
        client.log_batch(id, params=batch)
    changed = {k: v for k, v in now.items() if old.get(k, v) != v}.items()
    client.log_batch(id, tags=[RunTag(f"resumed.{k}", v) for k, v in changed])

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


def names(workdir: Path) -> tuple[str | None, str]:
    """Returns the group of a run and its name: seeds of one folder are a group.

    Example:
      >>> names(Path("runs/a/seed_3")), names(Path("runs/a"))
      (('a', 'a/seed_3'), (None, 'a'))
    """
    folder = Path(os.path.abspath(workdir))
    if re.fullmatch(r"seed_\d+", folder.name):
        group = folder.parent.name
        return group, f"{group}/{folder.name}"
    return None, folder.name


def scalars(value: dict, tag: str) -> dict[str, float]:
    """Returns all numbers of nested dictionaries by path, but for stage and round.

    Example:
      >>> scalars({"a": {"b": 1}, "c": "d", "round": 3}, "train")
      {'train/a/b': 1.0}
    """
    known = {k: item for k, item in value.items() if k not in ("stage", "round")}
    found = flatten_dict({tag: known}, sep="/").items()
    return {path: float(v) for path, v in found if isinstance(v, int | float)}


def _batches(items: list, size: int) -> list[list]:
    """Cuts a list into as much as MLflow takes at once."""
    return [items[first : first + size] for first in range(0, len(items), size)]


def fields_of(path: Path) -> dict:
    """Reads a JSON file; returns {} if there is none."""
    with blaming(path):
        return dict(json.loads(path.read_text())) if path.exists() else {}
