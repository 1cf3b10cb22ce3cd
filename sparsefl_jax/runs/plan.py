"""The plan of a run: what is known of each stage by shape, before any compilation."""

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.config.defaults import densities
from sparsefl_jax.config.fields import Config
from sparsefl_jax.core import types
from sparsefl_jax.core.algorithm import Algorithm, Stage, target
from sparsefl_jax.core.check import UserError, blame, unread
from sparsefl_jax.core.types import Batches, Context, PyTree, SparseModel
from sparsefl_jax.core.used_arguments import reads
from sparsefl_jax.data.batching import batches, samples_per_round, steps_per_pass
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.convolution import in_turn
from sparsefl_jax.runs.setup import Memory, Setup, check_fits, check_setup
from sparsefl_jax.simulation import clock, initial_state, placement, rows
from sparsefl_jax.simulation.clock import Clock
from sparsefl_jax.simulation.judge import check_metric, resolve_metric
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import hardware
from sparsefl_jax.wire import ledger, packets
from sparsefl_jax.wire.packets import pack_once

# Duration of a segment on CPUs, and a guess of their rate, for responsiveness only.
_SECONDS, _CPU_RATE = 4.0, 5e10  # FLOP/s per device
_LOG_SHARE = 0.01  # of the devices' memory, for the logs of a segment


class Pace(NamedTuple):
    """The division of a stage into segments."""

    length: int  # rounds of a compiled segment, at most
    working: int | None  # rows of a working set; None if all are on the device
    where: str  # rows live: 'device', 'host' or 'disk'


class Round(NamedTuple):
    """One client's round and the server's, by shape."""

    layouts: dict[str, packets.Message]  # of 'down', with `once`, and 'up'
    model: SparseModel  # from which the next stage starts
    reads_budget: bool  # whether a client's part depends on its budget
    client: Callable  # a client's part of a round: *arguments -> (down, up, ...)
    arguments: tuple  # key, context, server, row, and the fields of `Batches`
    log: int  # bytes that a round logs for a client


class StagePlan(NamedTuple):
    """All that is known of a stage before it is compiled."""

    round: Round
    state: placement.State  # of all clients, by shape
    pace: Pace
    memory: Memory  # without the working set
    clock: Clock | None  # of the run's system


class Plan(NamedTuple):
    """A run and its planned stages, ready to be compiled."""

    setup: Setup
    stages: tuple[StagePlan, ...]


def plan(setup: Setup) -> Plan:
    """Plans a run by shape, so that errors show before any compilation.

    A model, an optimizer and a method that do not work together fail here, within
    milliseconds.

    Raises:
      UserError: a number is out of range, the parts do not fit each other, or they do
        not fit into memory even without the working sets.
    """
    check_setup(setup)
    start = initial_state.initial_shapes(setup.model)
    if setup.initial is not None:
        import chex  # only here: it takes a while

        with blame("initial"):
            chex.assert_trees_all_equal_shapes_and_dtypes(setup.initial, start)
    info = placement.client_info(setup.data, setup.budgets)
    stages, flops = [], ledger.flops_per_sample(setup.model)
    for index, stage in enumerate(setup.stages):
        one = trace(stage, start, setup.data, setup.model.frozen)
        _warn_of_dense(start.params, one.layouts)
        state = initial_state.shapes(stage.algorithm, start, info)
        models = jax.eval_shape(stage.algorithm.deploy, jax.random.key(0), state.server)
        if setup.metric == "pooled" and "newcomer" in models:  # such as SpaFL's
            told = "metric='pooled' tests a newcomer's model, which nobody trains"
            warnings.warn(f"{told}; metric='clients' tests clients' own", stacklevel=2)
        cut = pace(setup, index, state.clients, one.log)
        weights = trees.num_entries((start.params, start.stats))
        timed = clock.of_stage(setup.system, stage, flops, info.num_examples, weights)
        needed = memory(setup, index, state, cut)
        stages.append(StagePlan(one, state, cut, needed, timed))
        start = one.model
    check_metric(setup.metric, setup.stages, setup.model, setup.data)
    if setup.budgets is not None and not any(one.round.reads_budget for one in stages):
        raise UserError(
            "budgets have no effect here, expected none, or a method that reads "
            "ctx.client.budget, see docs/unequal_clients.md"
        )
    for stage, one in zip(setup.stages, stages, strict=True):
        check_fits(one.memory, setup, placement.stage_devices(stage, setup.devices))
    return Plan(setup, tuple(stages))


def memory(setup: Setup, index: int, state: placement.State, pace: Pace) -> Memory:
    """Adds up the memory of a stage before it is compiled, and chooses its chunk.

    'auto' is 1 where clients run faster one after another, as on CPUs, see
    `models.convolution`. Otherwise it is all clients that a device has in a round;
    `setup.smaller` reduces it if the compiled program does not fit into memory.
    """
    stage, data, chunk = setup.stages[index], setup.data, setup.chunk
    devices = placement.stage_devices(stage, setup.devices)
    num_clients, share = len(data.train.size), -(-stage.cohort_size // len(devices))
    if chunk == "auto":
        macs = ledger.macs_per_sample(setup.model) * stage.batch_size
        chunk = 1 if in_turn(devices[0].platform, macs) else share
    whole = rows.num_bytes(state.clients)
    clients = rows.device_bytes(state.clients, len(devices))
    if pace.working is not None:
        clients = pace.working * (whole // num_clients)
    population = data.x.nbytes + data.y.nbytes + data.train.index.nbytes
    frozen = setup.model.frozen.entries
    by_client = resolve_metric(setup.metric, [stage]) == "clients" and (
        stage.algorithm.personalize is not None and jax.tree.leaves(state.clients)
    )
    copies = len(devices) if by_client else 1  # else it is divided
    return Memory(
        fixed={
            "population": len(devices) * (population + 12 * num_clients),
            "test set": copies * (data.x_test.nbytes + data.y_test.nbytes),
            "clients": clients,
            "server": len(devices) * rows.num_bytes(state.server),
        }
        | ({"frozen weights": len(devices) * 4 * frozen} if frozen else {}),
        client_store={"where": pace.where, "bytes": whole},
        chunk=min(int(chunk), share),
    )


def pace(setup: Setup, index: int, clients: PyTree, log: int) -> Pace:
    """Divides a stage into segments of about equal length between two evaluations.

    On CPUs, which do not benefit from long segments, one takes a few seconds, so that a
    run can be stopped quickly. Elsewhere it spans all rounds between two evaluations.
    The rows and logs of a segment must fit the devices. With a limit on costs, which
    are known only after a round has run, a segment is one round.

    Args:
      setup: the run.
      index: which of its stages.
      clients: the rows of all clients, arrays or shapes.
      log: bytes that a round logs for a client.
    """
    stage, data, memory_gb = setup.stages[index], setup.data, setup.memory_gb
    devices = placement.stage_devices(stage, setup.devices)
    memory = hardware.memory(devices) if memory_gb is None else 1e9 * memory_gb
    where = rows.choose(setup.client_store, clients, memory, len(devices))
    if devices[0].platform == "cpu":
        each = float(np.mean(samples_per_round(stage, data.train.size)))
        flops = ledger.flops_per_sample(setup.model) * (stage.cohort_size * each)
        most = _SECONDS * _CPU_RATE * len(devices) / max(flops, 1.0)
    else:
        most = _LOG_SHARE * memory / (stage.cohort_size * log)
    if where != "device":
        most = min(most, rows.most_rounds(clients, stage.cohort_size, memory))
    if any(setup.until._replace(accuracy=None, value=None)):
        most = 1
    interval = min(setup.eval_every, stage.num_rounds)
    segments = math.ceil(interval / max(1, int(most)))
    length = math.ceil(interval / segments)
    counts = len(data.train.size), stage.cohort_size, length, len(devices)
    working = None if where == "device" else rows.working_size(*counts)
    return Pace(length, working, where)


def trace(
    stage: Stage, model: SparseModel, data: FederatedData, frozen: Any = None
) -> Round:
    """Traces one client's round and the server's by shape; computes nothing.

    Args:
      stage: the stage.
      model: the model from which it starts, arrays or shapes.
      data: the samples.
      frozen: as `Model.frozen`.

    Raises:
      ValueError: the model, the optimizer, the method or the sampler fails.
    """
    method, largest = stage.algorithm, data.train.index.shape[1]
    steps, key = jnp.int32(steps_per_pass(stage, largest)), jax.random.key(0)
    shuffle = partial(batches, stage=stage, num_steps=steps)
    samples = data.x, data.y, data.train.index[0], jnp.int32(largest)
    facts = types.ClientInfo(jnp.int32(0), jnp.int32(1), jnp.float32(1.0))
    ctx = Context(jnp.int32(0), jnp.int32(-1), facts)

    def before(key, model):
        server = method.init(key, model)
        row = method.first_state(key, server, ctx.client)
        return server, row, pack_once(method.send_once(server), ctx.last_round)

    def client(key, ctx, server, row, *batches):
        down = method.broadcast(key, ctx, server)
        up, row, metrics = method.update(key, ctx, down, row, Batches(*batches))
        return down, up, method.contribute(ctx, up), row, metrics

    def after(key, server, total):
        at = types.ServerContext(ctx.round, jnp.int32(1))
        server, _ = method.aggregate(key, at, server, total)
        return target(method.deploy(key, server))

    if stage.sampler is not None:
        ids = jax.eval_shape(stage.sampler, key, jnp.int32(0))
        if ids.shape != (stage.cohort_size,):
            raise UserError(
                f"the sampler draws {ids.shape}, expected cohort_size="
                f"{stage.cohort_size} ids"
            )
    server, row, received = jax.eval_shape(before, key, model)
    received |= pack_once({}, ctx.last_round, frozen)
    arguments = key, ctx, server, row, *jax.eval_shape(shuffle, key, *samples)
    program = jax.jit(client).trace(*arguments)
    down, up, total, _, metrics = program.out_info
    counts = [jax.eval_shape(packets.count, sent) for sent in (received | down, up)]
    total = jax.tree.map(lambda v: v.update(weak_type=False), total)
    return Round(
        {"down": packets.layout(received | down), "up": packets.layout(up)},
        jax.eval_shape(after, key, server, total),
        reads(program.jaxpr, arguments)[1].client.budget,
        client,
        arguments,
        rows.num_bytes((metrics, counts)),
    )


def _warn_of_dense(params: PyTree, layouts: dict) -> None:
    """Warns about leaves without a mask if they hold most of the network."""
    packets = [packet for message in layouts.values() for packet in message.values()]
    under = {path for packet in packets for path in trees.leaf_paths(packet.mask)}
    sizes = {path: leaf.size for path, leaf in trees.by_path(params).items()}
    shares = {path: size / sum(sizes.values()) for path, size in sizes.items()}
    dense = sorted(shares.keys() - under, key=lambda path: -shares[path])
    if under and (whole := sum(shares[path] for path in dense)) > 0.5:
        largest = ", ".join(f"{path} ({shares[path]:.1%})" for path in dense[:3])
        what = f"no mask covers {whole:.1%} of the parameters, which stay dense"
        warnings.warn(f"{what}: {largest}; see prunable", stacklevel=3)


def check_stages(config: Config, run: Plan) -> None:
    """Checks that the epochs and the mask of the first stage are used.

    Raises:
      ValueError: they are not.
    """
    epochs = config.first_stage.get("epochs") or 1
    if epochs > 1 and not reads_epochs(run.stages[0].round):
        why = f"{config.first_stage['name']!r} takes the batches of one epoch"
        raise unread(f"first_stage.epochs={epochs}", why)
    masked = any(field.startswith("first_stage") for field in densities(config))
    if masked and not reads_mask(run.setup.stages[1].algorithm, run.setup.model):
        raise UserError(
            f"first_stage.name={config.first_stage['name']!r}: its mask has no "
            f"effect here, as {config.algorithm['name']!r} starts from one of its own"
        )


def reads_epochs(one: Round) -> bool:
    """Returns whether a method reads more than the first epoch of its batches."""

    def without(*args):
        *others, order, weight, steps = args
        return one.client(*others, _FirstEpoch(order), _FirstEpoch(weight), steps)

    try:
        jax.eval_shape(without, *one.arguments)
    except Exception:  # any error from use of the missing entries
        return True
    return False


def reads_mask(method: Algorithm, model: Model) -> bool:
    """Returns whether a method reads the mask that it starts from."""
    arguments = jax.random.key(0), initial_state.initial_shapes(model)
    program = jax.make_jaxpr(method.init)(*arguments)
    return any(jax.tree.leaves(reads(program, arguments)[1].mask))


class _FirstEpoch:
    """An array [E, ...] of which only entry 0 can be read."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __getitem__(self, at):
        first = at[0] if isinstance(at, tuple) else at
        if not isinstance(first, int) or first:
            raise IndexError
        return self.values[at]
