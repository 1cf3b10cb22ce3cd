"""The memory of a stage by part, on all devices together, with every replica.

Arrays that live as long as the stage are known by shape. The working set, which is all
other memory of the stage's program, is known after compilation.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax

from sparsefl_jax.core.check import UserError
from sparsefl_jax.core.formats import format_si
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.system import hardware

FILL = 0.9  # of an accelerator's memory; the rest is a reserve


class Memory(NamedTuple):
    """The memory of a stage."""

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
def explained(memory: Memory, stage: int) -> Iterator[None]:
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
        f"most {format_si(limit, 'B')}: {_list_parts(memory.parts())}"
    )
