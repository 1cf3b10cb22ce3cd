"""What can be refused of a run before anything is compiled.

The numbers of every stage, and one whole round of it traced by shape: whatever a model,
an optimizer and a method cannot do together fails there, in milliseconds.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm, target
from sparsefl_jax.core.types import Batches, ClientInfo, Context, PyTree, SparseModel
from sparsefl_jax.data.batching import steps_per_epoch
from sparsefl_jax.runs.plan import memory
from sparsefl_jax.runs.setup import Setup, check, check_metric, check_observed
from sparsefl_jax.sparsity import masks


class ClientWork(NamedTuple):
    """A client's part of a round by shape; arguments that clients share come first."""

    function: Callable  # (*shared, *own) -> (down, up, summand, ...)
    shared: tuple  # round, steps, server
    own: tuple  # key, row, round of the last part, facts, samples, their order


class Traced(NamedTuple):
    """One round of a stage by shape."""

    start: SparseModel  # what it starts from
    down: PyTree  # dict[str, Packet] of jax.ShapeDtypeStruct
    up: PyTree
    model: SparseModel  # what it hands on
    memory: memory.Memory  # before compilation
    work: ClientWork  # of one client


def run(setup: Setup) -> list[Traced]:
    """Refuses, in one line and before any compilation, what cannot be run.

    Args:
      setup: the run.

    Returns:
      What a round of each stage looks like.

    Raises:
      ValueError: a number is out of range, or the parts do not fit each other or the
        memory.
    """
    check(setup)
    model, data, budgets = setup.model, setup.data, setup.budgets
    shapes = jax.eval_shape(lambda key: initial_model(key, model), jax.random.key(0))
    traced, unread = [], budgets is not None
    for stage in setup.stages:
        down, up, deployed, work = trace(stage, shapes, data)
        unread = unread and not _reads_budget(stage.algorithm, work)
        needed = memory.by_shape(setup, stage, shapes)
        traced.append(Traced(shapes, down, up, deployed, needed, work))
        shapes = deployed
    check_metric(setup)
    if unread:
        raise ValueError(
            "budgets are read by nothing here, expected none, or a method that reads "
            "ctx.client.budget (fjord, heterofl, hetero_jmwst, hetero_spdst)"
        )
    check_observed(setup.observe_rounds, setup.stages[-1].num_rounds)
    return traced


def trace(stage, model: SparseModel, data):
    """Traces one client's round and the server's by shape; computes nothing.

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
    work = ClientWork(
        jax.jit(client_function(method)),  # is traced only once
        (ctx.round, jnp.int32(steps), server),
        (key, row, ctx.last_round, ctx.client, *samples),
    )
    down, up, total, *_ = jax.eval_shape(work.function, *work.shared, *work.own)
    return down, up, jax.eval_shape(after, key, server, total), work


def client_function(method: Algorithm) -> Callable:
    """Returns one client's part of a round as `ClientWork` holds it, for tracing."""

    def function(round, steps, server, key, row, last_round, info, *samples):
        ctx = Context(round, last_round, info)
        down = method.broadcast(key, ctx, server)
        batches = Batches(*samples, steps)
        up, row, metrics = method.update(key, ctx, down, row, batches)
        return down, up, method.contribute(ctx, up), row, metrics

    return function


def _reads_budget(method, work: ClientWork) -> bool:
    """Tells whether a client's part of a round fails without its budget."""

    def without(*args):
        args = [*args]
        args[6] = args[6]._replace(budget=object())
        return client_function(method)(*args)

    return not _passes(without, work)


def reads_epochs(stage, model, data) -> bool:
    """Tells whether a method reads more than the first epoch of its batches.

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
        return client_function(stage.algorithm)(*args, *first)

    return not _passes(without, work)


def reads_mask(method, model) -> bool:
    """Tells whether a method reads the mask that it starts from.

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
    """An array [E, ...] of which only entry 0 can be read."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __getitem__(self, at):
        first = at[0] if isinstance(at, tuple) else at
        if not isinstance(first, int) or first:
            raise IndexError
        return self.values[at]


def _passes(function, work: ClientWork) -> bool:
    """Tells whether a client's part of a round can still be traced."""
    try:
        jax.eval_shape(function, *work.shared, *work.own)
    except Exception:  # whatever is done with what is missing
        return False
    return True


def initial_model(key, model) -> SparseModel:
    """Returns a fresh network with nothing pruned."""
    params, stats = model.init(key)
    return SparseModel(params, masks.full(params), stats)


def example_context() -> Context:
    """Returns the context of client 0 in round 0."""
    client = ClientInfo(jnp.int32(0), jnp.int32(1), jnp.float32(1.0))
    return Context(jnp.int32(0), jnp.int32(-1), client)
