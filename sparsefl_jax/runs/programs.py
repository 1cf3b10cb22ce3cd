"""The compiled programs of a run: one for each stage, compiled while another one runs.

The memory of a stage is counted by part, on all devices together, with every replica.
Arrays that live as long as the stage are known by shape. The working set, which is all
other memory of the stage's program, is known after compilation.
"""

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import AsyncResult, ThreadPool  # of daemons
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.formats import format_si
from sparsefl_jax.core.validate import one_line
from sparsefl_jax.models.programs import in_turn
from sparsefl_jax.runs.progress import WAITING
from sparsefl_jax.runs.setup import Pace, Setup, Traced, traced
from sparsefl_jax.simulation import placement, round_program, store
from sparsefl_jax.simulation.evaluate import resolved
from sparsefl_jax.simulation.personal import kept
from sparsefl_jax.system import hardware, interrupt, processes
from sparsefl_jax.wire import ledger

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

    def total(self, chunk: int | None = None) -> int:
        """Returns the bytes of all parts, by default with the chosen chunk.

        With another chunk, the working set is scaled in proportion.
        """
        share = 1.0 if chunk is None else chunk / self.chunk
        return sum(self.fixed.values()) + int(share * (self.working_set or 0))

    def largest(self) -> str:
        """Describes the largest part with a chunk of 1."""
        parts = self.parts()
        if self.working_set is not None:
            parts["working set"] //= self.chunk
        return _largest(parts)


class Parts(NamedTuple):
    """A run and its traced stages, ready to be compiled."""

    setup: Setup
    traced: list[Traced]


class Program(NamedTuple):
    """The compiled program of a stage."""

    plan: placement.Plan
    segment: jax.stages.Compiled  # `round_program.make_segment` of `pace.length` rounds
    traced: Traced  # with the pace of process 0 and the memory of the program


def prepared(setup: Setup) -> Parts:
    """Traces the stages of a run, and adds up their memory by shape.

    Raises:
      ValueError: before any compilation, if `runs.setup.traced` fails or the parts do
        not fit into memory even without the working sets.
    """
    stages = enumerate(traced(setup))
    return Parts(setup, [t._replace(memory=by_shape(setup, i, t)) for i, t in stages])


def by_shape(setup: Setup, index: int, traced: Traced) -> Memory:
    """Adds up the memory of a stage before it is compiled, and chooses its chunk.

    'auto' is 1 where clients run faster one after another, as on CPUs, see
    `models.programs`. Otherwise it is all clients that a device has in a round;
    `smaller` reduces it if the compiled program does not fit into memory.
    """
    stage, data, chunk = setup.stages[index], setup.data, setup.chunk
    devices = placement.stage_devices(stage, setup.devices)
    num_clients, share = len(data.train.size), -(-stage.cohort_size // len(devices))
    if chunk == "auto":
        parameters = sum(leaf.size for leaf in jax.tree.leaves(traced.model.params))
        macs = ledger.macs_per_sample(setup.model) * stage.batch_size
        chunk = 1 if in_turn(devices[0].platform, parameters, macs) else share
    state, pace = traced.state, traced.pace
    rows = store.num_bytes(state.clients)
    clients = store.device_bytes(state.clients, len(devices))
    if pace.working is not None:
        clients = pace.working * (rows // num_clients)
    population = data.x.nbytes + data.y.nbytes + data.train.index.nbytes
    held = setup.model.held.entries
    by_client = resolved(setup.metric, [stage]) == "clients"
    by_client = by_client and kept(stage.algorithm, setup.model)
    copies = len(devices) if by_client else 1  # else it is divided
    memory = Memory(
        fixed={
            "population": len(devices) * (population + 12 * num_clients),
            "test set": copies * (data.x_test.nbytes + data.y_test.nbytes),
            "clients": clients,
            "server": len(devices) * store.num_bytes(state.server),
        }
        | ({"frozen weights": len(devices) * 4 * held} if held else {}),
        client_store={"where": pace.where, "bytes": rows},
        chunk=min(int(chunk), share),
    )
    limit = memory_limit(setup.memory_gb, devices)
    if limit is not None and memory.total() > limit:
        raise ValueError(_too_large(memory, limit, setup.memory_gb))
    check_host(memory, devices)
    return memory


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
      ValueError: no chunk fits, or the given one exceeds `memory_gb`; the message names
        the largest part.
    """
    as_set = setup.chunk != "auto"
    if memory.total() <= limit or (as_set and setup.memory_gb is None):
        return memory.chunk
    room = limit - sum(memory.fixed.values())
    fitting = int(memory.chunk * room // max(memory.working_set or 0, 1))
    fitting = min(memory.chunk - 1, max(fitting, 0))
    if not fitting:
        raise ValueError(_too_large(memory, limit, setup.memory_gb))
    if as_set:
        raise ValueError(
            f"chunk={setup.chunk}, expected at most {fitting} to fit memory_gb="
            f"{limit / 1e9:.3g}"
        )
    return fitting


def memory_limit(memory_gb: float | None, devices: Sequence) -> float | None:
    """Returns the bytes that all devices may hold; None for no limit, as on CPUs."""
    if memory_gb is not None:
        return 1e9 * memory_gb
    if devices[0].platform == "cpu":
        return None
    return FILL * hardware.memory(devices)


def check_host(memory: Memory, devices: Sequence) -> None:
    """Checks that the host's memory suffices: for rows, and on CPUs for all parts.

    Args:
      memory: of a stage.
      devices: all of its devices; the host has those of this process.

    Raises:
      ValueError: it does not; the message names the largest part.
    """
    parts = {}
    if devices[0].platform == "cpu":
        local = len(hardware.local(devices)) / len(devices)
        parts = {name: int(local * size) for name, size in memory.parts().items()}
    if memory.client_store["where"] == "host":
        parts["clients"] = parts.get("clients", 0) + memory.client_store["bytes"]
    needed, available = sum(parts.values()), hardware.host_memory()
    if needed > available:
        raise ValueError(
            f"the host has {format_si(available, 'B')} of memory available, expected "
            f"at least {format_si(needed, 'B')}, or client_store='disk' or a smaller "
            f"chunk or num_clients; {_largest(parts)}"
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
        remedy = memory.largest()
        if half := memory.chunk // 2:
            remedy = f"chunk={half} takes {format_si(memory.total(half), 'B')}"
        raise MemoryError(
            f"out of memory in stage {stage} with chunk={memory.chunk}, which takes "
            f"{format_si(memory.total(), 'B')}; {remedy}"
        ) from error


def _largest(parts: dict[str, int]) -> str:
    part = max(parts, key=parts.get)
    return f"the largest part is {part}, {format_si(parts[part], 'B')}"


def _too_large(memory: Memory, limit: float, memory_gb: float | None) -> str:
    size = format_si(limit, "B")
    given = f"memory_gb={memory_gb:g}" if memory_gb else f"the devices hold {size}"
    return (
        f"{given}, expected at least {format_si(memory.total(1), 'B')} for one client "
        f"at a time; {memory.largest()}"
    )


def compile_stage(setup: Setup, index: int, traced: Traced) -> Program:
    """Compiles a stage for all its segments, with a chunk that fits the memory.

    Args:
      setup: the run.
      index: which of its stages.
      traced: a round of it by shape, with its memory.

    Raises:
      ValueError: it does not fit, however small the chunk.
    """
    stage, model = setup.stages[index], setup.model
    devices = placement.stage_devices(stage, setup.devices)
    # Process 0 decides the chunk and the pace, as the others may have other memory.
    mine = memory_limit(setup.memory_gb, devices), traced.memory.chunk, traced.pace
    limit, chunk, pace = processes.lead(mine)
    pace = Pace(*pace)
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    observed, macs, held = bool(setup.observed(index)), model.macs, model.held
    while True:
        plan = placement.make_plan(stage, layers, devices, chunk, observed, macs, held)
        segment = jax.jit(round_program.make_segment(plan), donate_argnums=2)
        try:
            compiled = segment.lower(*_arguments(setup, plan, pace, traced)).compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            # A TPU's compiler refuses what its memory cannot hold.
            if setup.chunk != "auto" or chunk == 1:
                raise ValueError(
                    f"chunk={chunk} does not fit a device's memory in stage {index}, "
                    f"expected a smaller one or a smaller model ({one_line(error)})"
                ) from error
            chunk //= 2
            continue
        analysis = compiled.memory_analysis()
        # Results take the place of arguments. Buffers of collectives are not counted.
        beside = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        beside += analysis.temp_size_in_bytes
        needed = traced.memory._replace(chunk=chunk, working_set=len(devices) * beside)
        if limit is not None:
            chunk = smaller(needed, limit, setup)
        if chunk == plan.chunk:
            check_host(needed, devices)
            return Program(plan, compiled, traced._replace(pace=pace, memory=needed))


def _arguments(setup: Setup, plan: placement.Plan, pace: Pace, traced: Traced) -> tuple:
    """Returns the shapes of what a segment is called with."""
    shape, state = jax.ShapeDtypeStruct, traced.state

    def placed(leaf, sharding):
        return shape(leaf.shape, leaf.dtype, sharding=sharding)

    population = placement.on_host(setup.data, setup.budgets, traced.clock)
    cohort = pace.length, plan.stage.cohort_size
    places = None
    if pace.working is not None:
        places = shape(cohort, jnp.int32)
        rows = jax.tree.map(
            lambda v: shape((pace.working, *v.shape[1:]), v.dtype), state.clients
        )
        state = state._replace(clients=rows)
    key = jax.eval_shape(lambda: jax.random.key(0))
    everywhere = NamedSharding(plan.mesh, P())
    population = jax.tree.map(lambda leaf: placed(leaf, everywhere), population)
    state = jax.tree.map(placed, state, placement.shardings(plan, state))
    rounds, ids = shape((pace.length,), jnp.int32), shape(cohort, jnp.int32)
    return key, population, state, rounds, ids, places, shape((), jnp.int32)


class Programs:
    """The programs of a run's stages, from the first that is left.

    A single process compiles the first one in a thread while it prepares the rest, and
    each later one while the stage before it runs. Several processes compile at the same
    point of the run, because they have to synchronise.

    Args:
      setup, traced: as `prepared` returned them.
      waiting: `(stage, stages, seconds)`, called about once a second while `of` waits
        for the program of a stage.
      interrupted: returns the number of a signal that ends this waiting, or 0.
    """

    def __init__(
        self,
        setup: Setup,
        traced: Sequence[Traced],
        waiting: Callable = lambda stage, stages, seconds: None,
        interrupted: Callable[[], int] = lambda: 0,
    ):
        self._waiting, self._interrupted = waiting, interrupted
        self.setup, self.traced = setup, list(traced)  # with memory, once compiled
        self._programs: dict[int, Program] = {}
        self._futures: dict[int, AsyncResult] = {}

    def __enter__(self):
        self._pool = ThreadPool(1)
        return self

    def __exit__(self, kind, error, trace):
        """Waits for what is being compiled, unless the run was asked to end."""
        self._pool.close()
        if isinstance(error, Exception | None):
            self._pool.join()
        elif isinstance(error, GeneratorExit):  # the caller stopped iterating
            atexit.register(self._pool.join)
        else:  # nothing stops a compilation but the end of the process
            atexit.register(self._leave, getattr(error, "code", 1))

    def _leave(self, code: int) -> None:
        if not all(future.ready() for future in self._futures.values()):
            os._exit(code)

    def begin(self, stage: int) -> None:
        """Starts to compile a stage in the thread, if there is such a stage."""
        known = stage in self._futures or stage >= len(self.traced)
        if not known and not processes.several():
            self._futures[stage] = self._pool.apply_async(self._compile, [stage])

    def of(self, stage: int, round: int = 0) -> Program:
        """Returns the program of a stage; waits until it is compiled.

        Args:
          stage: its index.
          round: completed rounds of it, which a checkpoint holds.

        Raises:
          ValueError: it does not fit the memory.
          interrupt.StoppedError: `interrupted` returned a signal.
        """
        if stage not in self._programs:
            begin, stages = time.time(), len(self.traced)
            self.begin(stage)
            if stage not in self._futures:
                self._compile(stage)
            while stage in self._futures and not self._futures[stage].ready():
                self._waiting(stage, stages, time.time() - begin)
                if stop := self._interrupted():
                    begun = stage or round
                    left = "all saved" if begun else "no round done: it will begin anew"
                    raise interrupt.StoppedError(f"ended while compiling, {left}", stop)
                self._futures[stage].wait(timeout=1)
            self.check()
            jax.monitoring.record_event_time_span(WAITING, begin, time.time())
        return self._programs[stage]

    def check(self) -> None:
        """Raises the first error of a compilation, if there is one."""
        for future in self._futures.values():
            if future.ready():
                future.get()

    def _compile(self, stage: int) -> None:
        program = compile_stage(self.setup, stage, self.traced[stage])
        self._programs[stage], self.traced[stage] = program, program.traced
