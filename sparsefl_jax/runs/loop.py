"""The host's loop over stages and segments: simulate, account, evaluate, stop."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sparsefl_jax.core.algorithm import Stage, target
from sparsefl_jax.core.types import Key, PyTree, SparseModel
from sparsefl_jax.data import cohorts
from sparsefl_jax.runs import limits, segment_lengths
from sparsefl_jax.runs.limits import Cost, Limits
from sparsefl_jax.runs.plan import checks, memory_estimate
from sparsefl_jax.simulation import (
    evaluate,
    initial_state,
    observed_masks,
    round_program,
    store,
)
from sparsefl_jax.sparsity import masks
from sparsefl_jax.system import processes
from sparsefl_jax.wire import ledger, packets

SNAPSHOTS = 50  # masks of the server that are told of a stage, at most


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

    stage: int
    round: int  # completed rounds of the stage
    state: Any  # simulate.State; to resume from, a function of its shapes that gives it
    bits: int  # since the start, both ways
    flops: float  # since the start, at the masks
    best: Best | None = None
    ended_by: str = ""  # 'rounds' or the name of a limit; '' while the run goes on

    @property
    def spent(self) -> Cost:
        """What the run has cost."""
        return Cost(self.bits, self.flops)


class Segment(NamedTuple):
    """What a segment tells."""

    records: list[dict]  # as `metrics.jsonl` has them
    snapshot: Snapshot | None  # None before a failure is raised
    models: dict[str, SparseModel]  # what the server deploys; given up as the state is
    masks: dict[str, np.ndarray]  # packed: 'server' [bytes], 'clients' [K, bytes]


class Run(NamedTuple):
    """What is left of a run.

    `server` and `clients` are those of the last stage, `models` what it deploys, and
    `metrics` all records in order, as `metrics.jsonl` has them. On the disk, `clients`
    are a `disk_store.Rows`.
    """

    server: PyTree
    clients: PyTree
    models: dict[str, SparseModel]
    metrics: list[dict]


def run(
    key: Key,
    stages: Sequence[Stage],
    model,
    data,
    *,
    callback: Callable | None = None,
    **settings,
) -> Run:
    """Runs the stages one after another, each from what the one before deploys.

    Args:
      key, stages, model, data, **settings: as in `segments`.
      callback: `(records) -> None`, called after every segment with its new records.

    Raises:
      ValueError, MemoryError, FloatingPointError: as `segments` does.

    Example: see the README.
    """
    metrics = []
    for segment in segments(key, stages, model, data, **settings):
        metrics += segment.records
        if callback is not None and segment.records:
            callback(segment.records)
    state = segment.snapshot.state
    return Run(state.server, state.clients, segment.models, metrics)


def segments(
    key: Key,
    stages: Sequence[Stage],
    model,
    data,
    *,
    eval_every: int = 1,
    chunk: int | str = "auto",
    budgets=None,
    metric: str = "auto",
    client_store: str = "auto",
    memory_gb: float | None = None,
    devices=None,
    until: Limits | None = None,
    initial: SparseModel | None = None,
    observe_rounds: Sequence[int] = (),
    resume: Snapshot | None = None,
    traced: list[checks.Traced] | None = None,
) -> Iterator[Segment]:
    """Runs the stages segment by segment; the caller may stop after any of them.

    Args:
      key: the root of all randomness.
      stages: what to run.
      model: a `Model`.
      data: a `FederatedData`.
      eval_every: rounds between evaluations; the last of a stage is one too.
      chunk: clients that a device runs at a time, or 'auto'.
      budgets: [N] float in (0, 1], the share of the model that each client can hold.
      metric: whose accuracy counts, a name in `evaluate.METRICS`.
      client_store: where what clients keep lives, a name in `store.STORES`; it changes
        no result.
      memory_gb: what the devices may hold together, 1e9 bytes; 'auto' chunks fill it,
        see `memory_estimate.choose`, and an 'auto' store leaves rows on the host that
        would take more than half of it.
      devices: default all.
      until: where to end early; there is an evaluation at that end.
      initial: what the first stage starts from; None: a fresh network.
      observe_rounds: rounds of the last stage, from 1, whose clients' masks are told.
      resume: where to go on.
      traced: what `checks.run` gave, if the caller has asked it.

    Yields:
      A `Segment` every few rounds.

    Raises:
      ValueError: before any compilation, if a stage asks for what the data or the
        devices do not have, or the run to resume has ended.
      MemoryError: the devices' memory does not suffice; names a chunk that takes less.
      FloatingPointError: if a loss or a weight is not finite; names round and clients.
        A `Segment` without a snapshot holds the records before that round.
    """
    if resume is not None and resume.ended_by:
        raise ValueError(f"resume: the run has ended, by {resume.ended_by}")
    if traced is None:
        how = eval_every, chunk, budgets, metric, client_store, memory_gb, devices
        traced = checks.run(stages, model, data, *how)
    checks.check_observed(observe_rounds, stages[-1].num_rounds)
    init_key, run_key = jax.random.split(key)
    sparse = checks.initial_model(init_key, model) if initial is None else initial
    at = resume or Snapshot(0, 0, None, 0, 0.0)
    work = _Work(
        stages=stages,
        traced=traced,
        model=model,
        data=data,
        evaluation=evaluate.make_evaluation(
            model, data, budgets=budgets, metric=metric, devices=devices
        ),
        eval_every=eval_every,
        budgets=budgets,
        client_store=client_store,
        memory_gb=memory_gb,
        devices=devices,
        until=until or Limits(),
        observe_rounds=tuple(observe_rounds),
    )
    while at.stage < len(stages):
        key = round_program.stage_key(run_key, at.stage)
        with memory_estimate.explained(traced[at.stage].memory, at.stage):
            at, models = yield from _stage(key, work, sparse, at)
        if at.ended_by:
            return
        sparse = target(models)
        at = at._replace(stage=at.stage + 1, round=0, state=None)


class _Work(NamedTuple):
    """A run, and all that its segments depend on."""

    stages: Sequence[Stage]
    traced: list[checks.Traced]
    model: Any
    data: Any
    evaluation: Callable
    eval_every: int
    budgets: Any
    client_store: str
    memory_gb: float | None
    devices: Any
    until: Limits
    observe_rounds: tuple[int, ...]

    def is_last(self, stage: int) -> bool:
        return stage == len(self.stages) - 1


def _stage(key: Key, work: _Work, sparse: SparseModel, at: Snapshot):
    """Yields a `Segment` every few rounds; returns the last snapshot and the models."""
    stage, data = work.stages[at.stage], work.data
    layers = jax.tree.map(lambda m: m > 0, work.model.macs)
    observed = work.observe_rounds if work.is_last(at.stage) else ()
    # Chunk and pace are by the memory of process 0, which may not be that of another.
    chunk = processes.lead(work.traced[at.stage].memory.chunk)
    plan = round_program.make_plan(stage, layers, work.devices, chunk, bool(observed))
    population = round_program.make_population(plan, data, work.budgets)
    rows = initial_state.shapes(stage.algorithm, sparse, population.info).clients
    how = work.eval_every, work.client_store, work.memory_gb, observed
    paced = segment_lengths.pace(plan, rows, work.model, data, *how)
    length, working, where = processes.lead(paced)
    state = initial_state.start(key, plan, sparse, population, at.state, working, where)
    segment = round_program.make_segment(plan)
    if working is None:
        segment = store.on_device(segment)
    else:
        segment = store.on_host(segment, plan.mesh, working)
    draw = cohorts.drawing(key, stage, len(data.train.size))
    most = limits.most(stage, work.traced[at.stage], work.model, data)
    evaluation, seen = work.evaluation(stage), None
    kept_every = length * -(-stage.num_rounds // (length * SNAPSHOTS))
    own = round_program.deploy_key(key, at.round)
    models = stage.algorithm.deploy(own, state.server)
    rounds, ahead = np.arange(at.round, at.round + length, dtype=np.int32), None
    ids = draw(rounds)
    while at.round < stage.num_rounds:
        left = length - at.round % length
        count = np.int32(limits.fitting(work.until, at.spent, most, left))
        later = rounds + count
        following = draw(later) if later[0] < stage.num_rounds else None
        state, logs, ahead = segment(
            key, population, state, rounds, ids, count, following, ahead
        )
        rounds, ids = later, following
        logs = processes.fetch(logs)
        records, at, failure = _account(work, layers, logs, count, at)
        most = limits.updated(most, records)
        own = round_program.deploy_key(key, at.round)
        models = stage.algorithm.deploy(own, state.server)
        seen = None if seen is None else [*seen, *logs.ids[:count].ravel()]
        evaluated = None
        if not failure and _due(work, at):
            evaluated, filters = evaluation(own, state, models, seen)
            seen = []
            evals, at, failure = _judge(work, at, evaluated, models)
            records += evals
        if failure:
            yield Segment(records, None, {}, {})
            raise FloatingPointError(failure)
        at = at._replace(state=state)
        kept = {"clients": logs.masks} if at.round in observed else {}
        ends = at.ended_by or at.round == stage.num_rounds
        if ends or at.round % kept_every == 0:
            mask = target(models).mask
            kept["server"] = np.asarray(observed_masks.pack(mask, layers))
            if evaluated:
                kept["filters"] = np.packbits(filters, axis=1)
        yield Segment(records, at, models, kept)
        if at.ended_by:
            break
    return at, models


def _account(work: _Work, layers, logs, count: int, at: Snapshot):
    """The records of `count` rounds, the snapshot after them, and what failed."""
    names = masks.layer_paths(layers)
    traced, batch_size = work.traced[at.stage], work.stages[at.stage].batch_size
    layouts = {"down": packets.layout(traced.down), "up": packets.layout(traced.up)}
    records = []
    for i in range(count):
        log = jax.tree.map(lambda v, i=i: v[i], logs._replace(masks=()))
        record = ledger.round_record(log, layouts, work.model.macs, names, batch_size)
        at = at._replace(
            round=at.round + 1,
            bits=at.bits + record["bits_up"] + record["bits_down"],
            flops=at.flops + record["flops"],
        )
        if not (math.isfinite(record["loss"]) and log.finite):
            return records, at, _failure(at.round, record, log)
        records.append(_heading(at, "train") | record)
    return records, at, ""


def _failure(round: int, record: dict, log) -> str:
    """Names the clients whose loss is not finite, or the cohort if all are."""
    clients = np.asarray(log.ids)
    guilty = clients[~np.isfinite(log.clients["loss"])]
    what = f"training loss {record['loss']}" if guilty.size else "a weight not finite"
    clients = guilty if guilty.size else clients
    return f"{what} in round {round} of clients {clients.tolist()}"


def _due(work: _Work, at: Snapshot) -> bool:
    """Whether there is an evaluation: at its interval, or where a stage or run ends."""
    done = at.round == work.stages[at.stage].num_rounds
    over = any(limits.reached(work.until, at.spent).values())
    return done or over or at.round % work.eval_every == 0


def _judge(work: _Work, at: Snapshot, record: dict, models: dict):
    """What an evaluation means for the run; gives what `_account` gives."""
    if not all(math.isfinite(result["loss"]) for result in record["models"].values()):
        return [], at, f"the test loss is not finite after round {at.round}"
    over = limits.reached(work.until, at.spent)
    if work.is_last(at.stage):
        done = at.round == work.stages[at.stage].num_rounds
        accuracy = work.until.accuracy or math.inf
        over |= {"accuracy": record["accuracy"] >= accuracy, "rounds": done}
        at = at._replace(best=_better(at, record, models))
    at = at._replace(ended_by=next((name for name in over if over[name]), ""))
    return [_heading(at, "eval") | record], at, ""


def _better(at: Snapshot, record: dict, models: dict) -> Best:
    """The best models so far, copied: the device's are given up."""
    chosen_by = "validation" if "val_accuracy" in record else "test"
    score = record.get("val_accuracy", record["accuracy"])
    if at.best is not None and score <= at.best.score:
        return at.best
    kept = jax.tree.map(np.array, models)
    return Best(record["accuracy"], chosen_by, score, at.stage, at.round, kept)


def _heading(at: Snapshot, phase: str) -> dict:
    return {
        "stage": at.stage,
        "phase": phase,
        "round": at.round,
        "gbit_cumulative": at.bits / 1e9,
        "pflop_cumulative": at.flops / 1e15,
    }
