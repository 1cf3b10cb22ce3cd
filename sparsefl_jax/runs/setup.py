"""The setup of a run: stages, network, data, settings, and their checks."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core import types
from sparsefl_jax.core.algorithm import Algorithm, Stage, target
from sparsefl_jax.core.types import (
    Batches,
    ClientInfo,
    Context,
    PyTree,
    ServerContext,
    SparseModel,
)
from sparsefl_jax.core.used_arguments import reads
from sparsefl_jax.core.validate import blaming, in_range, one_of, typed, whole
from sparsefl_jax.data.batching import steps_per_epoch
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models.base import Model
from sparsefl_jax.simulation import clock, initial_state, placement, store
from sparsefl_jax.simulation.clock import Clock, System
from sparsefl_jax.simulation.evaluate import check_metric
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import hardware
from sparsefl_jax.wire import ledger, packets
from sparsefl_jax.wire.messages import once

# Duration of a segment on CPUs, and a guess of their rate, for responsiveness only.
_SECONDS, _CPU_RATE = 4.0, 5e10  # FLOP/s per device
_LOG_SHARE = 0.01  # of the devices' memory, for the logs of a segment


class Limits(NamedTuple):
    """Limits that end a run early; None for no limit.

    A run ends with the first round after which its cost, of all stages so far, reaches
    `gbit`, `pflop` or `hours`, or with the first evaluation that reaches `accuracy`.
    """

    gbit: types.Positive | None = None  # 1e9 bits, both ways, all clients
    pflop: types.Positive | None = None  # 1e15 training FLOPs at the masks
    hours: types.Positive | None = None  # of virtual time, with a `system`
    accuracy: types.Share | None = None  # of the headline model of the last stage


class Setup(NamedTuple):
    """All that a run depends on, except its key.

    Attributes:
      stages: the stages, run one after another.
      model: the network.
      data: the samples, split over clients.
      eval_every: rounds between evaluations; the last round of a stage is always
        evaluated.
      chunk: number of clients that a device runs at the same time, or 'auto'.
      budgets: [N] float in (0, 1], the share of the model that each client can hold.
      metric: which accuracy is reported, a name in `evaluate.METRICS`.
      client_store: where client states are stored, a name in `store.STORES`; it does
        not change results.
      memory_gb: memory limit of all devices together, in 1e9 bytes. An 'auto' chunk
        stays within it, see `programs`, and an 'auto' store keeps rows on the host if
        they would take more than half of it.
      devices: by default all.
      until: limits that end the run early, with an evaluation at the end.
      initial: the model from which the first stage starts; None for a fresh network.
      observe_rounds: rounds of the last stage, from 1, for which all clients' masks are
        kept.
      system: the devices of the clients, which determine virtual time, see
        `systems.make_system`; None if all clients always answer at once.
    """

    stages: Sequence[Stage]
    model: Model
    data: FederatedData
    eval_every: int = 1
    chunk: int | str = "auto"
    budgets: np.ndarray | None = None
    metric: str = "auto"
    client_store: str = "auto"
    memory_gb: types.Positive | None = None
    devices: Sequence | None = None
    until: Limits = Limits()
    initial: SparseModel | None = None
    observe_rounds: Sequence[int] = ()
    system: System | None = None

    def observed(self, stage: int) -> tuple[int, ...]:
        """Returns the rounds of a stage for which clients' masks are kept."""
        last = stage == len(self.stages) - 1
        return tuple(self.observe_rounds) if last else ()


def make(
    stages: Sequence[Stage], model: Model, data: FederatedData, **settings
) -> Setup:
    """Returns a `Setup`; `settings` are its other fields.

    Raises:
      TypeError: there is no such setting.
      ValueError: the network cannot read the samples, see `reading`.
    """
    return Setup(stages, reading(data, lambda: model), data, **settings)


def reading(
    data: FederatedData, make: Callable[[], Model], name: str = "the network"
) -> Model:
    """Makes a network and passes one sample through it and its loss, by shape.

    Args:
      data: the samples.
      make: `() -> Model`, for samples of this shape.
      name: of the network, in messages.

    Returns:
      The network.

    Raises:
      ValueError: `make` or the network fails; raised before any compilation.

    Example:
      >>> from sparsefl_jax import from_arrays, models
      >>> x, y = np.ones((8, 5), np.float32), np.arange(8) % 2
      >>> data = from_arrays(x, y, num_clients=2, x_test=x, y_test=y)
      >>> reading(data, lambda: models.build("conv4", 2, (5,)), "conv4")
      Traceback (most recent call last):
      ValueError: conv4 on samples of float32 [5]: conv_general_dilated lhs and rhs must
      have the same number of dimensions, but got (1, 5) and (5, 5, 5, 64).
    """
    x, y = (jax.ShapeDtypeStruct((1, *v.shape[1:]), v.dtype) for v in (data.x, data.y))

    def loss(key, x, y):
        logits, _ = model.apply(*model.init(key), x, train=False)
        return model.loss(logits, y, jnp.ones(1))

    with blaming(f"{name} on samples of {x.dtype} {list(x.shape[1:])}"):
        model = make()
        jax.eval_shape(loss, jax.random.key(0), x, y)
    return model


def check(setup: Setup) -> None:
    """Checks that numbers are in range and that the parts fit each other.

    Raises:
      ValueError: they are not, or do not.
    """
    num_clients = len(setup.data.train.size)
    if not setup.stages:
        raise ValueError("stages=[], expected at least one")
    for stage in setup.stages:
        for name in ("num_rounds", "cohort_size", "epochs", "batch_size"):
            typed(name, getattr(stage, name), types.Count)
        if stage.cohort_size > num_clients:
            raise ValueError(
                f"cohort_size={stage.cohort_size}, expected at most the number of "
                f"clients, {num_clients}"
            )
    typed("eval_every", setup.eval_every, types.Count)
    chunk = setup.chunk
    if chunk != "auto" and not (str(chunk).isdecimal() and int(chunk) >= 1):
        raise ValueError(f"chunk={chunk!r}, expected 'auto' or a positive integer")
    _check_budgets(setup.budgets, num_clients)
    typed("until", setup.until, Limits)
    for name, value in setup.until._asdict().items():
        typed(f"until.{name}", value, Limits.__annotations__[name])
    typed("memory_gb", setup.memory_gb, types.Positive | None)
    _check_system(setup, num_clients)
    num_rounds = setup.stages[-1].num_rounds
    guarantee(setup, num_rounds)
    one_of("client_store", setup.client_store, store.STORES)
    for round in setup.observe_rounds:
        whole("observe_rounds", round, 1, num_rounds)


def guarantee(setup: Setup, rounds: int) -> dict[str, Any]:
    """Returns the guarantee of the methods for the released models; {} if none.

    Args:
      setup: the run.
      rounds: number of rounds of the last stage.

    Raises:
      ValueError: the run would violate a guarantee.
    """
    facts = setup.stages, len(setup.data.train.size), rounds
    found = {}
    for stage in setup.stages:
        if stage.algorithm.guarantee is not None:
            found |= stage.algorithm.guarantee(*facts, setup.budgets, setup.system)
    return found


class Pace(NamedTuple):
    """The division of a stage into segments."""

    length: int  # rounds of a compiled segment, at most
    working: int | None  # rows of a working set; None if all are on the device
    where: str  # rows live: 'device', 'host' or 'disk'


def pace(setup: Setup, index: int, rows: PyTree, log: int) -> Pace:
    """Divides a stage into segments of about equal length between two evaluations.

    On CPUs, which do not benefit from long segments, one takes a few seconds, so that a
    run can be stopped quickly. Elsewhere it spans all rounds between two evaluations.
    The rows and logs of a segment must fit the devices. With a limit on costs, which
    are known only after a round has run, a segment is one round.

    Args:
      setup: the run.
      index: which of its stages.
      rows: all clients', arrays or shapes.
      log: bytes that a round logs for a client.
    """
    stage, data, memory_gb = setup.stages[index], setup.data, setup.memory_gb
    devices = placement.stage_devices(stage, setup.devices)
    memory = hardware.memory(devices) if memory_gb is None else 1e9 * memory_gb
    where = store.chosen(setup.client_store, rows, memory, len(devices))
    if devices[0].platform == "cpu":
        samples = stage.cohort_size * stage.epochs * float(np.mean(data.train.size))
        flops = ledger.flops_per_sample(setup.model) * samples
        most = _SECONDS * _CPU_RATE * len(devices) / max(flops, 1.0)
    else:
        most = _LOG_SHARE * memory / (stage.cohort_size * log)
    if where != "device":
        most = min(most, store.most_rounds(rows, stage.cohort_size, memory))
    if any(setup.until._replace(accuracy=None)):
        most = 1
    interval = min(setup.eval_every, stage.num_rounds)
    segments = math.ceil(interval / max(1, int(most)))
    length = math.ceil(interval / segments)
    counts = len(data.train.size), stage.cohort_size, length, len(devices)
    working = None if where == "device" else store.working_size(*counts)
    return Pace(length, working, where)


def _check_budgets(budgets: np.ndarray | None, num_clients: int) -> None:
    if budgets is None:
        return
    budgets = np.asarray(budgets)
    if budgets.shape != (num_clients,):
        raise ValueError(f"budgets of shape {budgets.shape}, expected ({num_clients},)")
    for value in (budgets.min(), budgets.max()):
        in_range("budgets", value, "(0, 1]")


def _check_system(setup: Setup, num_clients: int) -> None:
    system, hours = setup.system, setup.until.hours
    if system is None:
        if hours is not None:
            raise ValueError(
                f"until.hours={hours:g} has no effect here: it needs a system"
            )
    elif (found := len(system.tier)) != num_clients:
        raise ValueError(
            f"system of {found} clients, expected the number of clients, {num_clients}"
        )
    elif max(stage.cohort_size for stage in setup.stages) == 1:
        for name in ("deadline", "quantile"):
            if (value := getattr(system, name)) is not None:
                raise ValueError(
                    f"{name}={value:g} has no effect here: a cohort of one client "
                    "has no deadline, expected cohort_size of at least 2"
                )


class Traced(NamedTuple):
    """One round of a stage by shape."""

    layouts: dict[str, dict[str, packets.Layout]]  # of 'down', with `once`, and 'up'
    model: SparseModel  # from which the next stage starts
    reads_budget: bool  # whether a client's part depends on its budget
    client: Callable  # a client's part of a round: *arguments -> (down, up, ...)
    arguments: tuple  # key, context, server, row, and the fields of `Batches`
    log: int  # bytes that a round logs for a client
    state: placement.State | None = None  # of all clients
    pace: Pace | None = None
    memory: Any = None  # `programs.Memory`, by shape or of the compiled stage
    clock: Clock | None = None  # of the run's system


def traced(setup: Setup) -> list[Traced]:
    """Traces a round of each stage by shape, so that errors show before compilation.

    A model, an optimizer and a method that do not work together fail here, within
    milliseconds.

    Raises:
      ValueError: a number is out of range, or the parts do not fit each other.
    """
    check(setup)
    shapes, found = initial_state.initial_shapes(setup.model), []
    info = placement.client_info(setup.data, setup.budgets)
    if setup.initial is not None:
        import chex  # only here: it takes a while

        with blaming("initial"):
            chex.assert_trees_all_equal_shapes_and_dtypes(setup.initial, shapes)
    for index, stage in enumerate(setup.stages):
        one = trace(stage, shapes, setup.data, setup.model.held)
        _warn_of_dense(shapes.params, one.layouts)
        state = initial_state.shapes(stage.algorithm, shapes, info)
        cut = pace(setup, index, state.clients, one.log)
        weights = sum(v.size for v in jax.tree.leaves((shapes.params, shapes.stats)))
        flops = ledger.flops_per_sample(setup.model)
        timed = clock.of_stage(setup.system, stage, flops, info.num_examples, weights)
        found.append(one._replace(state=state, pace=cut, clock=timed))
        shapes = one.model
    check_metric(setup.metric, setup.stages, setup.model, setup.data)
    if setup.budgets is not None and not any(one.reads_budget for one in found):
        raise ValueError(
            "budgets have no effect here, expected none, or a method that reads "
            "ctx.client.budget, see docs/which_method.md"
        )
    return found


def trace(
    stage: Stage, model: SparseModel, data: FederatedData, held: Any = None
) -> Traced:
    """Traces one client's round and the server's by shape; computes nothing.

    Args:
      stage: the stage.
      model: the model from which it starts, arrays or shapes.
      data: the samples.
      held: as `Model.held`.

    Raises:
      ValueError: the model, the optimizer, the method or the sampler fails.
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
        at = ServerContext(ctx.round, jnp.int32(1))
        server, _ = method.aggregate(key, at, server, total)
        return target(method.deploy(key, server))

    if stage.sampler is not None:
        ids = jax.eval_shape(stage.sampler, key, jnp.int32(0))
        if ids.shape != (stage.cohort_size,):
            raise ValueError(
                f"the sampler draws {ids.shape}, expected cohort_size="
                f"{stage.cohort_size} ids"
            )
    server, row, handed = jax.eval_shape(before, key, model)
    handed |= once({}, ctx.last_round, held)
    batches = Batches(
        shape((rows, *data.x.shape[1:]), data.x.dtype),
        shape((rows, *data.y.shape[1:]), jnp.int32),
        shape(order, jnp.int32),
        shape(order, jnp.float32),
        jnp.int32(steps),
    )
    arguments = key, ctx, server, row, *batches
    program = jax.jit(client).trace(*arguments)
    down, up, total, _, metrics = program.out_info
    counts = [jax.eval_shape(packets.count, sent) for sent in (handed | down, up)]
    total = jax.tree.map(lambda v: v.update(weak_type=False), total)
    return Traced(
        {"down": packets.layout(handed | down), "up": packets.layout(up)},
        jax.eval_shape(after, key, server, total),
        reads(program.jaxpr, arguments)[1].client.budget,
        client,
        arguments,
        store.num_bytes((metrics, counts)),
    )


def _warn_of_dense(params: PyTree, layouts: dict) -> None:
    """Warns about leaves without a mask if they hold most of the network."""
    packets = [p for message in layouts.values() for p in message.values() if p.masked]
    under = {path for packet in packets for path in packet.paths}
    sizes = {path: leaf.size for path, leaf in trees.by_path(params).items()}
    shares = {path: size / sum(sizes.values()) for path, size in sizes.items()}
    dense = sorted(shares.keys() - under, key=lambda path: -shares[path])
    if packets and (whole := sum(shares[path] for path in dense)) > 0.5:
        largest = ", ".join(f"{path} ({shares[path]:.1%})" for path in dense[:3])
        what = f"no mask covers {whole:.1%} of the parameters, which stay dense"
        warnings.warn(f"{what}: {largest}; see prunable", stacklevel=3)


def reads_epochs(one: Traced) -> bool:
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
