"""The loop over stages and segments: simulate, account, evaluate, stop."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Stage, target
from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.types import Key, PyTree, SparseModel
from sparsefl_jax.data import cohorts
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models.base import Model
from sparsefl_jax.report.costs import sign
from sparsefl_jax.runs.checkpoint import Best, Snapshot
from sparsefl_jax.runs.plan import StagePlan, plan
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.runs.setup import Limits, Setup, explain, guarantee, make
from sparsefl_jax.simulation import clock, initial_state, judge, placement, rows
from sparsefl_jax.simulation.round_program import unpack_log, without_empty_places
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import processes
from sparsefl_jax.wire import ledger

_JUDGED = ("budgets", "metric", "measure", "devices")  # what an evaluation is told
SNAPSHOTS = 50  # the most evaluations of a stage at which the server's mask is kept


class Segment(NamedTuple):
    """The result of a segment."""

    records: list[dict]  # as `metrics.jsonl` has them
    snapshot: Snapshot | None  # None before a failure is raised
    models: dict[str, SparseModel]  # that the server deploys
    mask: np.ndarray | None  # of the first model, packed, uint8 [bytes], where kept


class Run(NamedTuple):
    """The result of a run.

    `server` and `clients` are the final states of the last stage, `models` the models
    that it deploys, and `metrics` all records in order, as in `metrics.jsonl`. Clients'
    booleans are packed to bits, see `rows.unpack`. If client states are not
    stored on the device, `clients` is a `rows.Store`.
    """

    server: PyTree
    clients: PyTree
    models: dict[str, SparseModel]
    metrics: list[dict]


def run(
    key: Key,
    stages: Sequence[Stage],
    model: Model,
    data: FederatedData,
    *,
    callback: Callable | None = None,
    **settings,
) -> Run:
    """Runs the stages one after another, each from the model of the one before.

    Args:
      key, stages, model, data: as in `segments`.
      callback: `(records) -> None`, called after every segment with its new records.
      **settings: `resume`, and the other fields of a `Setup`, as in `segments`.

    Raises:
      ValueError, MemoryError, FloatingPointError: as in `segments`.
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
    model: Model,
    data: FederatedData,
    *,
    resume: Snapshot | None = None,
    **settings,
) -> Iterator[Segment]:
    """Runs the stages segment by segment; the caller may stop after any of them.

    Args:
      key: the root of all randomness.
      stages, model, data: the stages, the network and the samples of all clients.
      **settings: the other fields of a `Setup`.
      resume: the snapshot from which to continue.

    Yields:
      A `Segment` every few rounds.

    Raises:
      ValueError: the stages do not fit the data or the devices, or the run to resume
        has ended. The first segment raises it, before any compilation, unless a
        compiled program does not fit the memory or a stage's own sampler draws a client
        twice.
      MemoryError: the devices lack memory; the message names the chunk.
      FloatingPointError: a loss or a weight is not finite; the message names the round
        and the clients. A `Segment` without a snapshot holds the records before it.
    """
    with Programs(plan(make(stages, model, data, **settings))) as programs:
        yield from simulate(key, programs, resume)


def simulate(
    key: Key, programs: Programs, at: Snapshot | None = None
) -> Iterator[Segment]:
    """Runs compiled stages segment by segment, from the start or from a snapshot.

    Args:
      key: the root of all randomness.
      programs: the run and its stages, which are compiled when needed.
      at: the snapshot from which to continue; None to start.

    Yields, raises: as in `segments`.
    """
    setup, at = programs.setup, at or Snapshot()
    if at.ended_by:
        raise UserError(f"resume: the run has ended, by {at.ended_by}")
    programs.begin(at.stage)
    if setup.system is not None:
        at = at._replace(hours=at.hours or 0.0)
    init_key, run_key = keys.of_run(key)
    sparse = setup.initial or initial_state.initial_model(init_key, setup.model)
    given = {name: getattr(setup, name) for name in _JUDGED}
    given["groups"] = clock.members(setup.system)
    evaluation = judge.make_evaluation(setup.model, setup.data, **given)
    while at.stage < len(setup.stages):
        key = keys.of_stage(run_key, at.stage)
        with explain(programs.plan.stages[at.stage].memory, at.stage):
            evaluate = evaluation(setup.stages[at.stage])
        with explain(programs.of(at.stage).memory, at.stage):
            at, models = yield from _rounds(key, programs, evaluate, sparse, at)
        if at.ended_by:
            return
        sparse = target(models)
        at = at._replace(stage=at.stage + 1, round=0, state=None)


def _rounds(
    key: Key,
    programs: Programs,
    evaluation: Callable,
    sparse: SparseModel,
    at: Snapshot,
):
    """Yields the segments of a stage; returns the last snapshot and the models."""
    setup, program = programs.setup, programs.of(at.stage)
    placed, pace, planned = program.plan, program.pace, programs.plan.stages[at.stage]
    stage, data = setup.stages[at.stage], setup.data
    num_clients = len(data.train.size)
    info = placement.client_info(data, setup.budgets)
    state = initial_state.start(key, placed, sparse, info, at.state, pace.where)
    population = placement.make_population(placed, data, setup.budgets, planned.clock)
    run_segment = rows.make_runner(program.segment, placed.mesh, pace.working)
    present = clock.presence(setup.system, data.train.size)
    draw = cohorts.make_draw(key, stage, num_clients, present)
    seen = None
    evaluations = stage.num_rounds / setup.eval_every
    mask_every = setup.eval_every * math.ceil(evaluations / SNAPSHOTS)
    programs.begin(at.stage + 1)
    deployed = _make_deploy(stage.algorithm.deploy, key)
    models = deployed(at.round, state.server)
    while at.round < stage.num_rounds:
        rounds = np.arange(at.round, at.round + pace.length, dtype=np.int32)
        into = at.round % setup.eval_every  # to an evaluation or the stage's end
        left = min(stage.num_rounds - at.round, setup.eval_every - into)
        count = np.int32(min(left, pace.length - into % pace.length))
        given = rounds, draw(rounds), count, stage.algorithm.rates(rounds)
        state, logs = run_segment(key, population, state, *given)
        logs = unpack_log(processes.fetch(logs), program.log)
        records, at, failure = _account(setup, planned, placed.layers, logs, count, at)
        models = deployed(at.round, state.server)
        there = logs.clients.ids[:count] < num_clients
        seen = None if seen is None else [*seen, *logs.clients.ids[:count][there]]
        ends = at.ended_by or at.round == stage.num_rounds
        if not failure and (ends or at.round % setup.eval_every == 0):
            evaluation_key = keys.of_round(key, keys.EVALUATION, at.round)
            evaluated = evaluation(evaluation_key, state, models, seen, at.round)
            seen = []
            evals, at, failure = _judge(setup, at, evaluated, models)
            records += evals
        programs.check()
        if failure:
            yield Segment(records, None, {}, None)
            raise failure
        at = at._replace(state=state)
        mask = None
        if ends or at.ended_by or at.round % mask_every == 0:
            layers = trees.layers(target(models).mask, placed.layers)
            mask = np.packbits(np.concatenate([np.ravel(leaf) for leaf in layers]))
        yield Segment(records, at, models, mask)
        if at.ended_by:  # perhaps by a limit
            break
    return at, models


def _make_deploy(deploy: Callable, key: Key) -> Callable:
    """Returns `(round, server) -> models`.

    Args:
      deploy: of the method.
      key: the root key of the stage.
    """
    names = []  # jit would sort them, and the first one is special

    @jax.jit
    def compiled(key, server):
        models = deploy(key, server)
        names[:] = models
        return list(models.values())

    def deployed(round, server):
        values = compiled(keys.of_round(key, keys.DEPLOY, round), server)
        return dict(zip(names, values, strict=True))

    return deployed


def _account(setup: Setup, planned: StagePlan, layers, logs, count: int, at: Snapshot):
    """Returns the records of `count` rounds, the next snapshot, and an error or None.

    The snapshot says whether the rounds have reached a limit on the costs.
    """
    names, system = trees.layer_paths(layers), setup.system
    layouts = planned.round.layouts
    batch = setup.stages[at.stage].batch_size
    records = []
    for i in range(count):
        log = trees.rows(logs, i)
        log = without_empty_places(log, len(setup.data.train.size))
        if failure := _failure(setup, layouts, log, at.round + 1):
            return records, at, failure
        record = ledger.round_record(log, layouts, setup.model, names, batch)
        if system is not None:
            record |= clock.record(system, planned.clock, log)
            at = at._replace(hours=at.hours + record["hours"])
        at = at._replace(
            round=at.round + 1,
            bits=at.bits + record["bits_up"] + record["bits_down"],
            flops=at.flops + record["flops"],
        )
        records.append(_heading(at, "train") | record)
        for path, density in record["layer_density"].items():
            if density == 0:  # the same text is shown once
                warnings.warn(f"{path} has no weight left", stacklevel=2)
    return records, at._replace(ended_by=limit_reached(setup.until, at)), None


def _failure(setup: Setup, layouts: dict, log, round: int) -> Exception | None:
    """Returns the error of a round, with its clients, or the cohort if all are guilty.

    A code that does not fit may follow from a loss that is not finite, which is told.
    """
    loss, clients = np.asarray(log.clients.metrics["loss"]), np.asarray(log.clients.ids)
    guilty = clients[~np.isfinite(loss)]
    if guilty.size or not log.finite:
        what = f"training loss {loss.sum()}" if guilty.size else "a weight not finite"
        clients = guilty if guilty.size else clients
        what = f"{what} in round {round} of clients {clients.tolist()}"
        return _divergence(setup, round, what)
    for way, packets in layouts.items():
        for name, layout in packets.items():
            misfit = (getattr(log.clients, way)[name].entries < 0).any(-1)
            if misfit.any():
                what = f"packet {way}/{name} holds a code that does not fit bits="
                where = f"in round {round} of clients {clients[misfit].tolist()}"
                return ValueError(f"{what}{layout.bits}, {where}")


def _divergence(setup: Setup, round: int, what: str) -> FloatingPointError:
    """Returns the error of a run that diverges, with the noise of a private one."""
    noise = guarantee(setup, round).get("noise")
    return FloatingPointError(f"{what}; {noise}" if noise else what)


def _judge(setup: Setup, at: Snapshot, record: dict, models: dict):
    """Notes the best models of the last stage, off the device, and whether it ended.

    Returns what `_account` returns: records, the snapshot, and an error or None.
    """
    if not all(math.isfinite(result["loss"]) for result in record["models"].values()):
        what = f"the test loss is not finite after round {at.round}"
        return [], at, _divergence(setup, at.round, what)
    name = "value" if "value" in record else "accuracy"
    reached, better = record[name], sign(record)
    score = record.get(f"val_{name}", reached)
    if not np.isfinite([reached, score]).all():
        what = f"{record.get('measure', name)} is not defined on the samples"
        return [], at, UserError(f"{what} evaluated, expected some of every class")
    if at.stage == len(setup.stages) - 1:
        best, ended_by = at.best, at.ended_by
        if best is None or better * (score - best.score) > 0:
            chosen_by = "validation" if f"val_{name}" in record else "test"
            copies = {k: jax.tree.map(np.array, one) for k, one in models.items()}
            best = Best(reached, chosen_by, score, at.stage, at.round, copies)
        limit = getattr(setup.until, name)
        if limit is not None and better * (reached - limit) >= 0:
            ended_by = ended_by or name
        if at.round == setup.stages[at.stage].num_rounds:
            ended_by = ended_by or "rounds"
        at = at._replace(best=best, ended_by=ended_by)
    return [_heading(at, "eval") | record], at, None


def _heading(at: Snapshot, phase: str) -> dict:
    heading = {"stage": at.stage, "phase": phase, "round": at.round}
    return heading | {f"{name}_cumulative": cost for name, cost in at.costs().items()}


def limit_reached(until: Limits, at: Snapshot) -> str:
    """Returns the name of the first limit that a cost has reached, or ''.

    Example:
      >>> at = Snapshot(bits=2 * 10**9, flops=1e14)
      >>> limit_reached(Limits(gbit=2.0, pflop=0.5), at)
      'gbit'
    """
    limits = {name: limit or math.inf for name, limit in until._asdict().items()}
    return next((name for name, c in at.costs().items() if c >= limits[name]), "")
