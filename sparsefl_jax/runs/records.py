"""Writes the files of a run: records, masks, checkpoints, and finally the summary.

Process 0 writes. Every process runs the same code with a `Recorder`, which does nothing
on the others.
"""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from sparsefl_jax import data as datasets
from sparsefl_jax import report
from sparsefl_jax.config.defaults import plain
from sparsefl_jax.core.flatten import rename
from sparsefl_jax.models.base import Model
from sparsefl_jax.report import costs, load, tables
from sparsefl_jax.report.kept_masks import mask_files
from sparsefl_jax.runs import checkpoint, describe, folder
from sparsefl_jax.runs.checkpoint import Snapshot
from sparsefl_jax.runs.plan import Plan
from sparsefl_jax.runs.setup import Memory, guarantee
from sparsefl_jax.runs.simulate import Segment
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import files, hardware, processes, provenance, sinks
from sparsefl_jax.system.progress import Progress, measure_compilation


class Recorder(NamedTuple):
    """The functions that write a run's files; by default they do nothing."""

    record: Callable = lambda segment: False  # returns whether a checkpoint is due
    save: Callable = lambda snapshot, models: None  # replaces the checkpoint
    finish: Callable = lambda snapshot, memories: None  # returns the summary
    waiting: Callable = lambda stage, stages, seconds: None


@contextlib.contextmanager
def open_records(
    workdir: Path, going: folder.Resumption, plan: Plan, progress: bool | str
) -> Iterator[tuple[Snapshot, Recorder]]:
    """Opens the files of a run where it stood, in process 0.

    Args:
      workdir: the run's directory, claimed.
      going: how the run continues or begins.
      plan: of the run.
      progress: whether to show the progress; 'rounds' leaves out the plan.

    Yields:
      The snapshot from which the run begins or continues, and its `Recorder`.

    Raises:
      ValueError: the data are not those of the checkpoint.
      OSError: a file cannot be written.
    """
    config, saved, setup = going.config, going.saved, plan.setup
    at, data = folder.start(saved, setup)
    if not processes.leads():
        yield at, Recorder()
        return
    code = folder.own_code(plain(config))
    chunks = ", ".join(str(stage.memory.chunk) for stage in plan.stages)
    machine = provenance.facts(chunks) | code
    about: dict[str, Any] = {"position": None, "seconds": 0.0}
    about |= {"commit": machine["commit"], "code": code}
    if saved:  # keep the versions it began with
        about |= saved.about
    about |= {"machine": machine, "config": plain(config), "data": data}
    if progress and (saved or progress != "rounds"):
        start = folder.describe_start(saved, machine) if saved else describe.text(plan)
        print(start, f"writing to {workdir}", sep="\n", file=sys.stderr)
    read = config.hf | {"columns": setup.data.columns or None}
    folder.amend(workdir, dataclasses.replace(config, hf=read))
    remove_later_masks(workdir, at)
    counts = datasets.partition_counts(setup.data)
    files.write_array(workdir / "partition.npy", counts)
    begin = saved_at = time.perf_counter()
    lengths, seconds = [stage.num_rounds for stage in setup.stages], about["seconds"]
    rounds = sum(lengths[: at.stage]) + at.round
    so_far = about["position"], rounds, seconds
    with (
        Progress(sum(lengths), rounds, show=bool(progress)) as bar,
        sinks.open_sinks(config.sinks, workdir, *so_far) as (write, flushed),
        measure_compilation() as compiled,
    ):

        def record(segment: Segment) -> bool:
            now = time.perf_counter()
            about["seconds"] = seconds + now - begin
            if segment.records:
                write(segment.records, about["seconds"], compiled())
                bar.update(segment.records)
            write_mask(workdir, segment, setup.model)
            return now - saved_at >= 60 * config.checkpoint_minutes

        def save(snapshot: Snapshot, models: dict) -> None:
            nonlocal saved_at
            about["position"] = flushed()
            checkpoint.save(workdir, snapshot, models, about)
            saved_at = time.perf_counter()

        def finish(snapshot: Snapshot, memories: Sequence[Memory]) -> dict:
            facts = about | {"guarantee": guarantee(setup, snapshot.round)}
            facts |= {"names": datasets.names(setup.data)}
            written = write_summary(config, memories, workdir, snapshot, facts)
            draw(workdir)
            return written

        yield at, Recorder(record, save, finish, bar.show_compilation)


def draw(workdir: Path) -> None:
    """Writes the plots and the page of a run that has ended."""
    report.plot_run(workdir)
    report.write_page(workdir)


def write_mask(workdir: Path, segment: Segment, model: Model) -> None:
    """Writes the mask of a segment, if any, and with the first the layers' names.

    Args:
      workdir: the run's directory.
      segment: the segment.
      model: the network, whose layers are named.

    Raises:
      OSError: a file cannot be written.
    """
    masks, at = workdir / "masks", segment.snapshot
    if segment.mask is None:
        return
    if not (masks / "layers.json").exists():
        masks.mkdir(exist_ok=True)
        sizes = trees.layer_sizes(model.shapes()[0], model.layers).tolist()
        text = json.dumps({"names": trees.layer_paths(model.layers), "sizes": sizes})
        files.write_text(masks / "layers.json", text)
    files.write_array(masks / f"server_{at.stage}_{at.round:06d}.npy", segment.mask)


def remove_later_masks(workdir: Path, at: Snapshot) -> None:
    """Removes the masks of rounds after `at`, which will run again."""
    for stage, round, file in mask_files(workdir / "masks"):
        if (stage, round) > (at.stage, at.round):
            file.unlink()


def write_summary(
    config, memories: Sequence[Memory], workdir: Path, at: Snapshot, about: dict
) -> dict:
    """Writes the `summary.json` of a run that has ended.

    Args:
      config: the configuration.
      memories: of the stages, as `Programs` has them.
      workdir: the run's directory.
      at: the final snapshot.
      about: as in its last checkpoint, with its `guarantee` and `names`, which may be
        empty.

    Returns:
      The summary as written, with keys as in `report.tables`.
    """
    run = report.read_run(workdir)
    segments = load.read_lines(workdir / "timing.jsonl")
    evals = [r for r in run.evals if r["stage"] == run.evals[-1]["stage"]]
    stages = []
    for index, section in enumerate(config.stages[: at.stage + 1]):
        memory = memories[index]
        facts = {"chunk": memory.chunk, "memory": memory.parts()}
        waited = [s["compile_seconds"] for s in segments if s["stage"] == index]
        facts["compile_seconds"] = sum(waited)
        totals = _totals([r for r in run.train if r["stage"] == index])
        stages.append({"name": section["name"]} | totals | facts)
    last = run.train[-1]
    summary = {
        "method": config.algorithm["name"],
        "model": config.model["name"],
        "dataset": config.dataset,
        "partition": config.partition["name"],
        "seed": config.seed,
        "rounds": len(run.train),
        "stages": stages,
        "memory": {
            "estimated": max(sum(stage["memory"].values()) for stage in stages),
            **hardware.peak_memory(jax.devices()),
        },
        "accuracy": _accuracy(evals),
        "metric": evals[-1].get("metric"),
        "client_accuracy": evals[-1]["client_accuracy"],
        "best": at.best and at.best._asdict() | {"models": sorted(at.best.models)},
        # Of personal models, or else of the server's.
        "density": last.get("client", {}).get("density", last.get("density")),
        "rounds_per_second": len(run.train) / about["seconds"],
        "versions": provenance.versions(),
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "compute_dtype": config.model.get("dtype") or "float32",
        "settings": provenance.settings(),
        **{name: about.get(name) for name in ("seconds", "commit", "code", "data")},
        "ended_by": at.ended_by,
        "clients": datasets.partition_statistics(run.partition),
        **{k: about[k] for k in ("guarantee", "names") if about.get(k)},
    }
    if at.hours is not None:
        tiers = tables.tier_totals(run.train, evals)
        summary |= {"hours": at.hours, "tiers": tiers}
        summary["unheard"] = tables.unheard(run.train)
    if name := evals[-1].get("measure"):
        facts = {"measure": name, "better": evals[-1]["better"]}
        summary = facts | rename(summary, "accuracy", "value")
    files.write_json(workdir / "summary.json", summary)
    return summary


def _accuracy(evals: list[dict]) -> dict:
    """Returns the accuracy by model; the best round is chosen by validation."""
    accuracy = {}
    for name, result in evals[-1]["models"].items():
        best, also = costs.best_of(evals, name), ("density", "seen_accuracy")
        accuracy[name] = {
            "final": result["accuracy"],
            "best": best["models"][name]["accuracy"],
            "best_round": best["round"],
            **{k: v for k, v in result.items() if k.endswith(also)},
        }
    if "val_accuracy" in evals[-1]:  # of the headline, which is the first
        next(iter(accuracy.values()))["validation"] = evals[-1]["val_accuracy"]
    return accuracy


def _totals(records: list[dict]) -> dict:
    keys = "bits_up", "bits_down", "flops", "flops_dense", "flops_executed"
    total = {key: sum(r[key] for r in records) for key in keys}
    for part in ("values", "positions"):
        both = [f"bits_{way}_{part}" for way in ("up", "down")]
        total[f"bits_{part}"] = sum(r[key] for r in records for key in both)
    return {"rounds": len(records)} | total
