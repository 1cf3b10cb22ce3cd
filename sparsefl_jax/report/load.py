"""Reads the folder of a run.

metrics.jsonl  `{"schema": 1}`, then one JSON object per line, of phase "train" or
               "eval". Both hold `gbit_cumulative` and `pflop_cumulative` (1e15 training
               FLOPs at the masks) since the start, and with a clock
               `hours_cumulative`. "train" holds the ledger, what the clock adds, and
               the method's metrics in `client` and `server`. "eval" may hold
               `val_accuracy` of the headline model on the pooled validation split, and
               `tier_accuracy`. With another `measure` than accuracy, there is its
               `value`, `val_value` and so on, and in `better` 'higher' or 'lower'
summary.json   the run's totals, see `tables.py`; absent while it runs
config.json    the configuration
partition.npy  [N, classes] int, the number of samples of each class for each client
masks/         the masks that were kept, see `kept_masks.py`
seed_*/        with several seeds, the folder of each run; beside them is `config.json`
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from sparsefl_jax.core.check import UserError, blame, one_line
from sparsefl_jax.core.flatten import rename
from sparsefl_jax.system import files
from sparsefl_jax.system.files import Count, Number
from sparsefl_jax.system.log_lines import SCHEMA

Record = dict[str, Any]
Table = Any  # pandas' DataFrame; pandas is imported where it is used
Value = Number | None  # null: not finite, or not measured


class _Record(Struct, kw_only=True, tag_field="phase"):
    """What is read of a record by name; other numbers are columns of `by_round`."""

    stage: Count
    round: Count
    gbit_cumulative: Number


class Tier(Struct):
    """How often the clients of a tier of devices were drawn, and were late."""

    drawn: Number
    dropped: Number
    accuracy: Value = None


class Train(_Record, kw_only=True, tag="train"):
    """A round."""

    flops_dense: Number
    density: Value = None
    layer_density: dict[str, Value] = {}
    assumed: dict[str, str] = {}
    tiers: dict[str, Tier] = {}


class Eval(_Record, kw_only=True, tag="eval"):
    """An evaluation."""

    models: dict[str, dict[str, Value]]
    client_accuracy: dict[str, Value] = {}
    tier_accuracy: dict[str, Value] = {}
    accuracy: Value = None
    seen_accuracy: Value = None
    unseen_accuracy: Value = None
    val_accuracy: Number = 0.0
    accuracy_by_class: list[Value] = []
    metric: str | None = None
    measure: str = "accuracy"
    better: Literal["higher", "lower"] = "higher"


class Stage(Struct, kw_only=True):
    """The totals of a stage."""

    name: str
    rounds: Number
    compile_seconds: Value = None
    bits_up: Number
    bits_down: Number
    bits_values: Number
    bits_positions: Number
    flops: Number
    flops_dense: Number
    flops_executed: Number


class Summary(Struct):
    """What is read of a run's totals."""

    device: str | None = None
    commit: str | None = None
    metric: str | None = None
    stages: list[Stage] | None = None
    accuracy: dict[str, dict[str, Value]] | None = None
    best: dict | None = None
    client_accuracy: dict[str, Value] | None = None
    measure: str | None = None
    versions: dict[str, Any] | None = None
    data: dict[str, Count] | None = None
    names: dict[str, list[str]] = {}
    seconds: Value = None
    rounds_per_second: Value = None
    hours: Value = None


class Config(Struct):
    """What is read of a configuration by name."""

    seed: Count | None = None
    algorithm: dict | None = None
    first_stage: dict | None = None
    server_optimizer: dict | None = None
    fit: dict | None = None


class Run(NamedTuple):
    """A run's records, ordered by stage and round.

    `round` counts the completed rounds of a record's stage. `starts` holds the rounds
    before each stage.
    """

    path: Path
    train: list[Record]
    evals: list[Record]
    starts: list[int]
    summary: dict[str, Any]  # {} while the run has not ended
    config: dict[str, Any]  # {} if the file is absent
    partition: np.ndarray | None  # [N, classes] int

    def done(self, record: Record) -> int:
        """Returns the completed rounds of all stages at a record."""
        return self.starts[record["stage"]] + record["round"]


def read_run(run_dir: str | Path) -> Run:
    """Reads a run's folder, also of a run that has not ended or was stopped.

    A truncated last line is dropped.

    Args:
      run_dir: the folder that holds `metrics.jsonl`.

    Returns:
      The run's records.

    Raises:
      ValueError: there is no such folder, it holds no `metrics.jsonl`, or a file in it
        is damaged.

    Example:
      >>> read_run("no/such/run")
      Traceback (most recent call last):
      sparsefl_jax.UserError: run_dir='no/such/run' expected a folder with
      metrics.jsonl.
    """
    path = Path(run_dir)
    if not (path / "metrics.jsonl").is_file():
        raise UserError(f"run_dir={str(path)!r} expected a folder with metrics.jsonl.")
    records = list(map(unify, read_records(path / "metrics.jsonl")))
    stages = range(max((r["stage"] for r in records), default=0) + 1)
    lengths = [
        max((r["round"] for r in records if r["stage"] == stage), default=0)
        for stage in stages
    ]
    partition = path / "partition.npy"
    return Run(
        path=path,
        train=[r for r in records if r["phase"] == "train"],
        evals=[r for r in records if r["phase"] == "eval"],
        starts=[sum(lengths[:stage]) for stage in stages],
        summary={k: v for k, v in unify(read_summary(path)).items() if v is not None},
        config=files.read_optional(path / "config.json", Config),
        partition=files.read_array(partition, "iu", 2) if partition.exists() else None,
    )


def run_folders(run_dir: str | Path) -> list[Path]:
    """Returns the folders of the single runs of a run.

    Args:
      run_dir: a folder with `metrics.jsonl`, or one with `seed_*/metrics.jsonl`.

    Returns:
      Those of its seeds in the order of the seeds, or else the folder itself.

    Example:
      >>> [str(folder) for folder in run_folders("no/such/run")]
      ['no/such/run']
    """
    path = Path(run_dir)
    seeds = [p.parent for p in path.glob("seed_*/metrics.jsonl")]
    return sorted(seeds, key=lambda p: (len(p.name), p.name)) or [path]  # 2 before 10


def read_records(path: str | Path) -> list[Record]:
    """Returns the records of a `metrics.jsonl`.

    Raises:
      ValueError: a line other than the last is damaged, or the file has another schema.
    """
    records = read_lines(path)
    if records and (schema := records.pop(0).get("schema")) != SCHEMA:
        raise UserError(f"{path}: schema={schema!r}, expected {SCHEMA}.")
    for number, record in enumerate(records, 2):
        with blame(f"{path}, line {number}"):
            msgspec.convert(unify(record), Train | Eval)
            if record["stage"] > len(records):
                raise UserError(f"stage={record['stage']}, none before it")
    return records


def read_lines(path: str | Path) -> list[Record]:
    """Returns the records of a JSON lines file, without a truncated last line.

    Raises:
      ValueError: the file cannot be read, or another line is not a JSON object.
    """
    with blame(f"{path} cannot be read"):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(msgspec.json.decode(line, type=Record))
        except (msgspec.DecodeError, RecursionError) as error:
            if number < len(lines):
                raise UserError(f"{path}, line {number}: {one_line(error)}") from None
    return records


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Reads `summary.json`, see `tables.py`; returns {} if there is none.

    Raises:
      ValueError: the file is damaged.
    """
    return files.read_optional(Path(run_dir) / "summary.json", Summary)


def unify(record: Record) -> Record:
    """Returns an evaluation or a summary with the names that reports read.

    What another measure calls `value`, they read as `accuracy`; `measure` and `better`
    say what it is.

    Example:
      >>> unify({"measure": "rmse", "better": "lower", "val_value": 2.0})
      {'measure': 'rmse', 'better': 'lower', 'val_accuracy': 2.0}
    """
    return rename(record, "value", "accuracy") if record.get("measure") else record


def is_finite(value: Any) -> bool:
    """Returns whether a value is a number that is neither NaN nor infinite.

    Example:
      >>> is_finite(0.5), is_finite(None), is_finite(float("nan")), is_finite("0.5")
      (True, False, False, False)
    """
    number = isinstance(value, int | float | np.integer | np.floating)
    # A larger one may overflow in a sum.
    return number and not isinstance(value, bool) and bool(abs(value) <= 1e300)


def by_round(run: Run, records: Sequence[Record]) -> Table:
    """Returns the numbers of records by round, counted over all stages.

    Args:
      run: the run of the records.
      records: records with `stage` and `round`.

    Returns:
      A row for each record; fields within fields have dotted names. What is not finite
      is NaN.
    """
    import pandas as pd

    table = pd.json_normalize(list(records)).select_dtypes("number")
    table.index = [run.done(record) for record in records]
    return table.where(np.isfinite(table))


def column(table: Table, name: str) -> Any:
    """Returns the known values of a column, a Series; none if there is no such column.

    Example:
      >>> import pandas as pd
      >>> table = pd.DataFrame({"loss": [2.0, np.nan]}, index=[5, 10])
      >>> column(table, "loss").to_dict(), len(column(table, "gain"))
      ({5: 2.0}, 0)
    """
    return table.reindex(columns=[name])[name].dropna()
