"""The compiled programs of a run: one a stage, compiled while another one runs."""

import atexit
import os
import time
from collections.abc import Callable
from multiprocessing.pool import AsyncResult, ThreadPool  # of daemons
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sparsefl_jax.core.check import UserError, one_line
from sparsefl_jax.core.types import PyTree
from sparsefl_jax.runs.plan import Pace, Plan, StagePlan
from sparsefl_jax.runs.setup import Memory, Setup, check_host, memory_limit, smaller
from sparsefl_jax.simulation import clock, placement, round_program
from sparsefl_jax.system import interrupt, processes
from sparsefl_jax.system.progress import WAITING


class Compiled(NamedTuple):
    """The compiled program of a stage."""

    plan: placement.Plan
    segment: jax.stages.Compiled  # of `pace.length` rounds, with a packed log
    log: PyTree  # of a segment, by shape
    pace: Pace  # of process 0
    memory: Memory  # with the working set


def compile_stage(run: Plan, index: int) -> Compiled:
    """Compiles a stage for all its segments, with a chunk that fits the memory.

    Args:
      run: the plan of the run.
      index: which of its stages.

    Raises:
      ValueError: it does not fit, with the chunk that is set or with any.
    """
    setup, planned = run.setup, run.stages[index]
    stage, model = setup.stages[index], setup.model
    devices = placement.stage_devices(stage, setup.devices)
    # Process 0 decides the chunk and the pace, as the others may have other memory.
    mine = memory_limit(setup.memory_gb, devices), planned.memory.chunk, planned.pace
    limit, chunk, pace = processes.lead(mine)
    pace = Pace(*pace)
    full = clock.presence(setup.system, setup.data.train.size) is None
    facts = model.macs, model.frozen, setup.data.train.size if full else None
    while True:
        plan = placement.make_plan(stage, model.layers, devices, chunk, *facts)
        lowered, log = _lower(plan, _arguments(setup, plan, pace, planned))
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            # A TPU's compiler refuses what its memory cannot hold.
            if setup.chunk != "auto" or chunk == 1:
                raise UserError(
                    f"chunk={chunk} does not fit a device's memory in stage {index}, "
                    f"expected a smaller one or a smaller model ({one_line(error)})"
                ) from error
            chunk //= 2
            continue
        analysis = compiled.memory_analysis()
        # Results take the place of arguments. Buffers of collectives are not counted.
        beside = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        beside += analysis.temp_size_in_bytes
        needed = planned.memory._replace(chunk=chunk, working_set=len(devices) * beside)
        if limit is not None:
            chunk = smaller(needed, limit, setup)
        if chunk == plan.chunk:
            check_host(needed, devices)
            return Compiled(plan, compiled, log, pace, needed)


def _lower(plan: placement.Plan, arguments: tuple) -> tuple[jax.stages.Lowered, PyTree]:
    """Lowers a segment with a packed log; returns it, and the log by shape."""
    segment, logs = round_program.make_segment(plan), []

    def packed(*given):
        state, log = segment(*given)
        logs[:] = [jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), log)]
        return state, round_program.pack_log(log)

    lowered = jax.jit(packed, donate_argnums=2).lower(*arguments)
    return lowered, logs[0]


def _arguments(
    setup: Setup, plan: placement.Plan, pace: Pace, planned: StagePlan
) -> tuple:
    """Returns the shapes of what a segment is called with."""
    shape, state = jax.ShapeDtypeStruct, planned.state

    def placed(leaf, sharding):
        return shape(leaf.shape, leaf.dtype, sharding=sharding)

    population = placement.on_host(setup.data, setup.budgets, planned.clock)
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
    rates = plan.stage.algorithm.rates(np.arange(pace.length))
    return key, population, state, rounds, ids, places, shape((), jnp.int32), rates


class Programs:
    """The programs of a run's stages, from the first that is left.

    A single process compiles the first one in a thread while it prepares the rest, and
    each later one while the stage before it runs. Several processes compile at the same
    point of the run, because they have to synchronise.

    Args:
      plan: of the run.
      waiting: `(stage, stages, seconds)`, called about once a second while `of` waits
        for the program of a stage.
      interrupted: returns the number of a signal that ends this waiting, or 0.
    """

    def __init__(
        self,
        plan: Plan,
        waiting: Callable = lambda stage, stages, seconds: None,
        interrupted: Callable[[], int] = lambda: 0,
    ):
        self._waiting, self._interrupted = waiting, interrupted
        self.plan, self.setup = plan, plan.setup
        self._programs: dict[int, Compiled] = {}
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
        known = stage in self._futures or stage >= len(self.plan.stages)
        if not known and not processes.are_several():
            self._futures[stage] = self._pool.apply_async(self._compile, [stage])

    def of(self, stage: int) -> Compiled:
        """Returns the program of a stage; waits until it is compiled.

        Args:
          stage: its index.

        Raises:
          ValueError: it does not fit the memory.
          interrupt.StoppedError: `interrupted` returned a signal.
        """
        if stage not in self._programs:
            begin, stages = time.time(), len(self.plan.stages)
            self.begin(stage)
            if stage not in self._futures:
                self._compile(stage)
            while stage in self._futures and not self._futures[stage].ready():
                self._waiting(stage, stages, time.time() - begin)
                if stop := self._interrupted():
                    raise interrupt.StoppedError("ended while compiling", stop)
                self._futures[stage].wait(timeout=1)
            self.check()
            jax.monitoring.record_event_time_span(WAITING, begin, time.time())
        return self._programs[stage]

    def check(self) -> None:
        """Raises the first error of a compilation, if there is one."""
        for future in self._futures.values():
            if future.ready():
                future.get()

    def memory(self) -> list[Memory]:
        """Returns the memory of all stages; without working sets until compiled."""
        return [
            self._programs[index].memory if index in self._programs else stage.memory
            for index, stage in enumerate(self.plan.stages)
        ]

    def _compile(self, stage: int) -> None:
        self._programs[stage] = compile_stage(self.plan, stage)
