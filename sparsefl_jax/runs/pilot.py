"""A pilot: the first rounds of a run's stages, to measure what its rounds cost."""

import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax

from sparsefl_jax.runs import simulate
from sparsefl_jax.runs.progress import Progress, compiling
from sparsefl_jax.runs.setup import Limits, Setup


class Pilot(NamedTuple):
    """What a pilot has measured."""

    rounds: list[list[dict]]  # of each stage, its records
    seconds: list[float]  # of each stage, with one evaluation, without compilation


def run(
    setup: Setup,
    rounds: Sequence[int],
    seed: int,
    *,
    until: Limits | None = None,
    progress: bool = False,
) -> Pilot:
    """Runs the first rounds of every stage; nothing is written.

    Args:
      setup: of the run.
      rounds: of each stage, at most those that it has.
      seed: of the run.
      until: where the pilot ends before its rounds do; None: nowhere.
      progress: whether to say that rounds run, and to show them.
    """
    stages = [
        stage._replace(num_rounds=min(count, stage.num_rounds))
        for stage, count in zip(setup.stages, rounds, strict=True)
    ]
    total = sum(stage.num_rounds for stage in stages)
    # An evaluation ends a stage, and there is no other.
    setup = setup._replace(
        stages=stages, eval_every=total, until=until or Limits(), observe_rounds=()
    )
    measured = Pilot([[] for _ in stages], [0.0 for _ in stages])
    if progress:
        print(f"pilot: trains {total} rounds to measure their cost", file=sys.stderr)
    with (
        Progress(total, show=progress, title="pilot, ") as bar,
        compiling() as compiled,
    ):
        begin = time.perf_counter()

        def note(records):
            nonlocal begin
            now, stage = time.perf_counter(), records[-1]["stage"]
            waited = compiled()
            measured.rounds[stage] += [r for r in records if r["phase"] == "train"]
            measured.seconds[stage] += now - begin - waited
            bar.update(records, waited)
            begin = now

        simulate.run_setup(jax.random.key(seed), setup, note)
    return measured
