"""Bytes of a stage by part, and the chunk of clients that they allow.

A part counts on all devices together; replicas count as often as they stand. What lives
as long as the stage is known by shape. The working set, which is all that the stage's
program takes beside these, is known once it is compiled, see `runs.programs`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.formats import format_si
from sparsefl_jax.models import programs
from sparsefl_jax.runs.setup import Pace, Setup
from sparsefl_jax.simulation import placement, store
from sparsefl_jax.system import hardware
from sparsefl_jax.wire import ledger

FILL = 0.9  # of an accelerator's memory; the rest is for what no program counts
REMEDIES = {  # what makes a part smaller
    "population": "fewer training samples",
    "test set": "fewer test samples",
    "clients": "--config.client_store=host or fewer clients",
    "server": "a smaller model",
    "working set": "a smaller batch_size or model",
}
HOST_REMEDIES = REMEDIES | {
    "clients": "--config.client_store=disk or fewer clients",
    "working set": "a smaller chunk, batch_size or model",
}


class Memory(NamedTuple):
    """The memory of a stage."""

    fixed: dict[str, int]  # bytes by part, known by shape
    client_store: dict  # 'where', 'bytes' and 'working': the clients' rows
    chunk: int  # clients that a device runs at a time
    working_set: int | None = None  # bytes; None before compilation

    def parts(self) -> dict[str, int]:
        """Returns the bytes by part, the working set only where it is known."""
        if self.working_set is None:
            return dict(self.fixed)
        return self.fixed | {"working set": self.working_set}

    def total(self, chunk: int | None = None) -> int:
        """Returns the bytes of all parts, by default with the chosen chunk.

        With another chunk the working set counts in proportion.
        """
        share = 1.0 if chunk is None else chunk / self.chunk
        return sum(self.fixed.values()) + int(share * (self.working_set or 0))


def by_shape(
    setup: Setup, stage: Stage, parameters: int, state: placement.State, pace: Pace
) -> Memory:
    """Computes the memory of a stage before it is compiled.

    The chunk is the one asked for. 'auto' is 1 where clients run faster one after
    another, see `models.programs`, as on CPUs. Otherwise it is all clients that a
    device has in a round; `smaller` reduces it if the compiled program does not fit.

    Args:
      setup: the run.
      stage: one of its stages.
      parameters: of the network.
      state: the shapes of its state.
      pace: of its segments.

    Raises:
      ValueError: the parts do not fit, whatever the working set takes.
    """
    data, num_clients = setup.data, len(setup.data.train.size)
    devices = placement.stage_devices(stage, setup.devices)
    rows = store.num_bytes(state.clients)
    clients = store.device_bytes(state.clients, len(devices))
    if pace.working is not None:  # the next segment's are fetched while one runs
        clients = 2 * pace.working * (rows // num_clients)
    population = data.x.nbytes + data.y.nbytes + data.train.index.nbytes
    share = -(-stage.cohort_size // len(devices))
    limit = budget(setup.memory_gb, devices)
    chunk = setup.chunk
    if chunk == "auto":
        macs = ledger.macs_per_sample(setup.model.macs) * stage.batch_size
        in_turn = programs.in_turn(devices[0].platform, parameters, macs)
        chunk = 1 if in_turn else share
    memory = Memory(
        fixed={
            "population": len(devices) * (population + 12 * num_clients),
            "test set": data.x_test.nbytes + data.y_test.nbytes,
            "clients": clients,
            "server": len(devices) * store.num_bytes(state.server),
        },
        client_store={"where": pace.where, "bytes": rows, "working": pace.working},
        chunk=min(int(chunk), share),
    )
    if limit is not None and memory.total() > limit:
        raise ValueError(_too_large(memory, limit))
    check_host(memory, devices)
    return memory


def of_program(
    memory: Memory, compiled: jax.stages.Compiled, num_devices: int
) -> Memory:
    """Adds what a compiled program takes beside its arguments.

    That is its results but for those that take the place of an argument, and its
    temporaries. Buffers of collectives are not in it.

    Args:
      memory: of the stage by shape.
      compiled: its program for one device.
      num_devices: how many devices run it.
    """
    analysis = compiled.memory_analysis()
    beside = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    beside += analysis.temp_size_in_bytes
    return memory._replace(working_set=num_devices * beside)


def smaller(memory: Memory, limit: float, asked: int | str, strict: bool) -> int:
    """Chooses the chunk with which a stage fits, from what it takes with another one.

    Args:
      memory: of the compiled stage.
      limit: bytes on all devices together.
      asked: the chunk that the user asked for, or 'auto'.
      strict: whether a chunk that was asked for and does not fit is refused.

    Returns:
      The chunk of `memory` if it fits, else a smaller one, which has to be compiled to
      know whether it fits.

    Raises:
      ValueError: no chunk fits; it names the largest part.

    Example:
      >>> memory = Memory({"server": 100}, {}, chunk=8, working_set=400)
      >>> [smaller(memory, limit, "auto", True) for limit in (500, 499, 200)]
      [8, 7, 2]
      >>> smaller(memory, 140, "auto", True)
      Traceback (most recent call last):
        ...
      ValueError: memory_gb=1.4e-07, expected at least 1.5e-07 for one client at a
      time; the largest part is server, 100 B: try a smaller model
    """
    if memory.total() <= limit or (asked != "auto" and not strict):
        return memory.chunk
    room = limit - sum(memory.fixed.values())
    fitting = int(memory.chunk * room // max(memory.working_set or 0, 1))
    fitting = min(memory.chunk - 1, max(fitting, 0))
    if asked != "auto" and fitting:
        raise ValueError(
            f"chunk={asked}, expected at most {fitting} to fit memory_gb="
            f"{limit / 1e9:.3g}"
        )
    if not fitting:
        raise ValueError(_too_large(memory, limit))
    return fitting


def budget(memory_gb: float | None, devices: Sequence) -> float | None:
    """Returns the bytes that all devices may hold; None for no limit, as on CPUs."""
    if memory_gb is not None:
        return 1e9 * memory_gb
    if devices[0].platform == "cpu":
        return None
    return FILL * hardware.memory(devices)


def check_host(memory: Memory, devices: Sequence) -> None:
    """Refuses what the host cannot hold: rows, and on CPUs the devices' parts too.

    Args:
      memory: of a stage.
      devices: all of its devices; the host has those of this process.

    Raises:
      ValueError: names the largest part.
    """
    parts = {}
    if devices[0].platform == "cpu":
        local = len(hardware.local(devices)) / len(devices)
        parts = {name: int(local * size) for name, size in memory.parts().items()}
    if memory.client_store["where"] == "host":
        parts["clients"] = parts.get("clients", 0) + memory.client_store["bytes"]
    needed, available = sum(parts.values()), hardware.host_memory()
    if needed > available:
        part = max(parts, key=parts.get)
        raise ValueError(
            f"the host has {format_si(available, 'B')} of memory available, expected "
            f"at least {format_si(needed, 'B')}; the largest part is {part}, "
            f"{format_si(parts[part], 'B')}: try {HOST_REMEDIES[part]}"
        )


@contextlib.contextmanager
def explained(memory: Memory, stage: int) -> Iterator[None]:
    """Turns a device's out-of-memory error into one line that suggests half the chunk.

    Raises:
      MemoryError: in the place of XLA's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        remedy = _largest(memory)
        if half := memory.chunk // 2:
            size = format_si(memory.total(half), "B")
            remedy = f"--config.chunk={half} takes {size}"
        raise MemoryError(
            f"out of memory in stage {stage} with chunk={memory.chunk}, which takes "
            f"{format_si(memory.total(), 'B')}; {remedy}"
        ) from error


def _too_large(memory: Memory, limit: float) -> str:
    least = memory.total(1)
    return (
        f"memory_gb={limit / 1e9:.3g}, expected at least {least / 1e9:.3g} for one "
        f"client at a time; {_largest(memory)}"
    )


def _largest(memory: Memory) -> str:
    """Names the largest part with a chunk of 1, and what makes it smaller."""
    parts = memory.parts()
    if memory.working_set is not None:
        parts["working set"] //= memory.chunk
    part = max(parts, key=parts.get)
    remedy = REMEDIES[part]
    if part == "clients" and memory.client_store.get("working"):
        remedy = "a smaller cohort_size or model"
    size = format_si(parts[part], "B")
    return f"the largest part is {part}, {size}: try {remedy}"
