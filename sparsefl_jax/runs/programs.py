"""The compiled programs of a run: one for each stage, the next while one runs."""

import atexit
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.pool import AsyncResult, ThreadPool  # of daemons
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.validate import one_line
from sparsefl_jax.runs.plan import memory
from sparsefl_jax.runs.progress import waiting
from sparsefl_jax.runs.setup import Pace, Setup, Traced, traced
from sparsefl_jax.simulation import placement, round_program
from sparsefl_jax.system import interrupt, processes


class Parts(NamedTuple):
    """A run, and its stages as traced: what is compiled."""

    setup: Setup
    traced: list[Traced]


def prepared(setup: Setup) -> Parts:
    """Traces the stages of a run, and adds up their memory by shape.

    Raises:
      ValueError: in one line, before any compilation: `setup.traced` refuses the run,
        or its parts do not fit the memory, whatever the working sets take.
    """
    found = []
    for stage, one in zip(setup.stages, traced(setup), strict=True):
        parameters = sum(v.size for v in jax.tree.leaves(one.model.params))
        by_shape = memory.by_shape(setup, stage, parameters, one.state, one.pace)
        found.append(one._replace(memory=by_shape))
    return Parts(setup, found)


class Program(NamedTuple):
    """The compiled program of a stage."""

    plan: placement.Plan
    pace: Pace
    segment: jax.stages.Compiled  # `round_program.make_segment` of `pace.length` rounds
    memory: memory.Memory
    seconds: float  # that compilation took


class Programs:
    """The programs of a run's stages, from the first that is left.

    A process that runs alone compiles the first in a thread while it prepares the rest,
    and each later one while the stage before it runs. Several processes compile at the
    same point of the run, because they have to meet there.

    Args:
      setup: the run.
      traced: what `prepared` gave for it.
      first: the first stage to compile.
      waiting: `(stage, stages, seconds, program)`, called about once a second while
        `of` waits for the program of a stage, which is None, and once it is there.
      interrupted: returns the number of a signal that ends this waiting, or 0.
    """

    def __init__(
        self,
        setup: Setup,
        traced: Sequence[Traced],
        first: int = 0,
        waiting: Callable | None = None,
        interrupted: Callable[[], int] = lambda: 0,
    ):
        self._interrupted = interrupted
        self._waiting = waiting or (lambda stage, stages, seconds, program: None)
        self.setup, self.traced, self._first = setup, traced, first
        self._programs: dict[int, Program] = {}
        self._futures: dict[int, AsyncResult] = {}

    def __enter__(self):
        self._pool = ThreadPool(1)
        self.begin(self._first)
        return self

    def __exit__(self, kind, error, trace):
        """Waits for what is being compiled, unless the run was asked to end."""
        self._pool.close()
        if isinstance(error, Exception | None):
            self._pool.join()
        elif isinstance(error, GeneratorExit):  # whoever iterates has had enough
            atexit.register(self._pool.join)
        else:  # nothing stops a compilation but the end of the process
            atexit.register(self._leave, getattr(error, "code", 1))

    def _leave(self, code: int) -> None:
        if not all(future.ready() for future in self._futures.values()):
            os._exit(code)

    def begin(self, stage: int) -> None:
        """Begins to compile a stage in the thread, if there is such a stage."""
        known = stage in self._futures or stage >= len(self.traced)
        if not known and not processes.several():
            self._futures[stage] = self._pool.apply_async(self._compile, [stage])

    def of(self, stage: int) -> Program:
        """Returns the program of a stage; waits until it is compiled.

        Raises:
          ValueError: it does not fit the memory.
          interrupt.StoppedError: `interrupted` returned a signal.
        """
        if stage not in self._programs:
            begin, stages = time.time(), len(self.traced)
            self.begin(stage)
            with waiting():
                if stage not in self._futures:
                    self._compile(stage)
                while stage in self._futures and not self._futures[stage].ready():
                    self._waiting(stage, stages, time.time() - begin, None)
                    if stop := self._interrupted():
                        said = "ended while compiling, all saved"
                        raise interrupt.StoppedError(said, stop)
                    self._futures[stage].wait(timeout=1)
            self.check()
            self._waiting(stage, stages, time.time() - begin, self._programs[stage])
        return self._programs[stage]

    def check(self) -> None:
        """Raises what the compilation of any stage has raised so far."""
        for future in self._futures.values():
            if future.ready():
                future.get()

    def memory(self, stage: int) -> memory.Memory:
        """Returns the memory of a stage, by shape alone if it is not compiled."""
        return self._programs.get(stage, self.traced[stage]).memory

    def _compile(self, stage: int) -> None:
        self._programs[stage] = compile_stage(self.setup, stage, self.traced[stage])


def compile_stage(setup: Setup, index: int, traced: Traced) -> Program:
    """Compiles a stage for all its segments, with a chunk that fits the memory.

    Args:
      setup: the run.
      index: which of its stages.
      traced: a round of that by shape.

    Raises:
      ValueError: it does not fit, however small the chunk.
    """
    stage, strict = setup.stages[index], setup.memory_gb is not None
    devices = placement.stage_devices(stage, setup.devices)
    # Chunk and pace are by the memory of process 0, which may not be that of another.
    limit, chunk = processes.lead(
        [memory.budget(setup.memory_gb, devices), traced.memory.chunk]
    )
    pace = Pace(*processes.lead(traced.pace))
    layers = jax.tree.map(lambda m: m > 0, setup.model.macs)
    while True:
        begin, observed = time.time(), bool(setup.observed(index))
        macs = setup.model.macs
        plan = placement.make_plan(stage, layers, devices, chunk, observed, macs)
        segment = jax.jit(round_program.make_segment(plan), donate_argnums=2)
        try:
            compiled = segment.lower(*_arguments(setup, plan, pace, traced)).compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            # A TPU's compiler refuses what its memory cannot hold.
            if setup.chunk != "auto" or plan.chunk == 1:
                raise ValueError(
                    f"chunk={plan.chunk} does not fit a device's memory in stage "
                    f"{index}, expected a smaller one or a smaller model "
                    f"({one_line(error)})"
                ) from error
            chunk = plan.chunk // 2
            continue
        needed = traced.memory._replace(chunk=plan.chunk)
        needed = memory.of_program(needed, compiled, len(devices))
        if limit is not None:
            chunk = memory.smaller(needed, limit, setup.chunk, strict)
        if chunk == plan.chunk:
            memory.check_host(needed, devices)
            return Program(plan, pace, compiled, needed, time.time() - begin)


def _arguments(setup: Setup, plan: placement.Plan, pace: Pace, traced: Traced) -> tuple:
    """Returns the shapes of what a segment is called with."""

    def replicated(leaf):
        sharding = NamedSharding(plan.mesh, P())
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    shape, state = jax.ShapeDtypeStruct, traced.state
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
    population = jax.tree.map(replicated, population)
    state = jax.tree.map(
        lambda v, sharding: shape(v.shape, v.dtype, sharding=sharding),
        state,
        placement.shardings(plan, state),
    )
    rounds, ids = shape((pace.length,), jnp.int32), shape(cohort, jnp.int32)
    return key, population, state, rounds, ids, places, shape((), jnp.int32)
