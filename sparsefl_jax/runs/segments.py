"""What a run says of itself as it goes on: its segments, and where it stands."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import Key, PyTree, SparseModel
from sparsefl_jax.runs.limits import Cost


class Best(NamedTuple):
    """The models of the evaluation that did best in the last stage."""

    accuracy: float  # of the headline model, by the run's metric
    chosen_by: str  # 'validation' where that split exists, else 'test'
    score: float  # the accuracy by which it was chosen
    stage: int
    round: int
    models: dict  # the server's, by name a `SparseModel` with NumPy leaves


class Snapshot(NamedTuple):
    """A run at the end of a segment: what it takes to go on.

    `state` is given up to the next segment, so save it before asking for that.
    """

    stage: int = 0
    round: int = 0  # completed rounds of the stage
    state: Any = (
        None  # a `State`; to resume from, a function of its shapes that gives it
    )
    bits: int = 0  # since the start, both ways
    flops: float = 0.0  # since the start, at the masks
    best: Best | None = None
    ended_by: str = ""  # 'rounds' or the name of a limit; '' while the run goes on
    hours: float | None = None  # of virtual time since the start; None: no system

    def rounds(self, stages: Sequence[Stage]) -> tuple[int, int]:
        """Returns the rounds of all stages, and those that the run has behind it."""
        lengths = [stage.num_rounds for stage in stages]
        return sum(lengths), sum(lengths[: self.stage]) + self.round

    @property
    def spent(self) -> Cost:
        """Returns the cost of the run so far."""
        return Cost(self.bits, self.flops, self.hours or 0.0)


class Segment(NamedTuple):
    """The result of a segment."""

    records: list[dict]  # as `metrics.jsonl` has them
    snapshot: Snapshot | None  # None before a failure is raised
    models: dict[str, SparseModel]  # what the server deploys; given up as the state is
    masks: dict[str, np.ndarray]  # packed: 'server' [bytes], 'clients' [K, bytes]


class Asked(NamedTuple):
    """The rounds that a run is about to simulate; it is then sent their `Ran`."""

    key: Key  # of the stage
    stage: int
    state: Any  # before these rounds; given up to them
    rounds: np.ndarray  # [R] int32, of the stage
    ids: np.ndarray  # [R, K] int32, their cohorts
    count: int  # how many of them to run, at most
    draw: Callable  # `(rounds) -> ids`, None beyond the stage


class Ran(NamedTuple):
    """What the rounds that a run asked for came to."""

    state: Any  # after them
    logs: Any  # a `RoundLog` of NumPy arrays [R]
    count: int  # how many of them ran
    ids: np.ndarray | None  # [R, K] int32, the cohorts of the rounds that follow


class Run(NamedTuple):
    """The result of a run.

    `server` and `clients` are those of the last stage, `models` what it deploys, and
    `metrics` all records in order, as `metrics.jsonl` has them. On the disk, `clients`
    are a `disk_store.Rows`.
    """

    server: PyTree
    clients: PyTree
    models: dict[str, SparseModel]
    metrics: list[dict]
