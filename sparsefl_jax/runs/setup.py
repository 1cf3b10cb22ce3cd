"""A run as it was asked for: what runs, on what data, and how."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import PyTree, SparseModel
from sparsefl_jax.core.validate import at_least, blaming, typed
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models.base import Model
from sparsefl_jax.simulation import placement, store
from sparsefl_jax.simulation.clock import System
from sparsefl_jax.system import hardware
from sparsefl_jax.wire import ledger

# Of a segment on CPUs, whose rate is guessed: only responsiveness depends on it.
_SECONDS, _CPU_RATE = 4.0, 5e10  # FLOP/s per device
_LOG_SHARE = 0.01  # of the devices' memory, for the logs of a segment


class Limits(NamedTuple):
    """Where a run ends before its rounds do; None: nowhere.

    It ends with the first round after which it has cost `gbit`, `pflop` or `hours`, or
    with the first evaluation that reaches `accuracy`.
    """

    gbit: float | None = None  # 1e9 bits, both ways, all clients
    pflop: float | None = None  # 1e15 training FLOPs at the masks
    hours: float | None = None  # of virtual time, with a `system`
    accuracy: float | None = None  # share, of the headline model of the last stage


class Setup(NamedTuple):
    """All that a run depends on but its key.

    Attributes:
      stages: what runs, one after another.
      model: the network.
      data: the samples, shared out over clients.
      eval_every: rounds between evaluations; the last of a stage is one too.
      chunk: clients that a device runs at a time, or 'auto'.
      budgets: [N] float in (0, 1], the share of the model that each client can hold.
      metric: whose accuracy counts, a name in `evaluate.METRICS`.
      client_store: where what clients keep lives, a name in `store.STORES`; it changes
        no result.
      memory_gb: what the devices may hold together, 1e9 bytes; an 'auto' chunk stays
        within it, see `programs`, and an 'auto' store leaves rows on the host that
        would take more than half of it.
      devices: by default all.
      until: where to end early; there is an evaluation at that end.
      initial: what the first stage starts from; None: a fresh network.
      observe_rounds: rounds of the last stage, from 1, whose clients' masks are kept.
      system: the devices of the clients, by which rounds take virtual time, see
        `systems.make_system`; None: all clients always answer at once.
    """

    stages: Sequence[Stage]
    model: Model
    data: FederatedData
    eval_every: int = 1
    chunk: int | str = "auto"
    budgets: np.ndarray | None = None
    metric: str = "auto"
    client_store: str = "auto"
    memory_gb: float | None = None
    devices: Sequence | None = None
    until: Limits = Limits()
    initial: SparseModel | None = None
    observe_rounds: Sequence[int] = ()
    system: System | None = None

    def observed(self, stage: int) -> tuple[int, ...]:
        """Returns the rounds of a stage whose clients' masks are kept."""
        return tuple(self.observe_rounds) if self.is_last(stage) else ()

    def is_last(self, stage: int) -> bool:
        """Tells whether no stage follows."""
        return stage == len(self.stages) - 1


def make(
    stages: Sequence[Stage], model: Model, data: FederatedData, **settings
) -> Setup:
    """Returns a `Setup`; `settings` are its other fields.

    Raises:
      TypeError: there is no such setting.
      ValueError: the network cannot read the samples, see `reading`.
    """
    unknown = sorted(set(settings) - set(Setup._fields))
    if unknown:
        raise TypeError(
            f"a run has no setting {unknown[0]!r}, expected of "
            f"{', '.join(Setup._fields[3:])}"
        )
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
      ValueError: in one line, before any compilation, whatever `make` or the network
        fails with.

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
    """Refuses numbers out of range and parts that do not fit each other.

    Raises:
      ValueError: in one line.
    """
    num_clients = len(setup.data.train.size)
    if not setup.stages:
        raise ValueError("stages=[], expected at least one")
    for stage in setup.stages:
        for name in ("num_rounds", "cohort_size", "epochs", "batch_size"):
            _whole(name, getattr(stage, name))
        if stage.cohort_size > num_clients:
            raise ValueError(
                f"cohort_size={stage.cohort_size}, expected at most the number of "
                f"clients, {num_clients}"
            )
    _whole("eval_every", setup.eval_every)
    chunk = setup.chunk
    if chunk != "auto" and not (str(chunk).isdecimal() and int(chunk) >= 1):
        raise ValueError(f"chunk={chunk!r}, expected 'auto' or a positive integer")
    _check_budgets(setup.budgets, num_clients)
    typed("until", setup.until, Limits)
    _check_system(setup, num_clients)
    num_rounds = setup.stages[-1].num_rounds
    guarantee(setup, num_rounds)
    store.check(setup.client_store)
    if not all(1 <= round <= num_rounds for round in setup.observe_rounds):
        raise ValueError(
            f"observe_rounds={tuple(setup.observe_rounds)}, expected rounds from 1 to "
            f"num_rounds={num_rounds}"
        )


def guarantee(setup: Setup, rounds: int) -> dict[str, Any]:
    """Returns what the methods guarantee of the released models; {} if nothing.

    Args:
      setup: the run.
      rounds: number of rounds of the last stage.

    Raises:
      ValueError: the run would break what a method guarantees.
    """
    facts = setup.stages, len(setup.data.train.size), rounds
    found = {}
    for stage in setup.stages:
        if stage.algorithm.guarantee is not None:
            found |= stage.algorithm.guarantee(*facts, setup.budgets, setup.system)
    return found


class Pace(NamedTuple):
    """How a stage is cut into segments."""

    length: int  # rounds of a compiled segment, at most
    working: int | None  # rows of a working set; None if all are on the device
    where: str  # rows live: 'device', 'host' or 'disk'


def pace(setup: Setup, index: int, rows: PyTree, log: int) -> Pace:
    """Cuts a stage into segments of about the same length between two evaluations.

    On CPUs, which gain nothing by long ones, a segment takes some seconds, so that a
    run can soon be stopped. Elsewhere it takes all rounds between two evaluations. Its
    rows and its logs have to fit the devices.

    Args:
      setup: the run.
      index: which of its stages.
      rows: all clients', arrays or shapes.
      log: bytes of what a round logs of a client.
    """
    stage, data, memory_gb = setup.stages[index], setup.data, setup.memory_gb
    devices = placement.stage_devices(stage, setup.devices)
    memory = hardware.memory(devices) if memory_gb is None else 1e9 * memory_gb
    where = store.chosen(setup.client_store, rows, memory, len(devices))
    if devices[0].platform == "cpu":
        samples = stage.cohort_size * stage.epochs * float(np.mean(data.train.size))
        flops = 6.0 * ledger.macs_per_sample(setup.model.macs) * samples
        most = _SECONDS * _CPU_RATE * len(devices) / max(flops, 1.0)
    else:
        most = _LOG_SHARE * memory / (stage.cohort_size * log)
    if where != "device":
        most = min(most, store.most_rounds(rows, stage.cohort_size, memory))
    interval = min(setup.eval_every, stage.num_rounds)
    segments = math.ceil(interval / max(1, int(most)))
    length = math.ceil(interval / segments)
    size = len(data.train.size), stage.cohort_size, length, len(devices)
    working = None if where == "device" else store.working_size(*size)
    return Pace(length, working, where)


def _whole(name: str, value: int) -> None:
    typed(name, value, int)
    at_least(name, value, 1)


def _check_budgets(budgets: np.ndarray | None, num_clients: int) -> None:
    if budgets is None:
        return
    budgets = np.asarray(budgets)
    if budgets.shape != (num_clients,) or not np.all((budgets > 0) & (budgets <= 1)):
        raise ValueError(
            f"budgets of shape {budgets.shape}, expected one in (0, 1] for each of "
            f"{num_clients} clients"
        )


def _check_system(setup: Setup, num_clients: int) -> None:
    system, hours = setup.system, setup.until.hours
    if system is None:
        if hours is not None:
            raise ValueError(
                f"until.hours={hours:g} is read by nothing here: it goes with a system"
            )
    elif (found := len(system.tier)) != num_clients:
        raise ValueError(
            f"system of {found} clients, expected the number of clients, {num_clients}"
        )
    elif max(stage.cohort_size for stage in setup.stages) == 1:
        for name in ("deadline", "quantile"):
            if (value := getattr(system, name)) is not None:
                raise ValueError(
                    f"{name}={value:g} is read by nothing here: a cohort of one client "
                    "has no deadline, expected cohort_size of at least 2"
                )
