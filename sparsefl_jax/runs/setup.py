"""The setup of a run: its parts, their checks, its memory, what privacy it promises."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sparsefl_jax.algorithms.private import promise
from sparsefl_jax.config import build
from sparsefl_jax.config.fields import Config, Limits
from sparsefl_jax.core import types
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.check import UserError, check, unread
from sparsefl_jax.core.formats import format_si
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models.base import Model
from sparsefl_jax.models.measure import Measure, check_measure, find
from sparsefl_jax.models.registry import try_network
from sparsefl_jax.simulation.clock import System
from sparsefl_jax.simulation.rows import STORES
from sparsefl_jax.system import hardware

OF_CONFIG = ("eval_every", "chunk", "metric", "measure", "client_store", "memory_gb")
FILL = 0.9  # of an accelerator's memory; the rest is a reserve


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
      metric: whose accuracy is reported, a name in `judge.METRICS`.
      measure: what is reported, as `measure.find` takes it.
      client_store: where client states are stored, a name in `rows.STORES`; it does
        not change results.
      memory_gb: memory limit of all devices together, in 1e9 bytes. An 'auto' chunk
        stays within it, see `programs`, and an 'auto' store keeps rows on the host if
        they would take more than half of it.
      devices: by default all.
      until: limits that end the run early, with an evaluation at the end.
      initial: the model from which the first stage starts; None for a fresh network.
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
    system: System | None = None
    measure: Measure | str | None = None


class Memory(NamedTuple):
    """The memory of a stage by part, on all devices together, with every replica.

    Arrays that live as long as the stage are known by shape. The working set, which is
    all other memory of the stage's program, is known after compilation.
    """

    fixed: dict[str, int]  # bytes by part, known by shape
    client_store: dict  # 'where' and 'bytes': the clients' rows
    chunk: int  # clients that a device runs at the same time
    working_set: int | None = None  # bytes; None before compilation

    def parts(self) -> dict[str, int]:
        """Returns the bytes by part, the working set only where it is known."""
        if self.working_set is None:
            return dict(self.fixed)
        return self.fixed | {"working set": self.working_set}

    def total(self) -> int:
        """Returns the bytes of all parts that are known."""
        return sum(self.parts().values())


def make(
    stages: Sequence[Stage], model: Model, data: FederatedData, **settings
) -> Setup:
    """Returns a `Setup`; `settings` are its other fields.

    Raises:
      TypeError: there is no such setting.
      ValueError: the network cannot read the samples, see `try_network`.
    """
    return Setup(stages, try_network(data, lambda: model), data, **settings)


def build_setup(config: Config, data: FederatedData) -> Setup:
    """Builds the run of a configuration on its data.

    Args:
      config: as `freeze` returns it.
      data: as `build_data` returns them.
    """
    model = build.build_model(config, data)
    system = build.build_system(config, len(data.train.size))
    budgets = build.build_budgets(config, system)
    return Setup(
        build.build_stages(config, model, budgets, system, data.train.size),
        model,
        data,
        budgets=budgets,
        system=system,
        until=Limits(**config.until),
        **{field: getattr(config, field) for field in OF_CONFIG},
    )


def check_setup(setup: Setup) -> None:
    """Checks that numbers are in range and that the parts fit each other.

    Raises:
      ValueError: they are not, or do not.
    """
    num_clients = len(setup.data.train.size)
    num_seen = np.count_nonzero(setup.data.train.size)
    if not setup.stages:
        raise UserError("stages=[], expected at least one")
    for stage in setup.stages:
        for name in ("num_rounds", "cohort_size", "epochs", "batch_size"):
            check(name, getattr(stage, name), types.Count)
        check("local_steps", stage.local_steps, types.Count | None)
        if stage.local_steps is not None and stage.epochs != 1:
            why = f"local_steps is {stage.local_steps}, expected epochs=1"
            raise unread(f"epochs={stage.epochs}", why)
        if stage.cohort_size > num_seen:
            raise UserError(
                f"cohort_size={stage.cohort_size}, expected at most the number of "
                f"clients that train, {num_seen}"
            )
    check("eval_every", setup.eval_every, types.Count)
    chunk = setup.chunk
    if chunk != "auto" and not (str(chunk).isdecimal() and int(chunk) >= 1):
        raise UserError(f"chunk={chunk!r}, expected 'auto' or a positive integer")
    if setup.budgets is not None:
        shape = np.shape(setup.budgets)
        if shape != (num_clients,):
            raise UserError(f"budgets of shape {shape}, expected ({num_clients},)")
        for value in (np.min(setup.budgets), np.max(setup.budgets)):
            check("budgets", value, "(0, 1]")
    check("until", setup.until, Limits)
    for name, value in setup.until._asdict().items():
        check(f"until.{name}", value, Limits.__annotations__[name])
    check("memory_gb", setup.memory_gb, types.Positive | None)
    check_measure(setup.measure, setup.model, setup.data)
    name = find(setup.measure, setup.data.y).name
    other, right = ("value", "accuracy")[:: 1 if name == "accuracy" else -1]
    if (limit := getattr(setup.until, other)) is not None:
        raise unread(f"until.{other}={limit}", f"{name} has until.{right}")
    _check_system(setup, num_clients)
    guarantee(setup, setup.stages[-1].num_rounds)
    check("client_store", setup.client_store, STORES)


def guarantee(setup: Setup, rounds: int) -> dict[str, Any]:
    """Returns what a private method promises of the released models; {} if none is.

    Args:
      setup: the run.
      rounds: number of rounds of the last stage.

    Raises:
      ValueError: a method is made for another number of clients, or the run is one that
        the accountant does not cover.
    """
    num_clients, found = np.count_nonzero(setup.data.train.size), {}
    for stage in setup.stages:
        clients = stage.algorithm.clients
        if clients not in (None, num_clients):
            raise UserError(
                f"clients={clients}, expected those of the run, {num_clients}"
            )
        if stage.algorithm.privacy is not None:
            _refuse_uncovered(setup)
            promised = num_clients, stage.cohort_size, rounds
            found = promise(stage.algorithm.privacy, *promised)
    return found


def _refuse_uncovered(setup: Setup) -> None:
    """Refuses settings that the accountant of private methods does not cover."""
    if len(setup.stages) > 1:
        raise UserError(
            f"{len(setup.stages)} stages, expected one for a private method"
        )
    given = {"system": setup.system, "budgets": setup.budgets}
    for name, value in (given | {"sampler": setup.stages[0].sampler}).items():
        if value is not None:
            raise UserError(
                f"{name} is set, expected None for a private method: the accountant "
                "knows uniform draws without replacement alone"
            )


def _check_system(setup: Setup, num_clients: int) -> None:
    system, hours = setup.system, setup.until.hours
    if system is None:
        if hours is not None:
            raise unread(f"until.hours={hours:g}", "it needs a system")
    elif (found := len(system.tier)) != num_clients:
        raise UserError(
            f"system of {found} clients, expected the number of clients, {num_clients}"
        )
    elif max(stage.cohort_size for stage in setup.stages) == 1:
        for name in ("deadline", "quantile"):
            if (value := getattr(system, name)) is not None:
                why = "a cohort of one client has no deadline, expected at least two"
                raise unread(f"{name}={value:g}", why)


def smaller(memory: Memory, limit: float, setup: Setup) -> int:
    """Chooses a chunk with which a stage fits, from its memory with another one.

    Args:
      memory: of the compiled stage.
      limit: bytes on all devices together.
      setup: of the run.

    Returns:
      The chunk of `memory` if it fits, else a smaller one, whose memory is known only
      after compilation.

    Raises:
      ValueError: no chunk fits, or the given one exceeds `memory_gb`.
    """
    as_set = setup.chunk != "auto"
    if memory.total() <= limit or (as_set and setup.memory_gb is None):
        return memory.chunk
    room = limit - sum(memory.fixed.values())
    fitting = int(memory.chunk * room // max(memory.working_set or 0, 1))
    fitting = min(memory.chunk - 1, fitting)
    if as_set or fitting < 1:
        raise _too_large(memory, limit)
    return fitting


def memory_limit(memory_gb: float | None, devices: Sequence) -> float | None:
    """Returns the bytes that all devices may hold; None for no limit, as on CPUs."""
    if memory_gb is not None:
        return 1e9 * memory_gb
    if devices[0].platform == "cpu":
        return None
    return FILL * hardware.memory(devices)


def check_fits(memory: Memory, setup: Setup, devices: Sequence) -> None:
    """Checks that the parts that are known so far fit the devices and the host.

    Raises:
      UserError: they do not.
    """
    limit = memory_limit(setup.memory_gb, devices)
    if limit is not None and memory.total() > limit:
        raise _too_large(memory, limit)
    check_host(memory, devices)


def check_host(memory: Memory, devices: Sequence) -> None:
    """Checks that the host's memory suffices: for rows, and on CPUs for all parts.

    Args:
      memory: of a stage.
      devices: all of its devices; the host has those of this process.

    Raises:
      ValueError: it does not.
    """
    parts = {}
    if devices[0].platform == "cpu":
        local = len(hardware.local(devices)) / len(devices)
        parts = {name: int(local * size) for name, size in memory.parts().items()}
    if memory.client_store["where"] == "host":
        parts["clients"] = parts.get("clients", 0) + memory.client_store["bytes"]
    needed, available = sum(parts.values()), hardware.host_memory()
    if needed > available:
        raise UserError(
            f"the host has {format_si(available, 'B')} of memory available, expected "
            f"at least {format_si(needed, 'B')} or client_store='disk': "
            f"{_list_parts(parts)}"
        )


@contextlib.contextmanager
def explain(memory: Memory, stage: int) -> Iterator[None]:
    """Turns a device's out-of-memory error into one line that names the chunk.

    Raises:
      MemoryError: in the place of XLA's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(
            f"out of memory in stage {stage} with chunk={memory.chunk}, expected a "
            "smaller chunk or model"
        ) from error


def _list_parts(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_si(size, 'B')}" for name, size in parts.items())


def _too_large(memory: Memory, limit: float) -> UserError:
    return UserError(
        f"chunk={memory.chunk} takes {format_si(memory.total(), 'B')}, expected at "
        f"most {format_si(limit, 'B')} (memory_gb, or what the devices have): "
        f"{_list_parts(memory.parts())}"
    )
