"""What can be refused of a run before anything is compiled.

The numbers of every stage, and one whole round of it traced by shape: whatever a model,
an optimizer and a method cannot do together fails there, in milliseconds.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sparsefl_jax.core.algorithm import Algorithm, Stage, target
from sparsefl_jax.core.types import Batches, ClientInfo, Context, PyTree, SparseModel
from sparsefl_jax.core.used_arguments import reads
from sparsefl_jax.data.batching import steps_per_epoch
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models.base import Model
from sparsefl_jax.runs.setup import Pace, Setup, check, pace
from sparsefl_jax.simulation import clock, initial_state, placement, store
from sparsefl_jax.simulation.clock import Clock
from sparsefl_jax.simulation.evaluate import check_metric
from sparsefl_jax.sparsity import trees
from sparsefl_jax.wire import packets
from sparsefl_jax.wire.messages import once


class Traced(NamedTuple):
    """One round of a stage by shape."""

    layouts: dict[str, dict[str, packets.Layout]]  # of 'down', with 'handed/', and 'up'
    model: SparseModel  # what it hands on
    reads_budget: bool  # whether a client's part depends on its budget
    client: Callable  # a client's part of a round: *arguments -> (down, up, ...)
    arguments: tuple  # key, context, server, row, and the fields of `Batches`
    log: int  # bytes of what a round logs of a client
    state: placement.State | None = None  # of all clients
    pace: Pace | None = None
    memory: Any = None  # `programs.Memory`, before compilation
    clock: Clock | None = None  # of the run's system


def run(setup: Setup) -> list[Traced]:
    """Refuses, in one line and before any compilation, what cannot be run.

    Args:
      setup: the run.

    Returns:
      What a round of each stage looks like.

    Raises:
      ValueError: a number is out of range, or the parts do not fit each other.
    """
    check(setup)
    shapes, traced = initial_state.initial_shapes(setup.model), []
    info = placement.client_info(setup.data, setup.budgets)
    for index, stage in enumerate(setup.stages):
        one = trace(stage, shapes, setup.data)
        _warn_of_dense(shapes.params, one.layouts)
        state = initial_state.shapes(stage.algorithm, shapes, info)
        cut = pace(setup, index, state.clients, one.log)
        weights = sum(v.size for v in jax.tree.leaves((shapes.params, shapes.stats)))
        one = one._replace(state=state, pace=cut)
        facts = stage, setup.model.macs, info.num_examples, weights
        traced.append(one._replace(clock=clock.of_stage(setup.system, *facts)))
        shapes = one.model
    check_metric(setup.metric, setup.stages, setup.model, setup.data)
    if setup.budgets is not None and not any(one.reads_budget for one in traced):
        raise ValueError(
            "budgets are read by nothing here, expected none, or a method that reads "
            "ctx.client.budget (fjord, heterofl, hetero_jmwst, hetero_spdst)"
        )
    return traced


def trace(stage: Stage, model: SparseModel, data: FederatedData) -> Traced:
    """Traces one client's round and the server's by shape; computes nothing.

    Args:
      stage: the stage.
      model: what it starts from, arrays or shapes.
      data: the samples.

    Raises:
      ValueError: whatever the model, the optimizer, the method and the sampler refuse.
    """
    method, rows = stage.algorithm, data.train.index.shape[1]
    steps = int(steps_per_epoch(rows, stage.batch_size, stage.drop_last))
    order = (stage.epochs, steps, stage.batch_size)
    shape, key = jax.ShapeDtypeStruct, jax.random.key(0)
    facts = ClientInfo(jnp.int32(0), jnp.int32(1), jnp.float32(1.0))
    ctx = Context(jnp.int32(0), jnp.int32(-1), facts)

    def before(key, model):
        server = method.init(key, model)
        row = method.first_state(key, server, ctx.client)
        return server, row, once(method.handed(server), ctx.last_round)

    def client(key, ctx, server, row, *batches):
        down = method.broadcast(key, ctx, server)
        up, row, metrics = method.update(key, ctx, down, row, Batches(*batches))
        return down, up, method.contribute(ctx, up), row, metrics

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
    server, row, handed = jax.eval_shape(before, key, model)
    batches = Batches(
        shape((rows, *data.x.shape[1:]), data.x.dtype),
        shape((rows, *data.y.shape[1:]), jnp.int32),
        shape(order, jnp.int32),
        shape(order, jnp.float32),
        jnp.int32(steps),
    )
    arguments = key, ctx, server, row, *batches
    traced = jax.jit(client).trace(*arguments)
    down, up, total, _, metrics = traced.out_info
    counts = [jax.eval_shape(packets.count, sent) for sent in (handed | down, up)]
    total = jax.tree.map(lambda v: v.update(weak_type=False), total)
    return Traced(
        {"down": packets.layout(handed | down), "up": packets.layout(up)},
        jax.eval_shape(after, key, server, total),
        reads(traced.jaxpr, arguments)[1].client.budget,
        client,
        arguments,
        store.num_bytes((metrics, counts)),
    )


def alive(stage: Stage, start: float) -> list[float]:
    """Returns the share alive at most after 0, 1, ... rounds, up to all.

    Args:
      stage: the stage.
      start: the share of entries alive where it starts, at most.

    Raises:
      ValueError: `Algorithm.alive` gives what is no share.

    Example:
      >>> from types import SimpleNamespace
      >>> halving = SimpleNamespace(alive=lambda round, start: start / 2**round)
      >>> alive(Stage(halving, num_rounds=2, cohort_size=1), 1.0)
      [1.0, 0.5, 0.25]
    """
    if stage.algorithm.alive is None:
        return [1.0] * (stage.num_rounds + 1)
    shares = []
    for round in range(stage.num_rounds + 1):
        shares.append(share := float(stage.algorithm.alive(round, start)))
        if not 0 <= share <= 1:
            raise ValueError(f"alive({round}) is {share}, expected in [0, 1]")
    return shares


def _warn_of_dense(params: PyTree, layouts: dict) -> None:
    """Warns of leaves that no mask covers, where they hold most of the network."""
    packets = [p for message in layouts.values() for p in message.values() if p.masked]
    under = {path for packet in packets for path in packet.paths}
    sizes = {path: leaf.size for path, leaf in trees.by_path(params).items()}
    shares = {path: size / sum(sizes.values()) for path, size in sizes.items()}
    dense = sorted(shares.keys() - under, key=lambda path: -shares[path])
    if packets and (whole := sum(shares[path] for path in dense)) > 0.5:
        largest = ", ".join(f"{path} ({shares[path]:.1%})" for path in dense[:3])
        told = f"no mask covers {whole:.1%} of the parameters, which stay dense"
        warnings.warn(f"{told}: {largest}; see prunable", stacklevel=3)


def reads_epochs(traced: Traced) -> bool:
    """Tells whether a method reads more than the first epoch of its batches."""

    def without(*args):
        *others, order, weight, steps = args
        return traced.client(*others, _FirstEpoch(order), _FirstEpoch(weight), steps)

    try:
        jax.eval_shape(without, *traced.arguments)
    except Exception:  # whatever is done with what is missing
        return True
    return False


def reads_mask(method: Algorithm, model: Model) -> bool:
    """Tells whether a method reads the mask that it starts from."""
    arguments = jax.random.key(0), initial_state.initial_shapes(model)
    traced = jax.make_jaxpr(method.init)(*arguments)
    return any(jax.tree.leaves(reads(traced, arguments)[1].mask))


class _FirstEpoch:
    """An array [E, ...] of which only entry 0 can be read."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __getitem__(self, at):
        first = at[0] if isinstance(at, tuple) else at
        if not isinstance(first, int) or first:
            raise IndexError
        return self.values[at]
