"""Writes the files of a run while it runs: records, masks, checkpoints, the summary.

Process 0 writes. Every process runs the same code with a `Recorder`, which does nothing
on the others.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sparsefl_jax import data as datasets
from sparsefl_jax import report
from sparsefl_jax.core.types import Key
from sparsefl_jax.runs import checkpoint, mask_files, sinks, summary
from sparsefl_jax.runs.progress import Progress, compiling
from sparsefl_jax.runs.setup import Setup, guarantee
from sparsefl_jax.runs.simulate import Segment, Snapshot
from sparsefl_jax.system import files


class Recorder(NamedTuple):
    """The functions that write a run's files; by default they do nothing."""

    record: Callable = lambda segment: False  # tells whether a checkpoint is due
    save: Callable = lambda snapshot, models: None  # replaces the checkpoint
    finish: Callable = lambda snapshot, memory: None  # returns the summary
    waiting: Callable = lambda stage, stages, seconds, program: None


@contextlib.contextmanager
def recording(
    workdir: Path,
    config,
    key: Key,
    setup: Setup,
    at: Snapshot,
    about: dict,
    progress: Progress,
) -> Iterator[Recorder]:
    """Opens the files of a run.

    Args:
      workdir: the run's directory, claimed.
      config: of the run, as `plain.values` returns it.
      key: the root of its randomness.
      setup: of the run.
      at: where it begins or continues.
      about: what its checkpoints say of it; `seconds` and `position` are updated.
      progress: is told of the rounds.

    Yields:
      A `Recorder` that writes.

    Raises:
      OSError: a file cannot be written.
    """
    begin = saved_at = time.perf_counter()
    seconds = about["seconds"]
    with (
        sinks.open_sinks(config.sinks, workdir, about["position"]) as log,
        compiling() as compiled,
    ):
        mask_files.remove_later(workdir, at)
        counts = datasets.partition_counts(setup.data)
        files.write_array(workdir / "partition.npy", counts)

        def record(segment: Segment) -> bool:
            now = time.perf_counter()
            about["seconds"] = seconds + now - begin
            if segment.records:
                waited = compiled()
                log.write(segment.records, about["seconds"], waited)
                progress.update(segment.records, waited)
            if segment.snapshot is not None:  # else the loop will say what failed
                mask_files.write(workdir, segment, setup.model)
            return now - saved_at >= 60 * config.checkpoint_minutes

        def save(snapshot: Snapshot, models: dict) -> None:
            nonlocal saved_at
            about["position"] = log.position()
            checkpoint.save(workdir, snapshot, models, key, about)
            saved_at = time.perf_counter()

        def finish(snapshot: Snapshot, memory: Callable) -> dict:
            facts = about | {"guarantee": guarantee(setup, snapshot.round)}
            written = summary.write(config, memory, workdir, snapshot, facts)
            draw(workdir)
            return written

        yield Recorder(record, save, finish, progress.compiling)


def draw(workdir: Path) -> None:
    """Writes the plots and the page of a run that has ended."""
    report.plot_run(workdir)
    report.write_page(workdir)
