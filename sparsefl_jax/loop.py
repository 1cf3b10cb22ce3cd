"""The host's loop over stages and segments: simulate, account, evaluate, report."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax import codec, costs, evaluate, simulate
from sparsefl_jax.algorithm import Stage
from sparsefl_jax.sparsity import masks
from sparsefl_jax.types import (
    Batches,
    ClientInfo,
    Context,
    Key,
    PyTree,
    SparseModel,
)

# Effective FLOP/s per device that size a segment; only responsiveness depends on it.
GUESSED_RATE = {"cpu": 5e10, "gpu": 5e12, "tpu": 5e12}
SEGMENT_SECONDS = 4.0


class Run(NamedTuple):
    """What is left of a run.

    `server` and `clients` are those of the last stage, `models` what it deploys, and
    `metrics` all records in order, as `metrics.jsonl` has them.
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
    eval_every: int = 1,
    chunk: int | str = "auto",
    budgets=None,
    devices=None,
) -> Run:
    """Runs the stages one after another, each from what the one before deploys.

    Args:
      key: the root of all randomness.
      stages: what to run.
      model: a `Model`.
      data: a `FederatedData`.
      callback: `(records) -> None`, called after every segment with its new records.
      eval_every: rounds between evaluations; the last of a stage is one too.
      chunk: clients that a device runs at a time, or 'auto'.
      budgets: [N] float in (0, 1], the share of the model that each client can hold.
      devices: default all.

    Raises:
      ValueError: if a stage asks for what the data or the devices do not have.
      FloatingPointError: if a training loss is not finite; names round and clients.

    Example: see the README.
    """
    check(stages, model, data, eval_every, chunk)
    init_key, run_key = jax.random.split(key)
    sparse = initial_model(init_key, model)
    evaluator = evaluate.make_evaluator(
        model, data.x_test, data.y_test, devices=devices
    )
    metrics, traffic, state = [], 0, None
    for index, stage in enumerate(stages):
        for state, records in _stage(  # noqa: B007
            simulate.stage_key(run_key, index), stage, model, sparse, data,
            evaluator, eval_every, chunk, budgets, devices,
        ):  # fmt: skip
            for record in records:
                traffic += record.get("bits_up", 0) + record.get("bits_down", 0)
                record["gbit_cumulative"] = traffic / 1e9
                metrics.append({"stage": index} | record)
            if callback is not None and records:
                callback(metrics[-len(records) :])
        models = stage.algorithm.deploy(run_key, state.server, None, None)
        sparse = list(models.values())[-1]
    return Run(state.server, state.clients, models, metrics)


def check(stages, model, data, eval_every, chunk) -> None:
    """Refuses, in one line and before any compilation, what can not be run."""
    num_clients = len(data.train.size)
    for stage in stages:
        for name in ("num_rounds", "cohort_size", "epochs", "batch_size"):
            if getattr(stage, name) < 1:
                raise ValueError(f"{name}={getattr(stage, name)}, expected at least 1")
        if stage.cohort_size > num_clients:
            raise ValueError(
                f"cohort_size={stage.cohort_size}, expected at most the number of "
                f"clients, {num_clients}"
            )
    if eval_every < 1:
        raise ValueError(f"eval_every={eval_every}, expected at least 1")
    if chunk != "auto" and not (str(chunk).isdigit() and int(chunk) >= 1):
        raise ValueError(f"chunk={chunk!r}, expected 'auto' or a positive integer")
    key = jax.random.key(0)
    sparse = jax.eval_shape(lambda key: initial_model(key, model), key)
    for stage in stages:  # such as a pattern of prunable leaves that matches none
        method = stage.algorithm

        def first(key, model, method=method):
            return method.broadcast(key, example_context(), method.init(key, model))

        jax.eval_shape(first, key, sparse)


def initial_model(key: Key, model) -> SparseModel:
    """A fresh network with nothing pruned."""
    params, stats = model.init(key)
    return SparseModel(params, masks.full(params), stats)


def packet_layouts(stage: Stage, state, data, model: SparseModel) -> dict:
    """The static description of a stage's packets, `{'down': ..., 'up': ...}`.

    Nothing is computed: the messages are traced by shape.
    """
    x_shape, y_shape = data.x.shape[1:], data.y.shape[1:]
    rows = data.train.index.shape[1]
    steps = -(-rows // stage.batch_size)
    order = (stage.epochs, steps, stage.batch_size)

    def trace(key, server):
        ctx = example_context()
        batches = Batches(
            jnp.zeros((rows, *x_shape), data.x.dtype),
            jnp.zeros((rows, *y_shape), jnp.int32),
            jnp.zeros(order, jnp.int32),
            jnp.ones(order, jnp.float32),
            jnp.int32(steps),
        )
        client = stage.algorithm.init_client(key, server, ctx.client)
        down = stage.algorithm.broadcast(key, ctx, server)
        up, _, _ = stage.algorithm.update(key, ctx, down, client, batches)
        return down, up

    down, up = jax.eval_shape(trace, jax.random.key(0), state.server)
    return {"down": codec.layout(down), "up": codec.layout(up)}


def example_context() -> Context:
    """Round 0 as client 0 sees it."""
    client = ClientInfo(jnp.int32(0), jnp.int32(1), jnp.float32(1.0))
    return Context(jnp.int32(0), jnp.int32(-1), client)


def segment_length(stage: Stage, model, data, eval_every: int, devices) -> int:
    """Rounds per compiled scan: divides the stage and the evaluation interval.

    So evaluation falls on segment ends and no shorter last segment compiles again.
    """
    samples = stage.cohort_size * stage.epochs * float(np.mean(data.train.size))
    work = 6.0 * costs.macs_per_sample(model.macs) * samples
    devices = devices or jax.devices()
    seconds = work / (GUESSED_RATE.get(devices[0].platform, 5e10) * len(devices))
    most = max(1, int(SEGMENT_SECONDS / max(seconds, 1e-9)))
    common = math.gcd(stage.num_rounds, eval_every)
    return max(d for d in range(1, common + 1) if common % d == 0 and d <= most)


def _stage(
    key, stage, model, sparse, data, evaluator, eval_every, chunk, budgets, devices
):
    """Yields `(state, records)` after every segment of a stage."""
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    names = masks.layers(_paths(model.macs), layers)
    plan = simulate.make_plan(stage, layers, devices, chunk)
    population = simulate.make_population(plan, data, budgets)
    state = simulate.start(key, plan, sparse, population)
    layouts = packet_layouts(stage, state, data, sparse)
    segment = simulate.make_segment(plan)
    length = segment_length(stage, model, data, eval_every, devices)
    draw = jax.jit(
        lambda rounds: simulate.cohorts(key, stage, len(data.train.size), rounds)
    )
    for first in range(0, stage.num_rounds, length):
        rounds = np.arange(first, first + length, dtype=np.int32)
        state, logs = segment(key, population, state, rounds, draw(rounds))
        logs = jax.device_get(logs)
        records = []
        for i in range(length):
            log = jax.tree.map(lambda v, i=i: v[i], logs)
            record = costs.round_record(
                log, layouts, model.macs, names, stage.batch_size
            )
            record = {"phase": "train", "round": first + i + 1} | record
            if not math.isfinite(record["loss"]):
                yield state, records
                raise FloatingPointError(
                    f"training loss {record['loss']} in round {record['round']} "
                    f"of clients {record['clients']}"
                )
            records.append(record)
        done = first + length
        if done % eval_every == 0 or done == stage.num_rounds:
            records.append(_evaluation(stage, state, evaluator, data, done, key))
        yield state, records


def _paths(tree: PyTree) -> PyTree:
    return jax.tree.unflatten(jax.tree.structure(tree), masks.leaf_paths(tree))


def _evaluation(stage, state, evaluator, data, done: int, key) -> dict:
    models = stage.algorithm.deploy(key, state.server, None, None)
    results = {name: evaluator(sparse) for name, sparse in models.items()}
    headline = next(iter(results))
    everything = jax.tree.map(lambda _: True, models[headline].mask)
    return {
        "phase": "eval",
        "round": done,
        "models": {
            name: evaluate.pooled(*result)
            | {"density": float(masks.density(models[name].mask, everything))}
            for name, result in results.items()
        },
        "accuracy": evaluate.pooled(*results[headline])["accuracy"],
        "client_accuracy": evaluate.by_client(results[headline][0], *data.test),
    }
