"""What can be refused of a run before anything is compiled.

The numbers of every stage, and one whole round of it traced by shape: whatever a model,
an optimizer and a method can not do together fails there, in milliseconds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import target
from sparsefl_jax.core.types import ClientInfo, Context, PyTree, SparseModel
from sparsefl_jax.core.validate import typed
from sparsefl_jax.data.batching import steps_per_epoch
from sparsefl_jax.runs.plan import memory_estimate
from sparsefl_jax.simulation import evaluate, store
from sparsefl_jax.sparsity import masks


class Traced(NamedTuple):
    """The shapes of one round: what travels, and what the next stage would take."""

    down: PyTree  # dict[str, Packet] of jax.ShapeDtypeStruct
    up: PyTree
    model: SparseModel
    memory: memory_estimate.Memory
    work: memory_estimate.ClientWork  # of one client


def run(
    stages,
    model,
    data,
    eval_every=1,
    chunk="auto",
    budgets=None,
    metric="auto",
    client_store="auto",
    memory_gb=None,
    devices=None,
) -> list[Traced]:
    """Refuses, in one line and before any compilation, what can not be run.

    Args:
      stages, model, data, eval_every, chunk, budgets, metric, client_store, memory_gb,
        devices: as `loop.run` takes them.

    Returns:
      What a round of each stage looks like.

    Raises:
      ValueError: a number is out of range, or the parts do not fit each other or the
        memory.
    """
    num_clients = len(data.train.size)
    if not stages:
        raise ValueError("stages=[], expected at least one")
    for stage in stages:
        for name in ("num_rounds", "cohort_size", "epochs", "batch_size"):
            _at_least_one(name, getattr(stage, name))
        if stage.cohort_size > num_clients:
            raise ValueError(
                f"cohort_size={stage.cohort_size}, expected at most the number of "
                f"clients, {num_clients}"
            )
    _at_least_one("eval_every", eval_every)
    if chunk != "auto" and not (str(chunk).isdecimal() and int(chunk) >= 1):
        raise ValueError(f"chunk={chunk!r}, expected 'auto' or a positive integer")
    _check_budgets(budgets, num_clients)
    store.check(client_store)
    shapes = jax.eval_shape(lambda key: initial_model(key, model), jax.random.key(0))
    how = {
        "eval_every": eval_every,
        "chunk": chunk,
        "budgets": budgets,
        "client_store": client_store,
        "memory_gb": memory_gb,
        "devices": devices,
    }
    traced, unread = [], budgets is not None
    for stage in stages:
        down, up, deployed, work = trace(stage, shapes, data)
        unread = unread and not _reads_budget(stage.algorithm, work)
        memory = memory_estimate.of_stage(stage, shapes, work, model, data, **how)
        traced.append(Traced(down, up, deployed, memory, work))
        shapes = deployed
    evaluate.check_metric(metric, stages, model, data)
    if unread:
        raise ValueError(
            "budgets are read by nothing here, expected none, or a method that reads "
            "ctx.client.budget (fjord, heterofl, hetero_jmwst, hetero_spdst)"
        )
    return traced


def trace(stage, model: SparseModel, data):
    """One client's round and the server's, by shape; nothing is computed.

    Args:
      stage: a `Stage`.
      model: what the stage starts from, arrays or shapes.
      data: a `FederatedData`.

    Returns:
      What travels down and up, what is deployed, and the `ClientWork`.

    Raises:
      ValueError: whatever the model, the optimizer, the method and the sampler refuse.
    """
    method, rows = stage.algorithm, data.train.index.shape[1]
    steps = int(steps_per_epoch(rows, stage.batch_size, stage.drop_last))
    order = (stage.epochs, steps, stage.batch_size)
    shape, key, ctx = jax.ShapeDtypeStruct, jax.random.key(0), example_context()

    def before(key, model):
        server = method.init(key, model)
        return server, method.init_client(key, server, ctx.client)

    def after(key, server, total):
        server, _ = method.aggregate(key, ctx.round, server, total)
        return target(method.deploy(key, server))

    if stage.sampler is not None:
        ids = jax.eval_shape(stage.sampler, key, jnp.int32(0))
        if ids.shape != (stage.cohort_size,):
            raise ValueError(
                f"the sampler draws {ids.shape}, expected cohort_size="
                f"{stage.cohort_size} ids"
            )
    server, row = jax.eval_shape(before, key, model)
    samples = (
        shape((rows, *data.x.shape[1:]), data.x.dtype),
        shape((rows, *data.y.shape[1:]), jnp.int32),
        shape(order, jnp.int32),
        shape(order, jnp.float32),
    )
    work = memory_estimate.ClientWork(
        jax.jit(memory_estimate.client_function(method)),  # is traced only once
        (ctx.round, jnp.int32(steps), server),
        (key, row, ctx.last_round, ctx.client, *samples),
    )
    down, up, total, *_ = jax.eval_shape(work.function, *work.shared, *work.own)
    return down, up, jax.eval_shape(after, key, server, total), work


def _reads_budget(method, work: memory_estimate.ClientWork) -> bool:
    """Whether a client's part of a round fails without its budget."""

    def without(*args):
        args = [*args]
        args[6] = args[6]._replace(budget=object())
        return memory_estimate.client_function(method)(*args)

    return not _passes(without, work)


def reads_epochs(stage, model, data) -> bool:
    """Whether a stage's method looks at more than the first epoch of its batches.

    Args:
      stage: a `Stage`.
      model: a `Model`.
      data: a `FederatedData`.
    """
    shapes = jax.eval_shape(lambda key: initial_model(key, model), jax.random.key(0))
    *_, work = trace(stage, shapes, data)

    def without(*args):
        *args, order, weight = args
        first = _FirstEpoch(order), _FirstEpoch(weight)
        return memory_estimate.client_function(stage.algorithm)(*args, *first)

    return not _passes(without, work)


def reads_mask(method, model) -> bool:
    """Whether a method looks at the mask of what it starts from.

    Args:
      method: an `Algorithm`.
      model: a `Model`.
    """

    def without(key):
        sparse = initial_model(key, model)
        return method.init(key, sparse._replace(mask=object()))

    try:
        jax.eval_shape(without, jax.random.key(0))
    except Exception:  # whatever it does with it, be it to hand it on
        return True
    return False


class _FirstEpoch:
    """An array [E, ...] of which nothing but entry 0 can be read."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __getitem__(self, at):
        first = at[0] if isinstance(at, tuple) else at
        if not isinstance(first, int) or first:
            raise IndexError
        return self.values[at]


def _passes(function, work: memory_estimate.ClientWork) -> bool:
    """Whether a client's part of a round can be traced where something is missing."""
    try:
        jax.eval_shape(function, *work.shared, *work.own)
    except Exception:  # whatever is done with what is missing
        return False
    return True


def initial_model(key, model) -> SparseModel:
    """A fresh network with nothing pruned."""
    params, stats = model.init(key)
    return SparseModel(params, masks.full(params), stats)


def example_context() -> Context:
    """Round 0 as client 0 sees it."""
    client = ClientInfo(jnp.int32(0), jnp.int32(1), jnp.float32(1.0))
    return Context(jnp.int32(0), jnp.int32(-1), client)


def check_observed(observe_rounds, num_rounds: int) -> None:
    """Refuses rounds that the last stage does not have, which would pass unseen.

    Raises:
      ValueError: one is out of range.
    """
    if not all(1 <= round <= num_rounds for round in observe_rounds):
        raise ValueError(
            f"observe_rounds={tuple(observe_rounds)}, expected rounds from 1 to "
            f"num_rounds={num_rounds}"
        )


def _at_least_one(name: str, value) -> None:
    typed(name, value, int)
    if value < 1:
        raise ValueError(f"{name}={value}, expected at least 1")


def _check_budgets(budgets, num_clients: int) -> None:
    if budgets is None:
        return
    budgets = np.asarray(budgets)
    if budgets.shape != (num_clients,) or not np.all((budgets > 0) & (budgets <= 1)):
        raise ValueError(
            f"budgets of shape {budgets.shape}, expected one in (0, 1] for each of "
            f"{num_clients} clients"
        )
