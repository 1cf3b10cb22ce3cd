"""Logs of a run by other tools: TensorBoard, Weights & Biases, MLflow.

Each is a sink, see `sinks`, whose package, an extra, is imported where it is used. The
step is the number of rounds over all stages. A run of W&B or MLflow has the
configuration, every number of the records and, once it has ended, the summary. Its id
stands in the folder, so that a run that is resumed goes on in it.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from flax.traverse_util import flatten_dict

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.system import files
from sparsefl_jax.system.files import naming

PROJECT = "sparsefl_jax"  # unless the tool's own environment variable names another
_COUNTERS = ("stage", "round")  # what TensorBoard's step stands for


class TensorBoard:
    """Event files in `tensorboard/`: every number of a record as a scalar.

    The tag is `train/loss` or `eval/client_accuracy/p10`, the step counts rounds over
    all stages. Lists by client are left out.

    Args:
      workdir: an existing directory.
      position: as in `sinks.JsonLines`; TensorBoard is told to hide the rounds behind
        it.

    Raises:
      OSError: a write failed, with the name of the folder.
    """

    def __init__(self, workdir: Path, position: dict | None = None):
        # Not SummaryWriter, whose thread loses on a kill what it has been given, and
        # its errors always.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._rounds = position["rounds"] if position else 0
        self._folder = workdir / "tensorboard"
        self._folder.mkdir(exist_ok=True)
        # Files are read in the order of their names; the suffix tells those of one
        # second apart.
        prefix, suffix = str(self._folder / "events"), f".{self._rounds:09d}"
        start = SessionLog(status=SessionLog.START)
        with naming(self._folder):
            self._writer = EventsWriter(prefix, suffix)
            self._writer.write_event(Event(step=self._rounds + 1, session_log=start))

    def write(self, records: list[dict], seconds: float) -> None:
        """Appends the scalars of one segment; TensorBoard has times of its own."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        with naming(self._folder):
            for record in records:
                self._rounds += num_rounds([record])
                values = [
                    Summary.Value(tag=tag, simple_value=value)
                    for tag, value in scalars(record, record["phase"]).items()
                ]
                event = Event(
                    step=self._rounds,
                    wall_time=time.time(),
                    summary=Summary(value=values),
                )
                self._writer.write_event(event)
            self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        with naming(self._folder):
            self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, by default of the project `sparsefl_jax`.

    W&B's own environment variables apply (`WANDB_MODE=offline`, `WANDB_PROJECT`,
    `WANDB_ENTITY`); its files are in `wandb/`. The runs of several seeds are a group.

    Args:
      workdir: an existing directory.
      position: where to go on, which `wandb.json` knows itself.
    """

    def __init__(self, workdir: Path, position: dict | None = None):
        import wandb

        self._kept = _Kept(workdir, "wandb", position)
        group, name = names(workdir)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=workdir,
            id=self._kept.id,
            resume="allow",
            reinit="create_new",
            name=name,
            group=group,
            settings=wandb.Settings(console="off"),
        )
        config = files.read_optional(workdir / "config.json")
        self._run.config.update(config, allow_val_change=True)
        self._kept.begin(self._run.id)

    def write(self, records: list[dict], seconds: float) -> None:
        """Logs one row for each round of a segment."""
        for step, row in self._kept.rows(records, seconds):
            self._run.log(row, step=step, commit=True)
        self._kept.done()

    def close(self) -> None:
        """Ends the process of W&B; a run that has ended also gets its summary."""
        summary = files.read_optional(self._kept.workdir / "summary.json")
        self._run.summary.update(summary)
        self._run.finish(exit_code=0 if summary else 1)


class MLflow:
    """A run of MLflow, by default in the experiment `sparsefl_jax`.

    MLflow's own environment variables apply (`MLFLOW_TRACKING_URI`,
    `MLFLOW_EXPERIMENT_NAME`); its default is `mlflow.db` in the current folder. Fields
    of the configuration are parameters, and those that a resumed run has changed are
    tags `resumed.FIELD`; the numbers of the summary are metrics `summary/...`. The runs
    of several seeds share the tag `group`.

    Args:
      workdir: an existing directory.
      position: where to go on, which `mlflow.json` knows itself.
    """

    def __init__(self, workdir: Path, position: dict | None = None):
        from mlflow import MlflowClient

        self._kept = _Kept(workdir, "mlflow", position)
        self._client = MlflowClient()
        if self._kept.id is None:
            group, name = names(workdir)
            run = self._client.create_run(
                self._experiment(),
                run_name=name,
                tags={"group": group} if group else {},
            )
            self._kept.begin(run.info.run_id)
        run = self._client.get_run(self._kept.id)
        self._client.update_run(self._kept.id, status="RUNNING")
        self._write_config(run.data.params)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found else self._client.create_experiment(name)

    def _write_config(self, old: dict[str, str]) -> None:
        """Logs the fields that are new, and as tags those that have changed."""
        from mlflow.entities import Param, RunTag

        fields = flatten(files.read_optional(self._kept.workdir / "config.json"))
        now = {field: str(value) for field, value in fields.items()}
        params = [Param(k, v) for k, v in now.items() if k not in old]
        tags = [RunTag(f"resumed.{k}", v) for k, v in now.items() if old.get(k, v) != v]
        for first in range(0, len(params), 100):  # MLflow takes no more at once
            self._client.log_batch(self._kept.id, params=params[first : first + 100])
        self._client.log_batch(self._kept.id, tags=tags)

    def _log(self, rows: list[tuple[int, dict]]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [
            Metric(re.sub(r"[^\w\-. :/]", "_", key), value, now, step)
            for step, row in rows
            for key, value in row.items()
        ]
        for first in range(0, len(metrics), 1000):  # MLflow takes no more at once
            self._client.log_batch(self._kept.id, metrics[first : first + 1000])

    def write(self, records: list[dict], seconds: float) -> None:
        """Logs the metrics of one segment."""
        self._log(list(self._kept.rows(records, seconds)))
        self._kept.done()

    def close(self) -> None:
        """Ends the run; one that has ended also gets its summary."""
        summary = files.read_optional(self._kept.workdir / "summary.json")
        if summary:
            self._log([(self._kept.rounds, scalars(summary, "summary"))])
            for key, value in summary.items():
                if isinstance(value, str):
                    self._client.set_tag(self._kept.id, f"summary.{key}", value)
        status = "FINISHED" if summary else "KILLED"
        self._client.set_terminated(self._kept.id, status)


class _Id(msgspec.Struct):
    id: str
    rounds: files.Count


class _Kept:
    """`NAME.json` in a run's folder: the tool's id of the run, and its logged rounds.

    Rounds that were logged after the last checkpoint come again when a killed run is
    resumed, with the same values; they are left out.
    """

    def __init__(self, workdir: Path, name: str, position: dict | None):
        self.workdir, self._path = workdir, workdir / f"{name}.json"
        self.id, self._logged = None, 0
        self.rounds = position["rounds"] if position else 0
        if self._path.exists():
            kept = files.read_json(self._path, _Id)
            self.id, self._logged = kept["id"], kept["rounds"]

    def begin(self, id: str) -> None:
        """Keeps the id of a run."""
        self.id = id
        self._write()

    def rows(self, records: list[dict], seconds: float) -> Iterator[tuple[int, dict]]:
        """Yields step and scalars of every round that has not been logged."""
        rows: dict[int, dict] = {}
        for record in records:
            self.rounds += num_rounds([record])
            row = rows.setdefault(self.rounds, {"stage": float(record["stage"])})
            row |= scalars(record, record["phase"])
        rows[self.rounds]["seconds"] = seconds
        yield from ((step, row) for step, row in rows.items() if step > self._logged)

    def done(self) -> None:
        """Keeps that all rounds so far are logged."""
        if self.rounds > self._logged:
            self._logged = self.rounds
            self._write()

    def _write(self) -> None:
        files.write_json(self._path, {"id": self.id, "rounds": self._logged})


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


def num_rounds(records: list[dict]) -> int:
    """Counts the rounds of some records."""
    return sum(record["phase"] == "train" for record in records)


def scalars(value: dict, tag: str) -> dict[str, float]:
    """Returns all numbers of nested dictionaries by path, but for stage and round.

    Example:
      >>> scalars({"a": {"b": 1}, "c": "d", "round": 3}, "train")
      {'train/a/b': 1.0}
    """
    known = {name: item for name, item in value.items() if name not in _COUNTERS}
    found = flatten_dict({tag: known}, sep="/").items()
    return {path: float(v) for path, v in found if isinstance(v, int | float)}
