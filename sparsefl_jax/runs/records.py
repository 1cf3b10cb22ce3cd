"""Writes the files of a run while it runs: records, masks, checkpoints, the summary.

Process 0 writes. Every process runs the same code with a `Recorder`, which does nothing
on the others.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax

from sparsefl_jax import data as datasets
from sparsefl_jax import report
from sparsefl_jax.core.types import Key
from sparsefl_jax.models.base import Model
from sparsefl_jax.report.masks import snapshot_files
from sparsefl_jax.runs import checkpoint, sinks, summary
from sparsefl_jax.runs.progress import Progress, compiling
from sparsefl_jax.runs.setup import Setup, guarantee
from sparsefl_jax.runs.simulate import Segment, Snapshot
from sparsefl_jax.sparsity import trees
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
        remove_later_masks(workdir, at)
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
                write_masks(workdir, segment, setup.model)
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


def write_masks(workdir: Path, segment: Segment, model: Model) -> None:
    """Writes the masks that a segment keeps, and with the first of them the layers.

    Args:
      workdir: the run's directory.
      segment: a segment with a snapshot.
      model: the network, whose layers are named.

    Raises:
      OSError: a file cannot be written.
    """
    folder, at = workdir / "masks", segment.snapshot
    if segment.masks and not (folder / "layers.json").exists():
        folder.mkdir(exist_ok=True)
        shapes, _ = model.shapes()
        layers = jax.tree.map(lambda m: m > 0, model.macs)
        sizes = trees.layer_sizes(shapes, layers).tolist()
        outputs = [leaf.shape[-1] for leaf in trees.layers(shapes, layers)]
        for name, numbers in (("layers", sizes), ("filters", outputs)):
            text = json.dumps({"names": trees.layer_paths(layers), "sizes": numbers})
            files.write_text(folder / f"{name}.json", text)
    for owner, packed in segment.masks.items():
        name = f"{owner}_{at.stage}_{at.round:06d}.npy"
        files.write_array(folder / name, packed)


def remove_later_masks(workdir: Path, at: Snapshot) -> None:
    """Removes the masks of rounds after `at`, which will run again."""
    for file, _, stage, round in list(snapshot_files(workdir / "masks")):
        if (stage, round) > (at.stage, at.round):
            file.unlink()
