"""Bytes of a stage by part before anything is compiled, and the chunk that they allow.

A part counts on all devices together; replicas count as often as they stand. What one
client's work takes is estimated from its traced round, see `liveness`; that is compared
with compiled programs in `tests/memory_test.py`.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from sparsefl_jax.core.algorithm import Algorithm
from sparsefl_jax.core.formats import format_si
from sparsefl_jax.core.types import Batches, Context
from sparsefl_jax.runs import segment_lengths
from sparsefl_jax.runs.plan import liveness
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import initial_state, placement, store
from sparsefl_jax.system import hardware

FILL = 0.9  # of an accelerator's memory; the rest is for what is not estimated
REMEDIES = {  # what makes a part smaller
    "population": "fewer training samples",
    "test set": "fewer test samples",
    "clients": "--config.client_store=host or fewer clients",
    "server": "a smaller model",
    "sum": "a smaller model",
    "working set": "a smaller batch_size or model",
}
HOST_REMEDIES = REMEDIES | {
    "clients": "--config.client_store=disk or fewer clients",
    "working set": "a smaller chunk, batch_size or model",
}


class ClientWork(NamedTuple):
    """A client's part of a round by shape; arguments that clients share come first."""

    function: Callable  # (*shared, *own) -> (down, up, summand, ...)
    shared: tuple  # round, steps, server
    own: tuple  # key, row, round of the last part, facts, samples, their order


class Memory(NamedTuple):
    """The memory of a stage; `fixed` does not depend on the chunk."""

    fixed: dict[str, int]  # bytes by part
    client: int  # bytes while one client trains alone on its device
    batched: int  # bytes of each of several that train together
    devices: int
    share: int  # clients of a cohort on one device, the largest chunk
    client_store: dict  # 'where', 'bytes' and 'working': the clients' rows
    chunk: int = 1  # that was chosen

    def parts(self, chunk: int | None = None) -> dict[str, int]:
        """Returns bytes by part, by default with the chosen chunk."""
        chunk = chunk or self.chunk
        each = self.client if chunk == 1 else self.batched
        return self.fixed | {"working set": self.devices * chunk * each}

    def total(self, chunk: int | None = None) -> int:
        """Returns the bytes of all parts."""
        return sum(self.parts(chunk).values())


def client_function(method: Algorithm) -> Callable:
    """Returns one client's part of a round as `ClientWork` holds it, for tracing."""

    def function(round, steps, server, key, row, last_round, info, *samples):
        ctx = Context(round, last_round, info)
        down = method.broadcast(key, ctx, server)
        batches = Batches(*samples, steps)
        up, row, metrics = method.update(key, ctx, down, row, batches)
        return down, up, method.contribute(ctx, up), row, metrics

    return function


def of_stage(setup: Setup, stage, sparse, work: ClientWork) -> Memory:
    """Estimates the memory of a stage and chooses its chunk.

    Args:
      setup: the run.
      stage: one of its stages.
      sparse: what the stage starts from, arrays or shapes.
      work: of one of its clients.

    Raises:
      ValueError: it does not fit.
    """
    data, memory_gb, chunk = setup.data, setup.memory_gb, setup.chunk
    plan = placement.make_plan(stage, {}, setup.devices, 1)
    info = placement.client_info(data, setup.budgets)
    num_devices = plan.mesh.size
    state = initial_state.shapes(stage.algorithm, sparse, info)
    paced = segment_lengths.pace(setup, plan, state.clients)
    rows = store.num_bytes(state.clients)
    clients = store.device_bytes(state.clients, num_devices)
    if paced.working is not None:  # the next segment's are fetched while one runs
        clients = 2 * paced.working * (rows // info.index.size)
    population = data.x.nbytes + data.y.nbytes + data.train.index.nbytes
    client, summand = _working_set(work)
    limit = budget(memory_gb, plan.mesh.devices.flat)
    share = -(-stage.cohort_size // num_devices)
    memory = Memory(
        fixed={
            "population": num_devices * (population + 12 * info.index.size),
            "test set": data.x_test.nbytes + data.y_test.nbytes,
            "clients": clients,
            "server": num_devices * store.num_bytes(state.server),
            "sum": num_devices * summand,
        },
        client=client,
        batched=client,
        devices=num_devices,
        share=share,
        client_store={
            "where": paced.where,
            "bytes": rows,
            "working": paced.working,
        },
    )
    several = limit is not None if chunk == "auto" else int(chunk) > 1
    if share > 1 and several:
        memory = memory._replace(batched=_working_set(work, 2)[0])
    chosen = choose(memory, chunk, limit, strict=memory_gb is not None)
    memory = memory._replace(chunk=chosen)
    check_host(memory, plan.mesh.devices.flat)
    return memory


def budget(memory_gb: float | None, devices) -> float | None:
    """Returns the bytes that all devices may hold; None for no limit, as on CPUs."""
    if memory_gb is not None:
        return 1e9 * memory_gb
    devices = list(devices)
    if devices[0].platform == "cpu":
        return None
    return FILL * hardware.memory(devices)


def check_host(memory: Memory, devices) -> None:
    """Refuses what the host cannot hold: rows, and on CPUs the devices too.

    Args:
      memory: of a stage.
      devices: all of its devices; the host has those of this process.

    Raises:
      ValueError: names the largest part.
    """
    devices, parts = list(devices), {}
    if devices[0].platform == "cpu":
        own = len(hardware.local(devices)) / len(devices)
        parts = {name: int(own * size) for name, size in memory.parts().items()}
        parts["working set"] //= 2  # estimated at up to 1.8 times what it is
    if memory.client_store["where"] == "host":
        parts["clients"] = parts.get("clients", 0) + memory.client_store["bytes"]
    needed, there = sum(parts.values()), hardware.host_memory()
    if needed > there:
        part = max(parts, key=parts.get)
        raise ValueError(
            f"the host has {format_si(there, 'B')} of memory available, expected at "
            f"least {format_si(needed, 'B')}; the largest part is {part}, "
            f"{format_si(parts[part], 'B')}: try {HOST_REMEDIES[part]}"
        )


def choose(
    memory: Memory, chunk: int | str, limit: float | None, strict: bool = True
) -> int:
    """Chooses the chunk: 1 without a limit, else the largest that fits.

    Args:
      memory: of the stage.
      chunk: 'auto', or a number, which stays.
      limit: bytes on all devices together, None for no limit.
      strict: whether a given chunk that does not fit is refused, too.

    Raises:
      ValueError: not even one client fits, or the given chunk does not; it names the
        largest part.

    Example:
      >>> fixed = {"server": 100, "sum": 20}
      >>> memory = Memory(fixed, 50, 60, devices=1, share=8, client_store={})
      >>> choose(memory, "auto", None), choose(memory, "auto", 500)
      (1, 6)
      >>> choose(memory, "auto", 150)
      Traceback (most recent call last):
        ...
      ValueError: memory_gb=1.5e-07, expected at least 1.7e-07 for one client at a
      time; the largest part is server, 100 B: try a smaller model
    """
    if limit is None:
        return 1 if chunk == "auto" else min(int(chunk), memory.share)
    sizes = range(memory.share, 0, -1)
    fitting = next((c for c in sizes if memory.total(c) <= limit), 0)
    given = None if chunk == "auto" else min(int(chunk), memory.share)
    if given is not None and (given <= fitting or not strict):
        return given
    if not fitting:
        parts = memory.parts(1)
        part = max(parts, key=parts.get)
        raise ValueError(
            f"memory_gb={limit / 1e9:.3g}, expected at least "
            f"{memory.total(1) / 1e9:.3g} for one client at a time; the largest part "
            f"is {part}, {format_si(parts[part], 'B')}: try {_remedy(memory, part)}"
        )
    if given is not None:
        raise ValueError(
            f"chunk={given}, expected at most {fitting} to fit memory_gb="
            f"{limit / 1e9:.3g}"
        )
    return fitting


@contextlib.contextmanager
def explained(memory: Memory, stage: int) -> Iterator[None]:
    """Turns a device's out-of-memory error into one line that suggests a chunk.

    Raises:
      MemoryError: in the place of XLA's error, with this stage's chunk.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(advice(memory, stage)) from error


def advice(memory: Memory, stage: int) -> str:
    """Suggests, in one line, what to change about a stage that did not fit.

    The half of its chunk, and less where that would not fit the devices either.
    """
    chunk, taken = memory.chunk, format_si(memory.total(), "B")
    told = f"out of memory in stage {stage} with chunk={chunk}, estimated at {taken}"
    if chunk == 1:
        parts = memory.parts()
        part = max(parts, key=parts.get)
        size = format_si(parts[part], "B")
        remedy = _remedy(memory, part)
        return f"{told}; the largest part is {part}, {size}: try {remedy}"
    half = chunk // 2
    return f"{told}; --config.chunk={half} takes {format_si(memory.total(half), 'B')}"


def _remedy(memory: Memory, part: str) -> str:
    """Suggests what makes a part smaller."""
    if part == "clients" and memory.client_store.get("working"):
        return "a smaller cohort_size or model"
    return REMEDIES[part]


def _working_set(work: ClientWork, together: int = 1) -> tuple[int, int]:
    """Estimates the bytes of a training client, alone or batched, and its summand."""
    function, own = work.function, work.own
    if together > 1:
        axes = (None,) * len(work.shared) + (0,) * len(own)
        function = jax.vmap(function, axes)
        own = jax.tree.map(
            lambda v: jax.ShapeDtypeStruct((together, *v.shape), v.dtype), own
        )
    trace = jax.make_jaxpr(function, return_shape=True)
    jaxpr, (_, _, summand, *_) = trace(*work.shared, *own)
    peak = liveness.peak_bytes(jaxpr.jaxpr) + store.num_bytes(own)
    return peak // together, store.num_bytes(summand)
