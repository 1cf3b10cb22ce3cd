"""Estimates what a run needs on accelerators that this machine does not have.

    python -m benchmarks.targets v5e:2x2 --config=configs/flash_cifar10.py:mini
    python -m benchmarks targets --target h200:1 --only pfl resnet18_100 mlp

`--config` and `--config.FIELD=VALUE` are those of `launch.py`; it prints the plan of
the run as `--dry_run` does, and then what the compiler reports of each stage. The
second command compiles set-ups of `workload`, and writes a table of kernels, waits of
the host and bytes. Stages are compiled for a `Target` by the code that compiles them
for a run. Nothing is measured: seconds are an estimate of the compiler.
"""

import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import app, flags, logging
from jax.stages import Compiled

from benchmarks import accelerators, hlo, workload
from benchmarks.accelerators import Target
from sparsefl_jax.config import command_line
from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.formats import MISSING, align, format_si
from sparsefl_jax.core.types import Key
from sparsefl_jax.data import cohorts
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models.base import Model
from sparsefl_jax.runs import describe, experiment, fit_rounds, programs
from sparsefl_jax.runs.plan import Plan, plan
from sparsefl_jax.runs.setup import FILL, Memory, Setup, make
from sparsefl_jax.simulation import clock
from sparsefl_jax.system.membership import guard

COHORT = 10  # where a set-up leaves it open
CHOICES = {"only": workload.SETUPS}
_DRAWN = 1000  # rounds whose cohorts are counted, at most


class Expected(NamedTuple):
    """What the compiler says of a stage's program on each device.

    A step is a minibatch of each client of a chunk. In what counts by round, loops
    whose length depends on the data run for as many steps as a chunk has on average,
    and all branches of a condition count.
    """

    devices: int
    chunk: int  # clients that a device runs at a time
    memory: dict[str, int]  # bytes: arguments, results, temporaries, and the peak
    available: int  # bytes
    flops: float | None  # of a step; None: the compiler does not say
    step: hlo.Work  # kernels, waits of the host and bytes, on a GPU
    round: hlo.Work  # with its steps
    collectives: dict[str, int]  # bytes of a round by kind
    largest_copy: int  # bytes of the largest array that is copied as a whole
    seconds: float | None  # of a round, the compiler's estimate; None: it has none
    together: Memory  # of all devices


SETUPS = "pfl", "pfl_bfloat16", "resnet18_100", "resnet18_bfloat16", "mlp"


def run(only=SETUPS, target="h200:1", rounds=50) -> Iterator:
    """Yields what a compiler says of each set-up, compiled as a run compiles it.

    Args:
      only: set-ups.
      target: an accelerator to compile for.
      rounds: of a segment.
    """
    there = accelerators.make(target)
    for name in only:
        setup = workload.SETUPS[name]
        setup = setup._replace(cohort=setup.cohort or COHORT)
        data, budgets = workload.make_data(setup), np.float32(setup.budgets)
        model = workload.make_model(setup, data)
        stage = workload.make_stage(setup, model, rounds)
        settings = {"eval_every": rounds}
        if budgets.size > 1:
            settings["budgets"] = np.resize(budgets, setup.clients)
        (one,) = compile_for(there, [stage], model, data, **settings)
        yield {
            "set-up": name,
            "clients at a time": one.chunk,
            **{f"{what} a step": value for what, value in one.step._asdict().items()},
            **{f"{what} a round": value for what, value in one.round._asdict().items()},
            "compiler": compiler(there.devices[0].platform),
        }


def compile_for(
    target: str | Target,
    stages: Sequence[Stage],
    model: Model,
    data: FederatedData,
    **settings,
) -> list[Expected]:
    """Compiles a run for accelerators that are not there; trains nothing.

    Args:
      target: such as `v5e:2x2` or `h100:4`, see `accelerators.make`.
      stages, model, data: what runs, and on what.
      **settings: the other fields of a `Setup`.

    Returns:
      What the compiler says of each stage.

    Raises:
      ValueError: in one line: there is no such target, its extra is not installed, or
        the run cannot run or does not fit.
    """
    target = accelerators.make(target) if isinstance(target, str) else target
    run = placed(make(stages, model, data, **settings), target)
    return expected(run, target, jax.random.key(0))


def placed(setup: Setup, target: Target) -> Plan:
    """Returns a run on the devices of a target, with as much memory as they have.

    Raises:
      ValueError: it does not fit there.
    """
    memory_gb = setup.memory_gb
    if memory_gb is None:
        memory_gb = FILL * target.memory * len(target.devices) / 1e9
    setup = setup._replace(devices=target.devices, memory_gb=memory_gb)
    return plan(setup)


def expected(run: Plan, target: Target, key: Key) -> list[Expected]:
    """Compiles the stages of a `placed` run; the key is that of the run."""
    compiled = [programs.compile_stage(run, i) for i in range(len(run.stages))]
    counts = [
        steps(run.setup, index, program.plan.chunk, key)
        for index, program in enumerate(compiled)
    ]
    pairs = zip(compiled, counts, strict=True)
    return [_of_stage(program, count, target) for program, count in pairs]


def steps(setup: Setup, index: int, chunk: int, key: Key) -> float:
    """Returns the steps that a chunk of clients trains in an epoch, the mean.

    Args:
      setup: the run.
      index: which of its stages.
      chunk: clients that a device runs at a time.
      key: of the run, whose very cohorts are counted.
    """
    stage, sizes = setup.stages[index], np.asarray(setup.data.train.size)
    root, present = keys.of_stage(keys.of_run(key)[1], index), clock.presence
    draw = cohorts.make_draw(root, stage, len(sizes), present(setup.system))
    ids = draw(np.arange(min(stage.num_rounds, _DRAWN), dtype=np.int32))
    # As in `placement.deal`: the largest first, a block as long as its first.
    longest = -np.sort(-np.append(sizes, 0)[ids], axis=1)[:, ::chunk]
    return float(np.mean(-(-longest // stage.batch_size)))


def _of_stage(program: programs.Compiled, steps: float, target: Target) -> Expected:
    plan, text = program.plan, program.segment.as_text()
    rounds = program.pace.length
    groups = -(-plan.stage.cohort_size // (plan.mesh.size * plan.chunk))
    first = rounds if rounds > 1 else None  # the loop over rounds is in no other
    found = program.segment.memory_analysis()
    cycles = hlo.estimated_cycles(text, steps, first)
    moved = hlo.collectives(text, steps, first)
    known = plan.steps
    less, more = (hlo.work(text, n, first, known) for n in (steps, steps + 1))
    waits = hlo.work(text, steps, first).waits
    if known is not None:  # nobody waits for the end of these loops
        less, more = (one._replace(waits=waits) for one in (less, more))
    each = np.subtract(more, less) / (rounds * groups)
    return Expected(
        devices=plan.mesh.size,
        chunk=plan.chunk,
        memory={
            "arguments": found.argument_size_in_bytes,
            "results": found.output_size_in_bytes - found.alias_size_in_bytes,
            "temporaries": found.temp_size_in_bytes,
            "peak": found.peak_memory_in_bytes,
        },
        available=target.memory,
        flops=_costs(program.segment).get("flops"),
        step=hlo.Work(*map(float, each)),
        round=hlo.Work(*(number / rounds for number in less)),
        collectives={kind: round(size / rounds) for kind, size in moved.items()},
        largest_copy=hlo.largest_copy(text),
        seconds=cycles / target.clock / rounds if cycles and target.clock else None,
        together=program.memory,
    )


def _costs(compiled: Compiled) -> dict:
    """Returns FLOPs of a program in which each loop runs once."""
    if costs := compiled.cost_analysis():
        return costs
    # XLA:GPU has none without a GPU; the client of the CPU counts the same program.
    from jax._src.lib import _jax  # there is no public name

    (module,) = compiled.runtime_executable().hlo_modules()
    client = jax.devices("cpu")[0].client
    return _jax.hlo_module_cost_analysis(client, module)


def compiler(platform: str) -> str:
    """Returns the name and the version of the compiler for a platform."""
    package = {"tpu": "libtpu", "gpu": "jax-cuda12-plugin"}.get(platform, "jaxlib")
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:  # of a GPU with another CUDA, say
        return f"jaxlib {importlib.metadata.version('jaxlib')}"


def text(target: Target, stages: Sequence[Expected]) -> str:
    """Formats what the compiler says as a table with a column for each stage."""

    def size(value):
        return format_si(value, "B")

    def kinds(one):
        each = [f"{kind} {size(n)}" for kind, n in one.collectives.items()]
        return ", ".join(each) or MISSING

    figures = {
        "stage": lambda s: str(stages.index(s)),
        "clients at a time": lambda s: str(s.chunk),
        **{f"memory: {k}": lambda s, k=k: size(s.memory[k]) for k in stages[0].memory},
        "of a device's": lambda s: size(s.available),
        "a step: FLOPs": lambda s: format_si(s.flops, "FLOP"),
        "        read and written": lambda s: size(s.step.bytes),
        "a round: collectives": kinds,
        "         kernels": lambda s: f"{s.round.kernels:.5g}",
        "         waits of the host": lambda s: f"{s.round.waits:.5g}",
        "         time, estimated": lambda s: (
            "none by this compiler"
            if s.seconds is None
            else f"{1e3 * s.seconds:.3g} ms"
        ),
        "largest whole copy": lambda s: size(s.largest_copy),
    }
    rows = [[name, *map(figure, stages)] for name, figure in figures.items()]
    platform = target.devices[0].platform
    return "\n".join(
        [
            f"compiled for {target.name} by {compiler(platform)}, each of "
            f"{stages[0].devices} devices:",
            *align(rows),
            "Nothing ran: the time is the compiler's estimate, not a measurement. A "
            "step is a minibatch of each client of a chunk.",
        ]
    )


def dry_run(config, name: str) -> str:
    """Returns the plan of a configuration and what a target's compiler says of it."""
    target = accelerators.make(name)
    config, found = fit_rounds.fit(config, experiment.build, progress=True)
    run = placed(experiment.build(config).setup, target)
    stages = expected(run, target, jax.random.key(config.seed))
    lines = describe.text(run, [stage.together for stage in stages])
    return "\n".join([*([found] if found else []), lines, "", text(target, stages)])


def main():
    """Prints what `dry_run` returns; a mistake is one line, as in `launch.py`."""
    if {"--help", "-h"} & set(sys.argv):
        return print(__doc__)
    command_line.define_config(flags.FLAGS)

    def run(argv):
        logging.set_verbosity(logging.WARNING)
        config = command_line.configuration(flags.FLAGS)
        if len(argv) != 2 or config is None:
            raise ValueError("expected TARGET --config=FILE, v5e:2x2 for example")
        print(dry_run(config, argv[1]))

    with guard():
        app.run(run, flags_parser=command_line.parse_flags)


if __name__ == "__main__":
    main()
