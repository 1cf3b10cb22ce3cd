"""A run with files: logs, checkpoints, masks, a summary, plots, a page.

The files are described in the README.
"""

import copy
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sparsefl_jax import (
    checkpoint,
    checks,
    configuration,
    estimate,
    fields,
    interrupt,
    local,
    loop,
    machine,
    processes,
    report,
    results,
    sinks,
    storage,
    summary,
    timings,
)
from sparsefl_jax import data as datasets
from sparsefl_jax import workdir as directory
from sparsefl_jax.progress import Progress
from sparsefl_jax.report.masks import snapshot_files
from sparsefl_jax.sparsity import masks


class Parts(NamedTuple):
    """What a configuration builds."""

    data: datasets.FederatedData
    model: Any
    budgets: np.ndarray | None
    stages: list
    initial: Any  # SparseModel, None for a fresh network
    traced: list[checks.Traced]


def build(config, started: bool = False) -> Parts:
    """Builds what a configuration names, and refuses what can not run.

    Args:
      config: as `configuration.default_config` makes it.
      started: whether there is a checkpoint, so that `init_from` is not needed.

    Raises:
      ValueError: in one line, before any compilation.
    """
    fields.check(config)
    data = configuration.build_data(config)
    model = configuration.build_model(config, data)
    budgets = configuration.build_budgets(config)
    stages = configuration.build_stages(config, local.cross_entropy(model), budgets)
    how = config.eval_every, config.chunk, budgets, config.metric, config.client_store
    traced = checks.run(stages, model, data, *how, config.memory_gb)
    initial = None
    if config.init_from is not None and not started:
        key, _ = jax.random.split(jax.random.key(config.seed))
        initial = results.start_from(config.init_from, config.init_what, key, model)
        if config.init_what != "weights":
            results.check_kept(stages[0].algorithm, initial, config.init_what)
    return Parts(data, model, budgets, stages, initial, traced)


def plan(config, parts: Parts) -> str:
    """What a run will take: devices, bits, FLOPs, memory, time; nothing is trained."""
    told = estimate.describe(
        parts.stages,
        parts.model,
        parts.data,
        chunk=config.chunk,
        budgets=parts.budgets,
        eval_every=config.eval_every,
        client_store=config.client_store,
        memory_gb=config.memory_gb,
        known=timings.recall(timings.digest(config)),
        key=jax.random.key(config.seed),
        traced=parts.traced,
        initial=parts.initial,
    )
    lines = [estimate.text(told)]
    if config.seeds > 1:
        lines.append(f"All this {config.seeds} times, once for each seed.")
    limits = [f"until.{k}={v:g}" for k, v in config.until.items() if v is not None]
    if limits:
        lines.append(f"Less if it ends earlier, by {' or '.join(limits)}.")
    return "\n".join(lines)


def run(config, workdir, *, resume: bool = False, progress: bool = True) -> dict:
    """Runs a configuration and writes its files to `workdir`.

    Of several processes, which all call it alike, the first one writes; to go on all
    have to read the same `workdir`.

    Args:
      config: as `configuration.default_config` makes it.
      workdir: a directory, created if absent.
      resume: whether to go on with the run that `workdir` holds; else it holds none.
      progress: whether to show the plan and a progress bar, or lines where there is no
        terminal.

    Returns:
      The summary, as `summary.json` has it.

    Raises:
      ValueError: in one line, before any compilation, on what can not be run.
      FloatingPointError: if a loss is not finite; the last checkpoint stays.
      MemoryError: if the devices' memory does not suffice; the last checkpoint stays.
      OSError: if a file can not be written; the run can be resumed.
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    fields.check(config)
    if config.seeds > 1:
        return _run_seeds(config, workdir, resume, progress)
    processes.check_same("the configuration", config.to_json_best_effort())
    parts = None if resume else build(config)  # refuses before anything is written
    if not processes.leads():
        return _follow(config, parts, Path(workdir))
    with directory.claimed(workdir, config, resume) as path:
        done = (path / "summary.json").exists()
        saved = None if done else checkpoint.read(path, jax.random.key(config.seed))
        processes.lead([done, saved is not None])
        if not done:
            parts = parts or build(config, started=saved is not None)
            return processes.lead(_run(config, parts, saved, path, progress))
        if not (path / "report.html").exists():
            _draw(path)
        return processes.lead(json.loads((path / "summary.json").read_text()))


def _run_seeds(config, workdir, resume: bool, progress: bool) -> dict:
    """One run after another, each in a directory of its own, then their means."""
    singles = []
    for seed in range(config.seed, config.seed + config.seeds):
        singles.append(copy.deepcopy(config))
        singles[-1].seed, singles[-1].seeds = seed, 1
    if not resume:
        build(singles[0])  # refuses before anything is written
    if not processes.leads():
        for single in singles:
            run(single, Path(workdir) / f"seed_{single.seed}", resume=True)
        return processes.lead()
    with directory.claimed(workdir, config, resume) as root:
        told = []
        for single in singles:
            path = root / f"seed_{single.seed}"
            begun = (path / "config.json").exists()
            told.append(run(single, path, resume=begun, progress=progress))
        both = summary.over_seeds(told)
        directory.write(root / "summary.json", json.dumps(both, indent=2))
        report.plot_comparison(report.read_groups([root]), root / "comparison")
    return processes.lead(both)


def _run(
    config,
    parts: Parts,
    saved: checkpoint.Saved | None,
    path: Path,
    progress: bool,
) -> dict:
    """Runs to the end, or to an interruption, from the last checkpoint if any."""
    key, here = jax.random.key(config.seed), machine.facts(_chunks(parts))
    at = _start(saved, parts)
    before = saved.about if saved else {"position": None, "seconds": 0.0}
    if progress:
        said = _resumption(saved, here) if saved else plan(config, parts)
        if saved is None and (path / "metrics.jsonl").exists():
            said = f"{said}\nno checkpoint was saved here: it begins again"
        print(f"{said}\nwriting to {path}", file=sys.stderr)
    lengths = [stage.num_rounds for stage in parts.stages]
    about = before | {"machine": here, "commit": before.get("commit", here["commit"])}
    begin = saved_at = time.perf_counter()
    with (
        sinks.open_sinks(config.sinks, path, before["position"]) as log,
        Progress(sum(lengths), sum(lengths[: at.stage]) + at.round, show=progress) as b,
        interrupt.listening("ending after this segment; again to leave at once") as by,
        timings.compiling() as compiled,
    ):
        _forget_masks(path, at)
        counts = datasets.partition_counts(parts.data)
        storage.write_array(path / "partition.npy", counts)
        for segment in () if at.ended_by else _segments(config, parts, key, at):
            now = time.perf_counter()
            about["seconds"] = before["seconds"] + now - begin
            if segment.records:
                log.write(segment.records, about["seconds"], compiled())
                b.update(segment.records)
            if segment.snapshot is None:  # the loop is about to say what failed
                continue
            at = segment.snapshot
            _keep_masks(path, at, segment.masks, parts.model)
            due = now - saved_at >= 60 * config.checkpoint_minutes
            due, stop = processes.most(due, by())
            if due or stop or at.ended_by:
                about["position"] = log.position()
                checkpoint.save(path, _whole(at), segment.models, key, about)
                saved_at = time.perf_counter()
            _stop(stop, at)
        told = _finish(config, parts, path, at, about)
        (stop,) = processes.most(by())
        if stop:  # what would come next, other seeds say, is not to begin
            raise interrupt.StoppedError("the run has finished", stop)
    return told


def _follow(config, parts: Parts | None, path: Path) -> dict:
    """What the other processes do: the same rounds, and no files."""
    done, begun = processes.lead()
    if done:
        return processes.lead()
    key = jax.random.key(config.seed)
    saved = checkpoint.read(path, key) if begun else None
    parts = parts or build(config, started=begun)
    at = _start(saved, parts)
    with interrupt.listening("asking all processes to end after this segment") as by:
        for segment in () if at.ended_by else _segments(config, parts, key, at):
            if segment.snapshot is None:
                continue
            at = segment.snapshot
            due, stop = processes.most(0, by())
            if due or stop or at.ended_by:
                _whole(at)
            _stop(stop, at)
        (stop,) = processes.most(by())
        if stop:
            raise interrupt.StoppedError("the run has finished", stop)
    return processes.lead()


def _start(saved: checkpoint.Saved | None, parts: Parts) -> loop.Snapshot:
    """Where the run begins or goes on, the same for all processes."""
    at = saved.snapshot if saved else loop.Snapshot(0, 0, None, 0, 0.0)
    if processes.several():
        processes.check_same("the checkpoint", [at.stage, at.round, at.bits])
        data = parts.data
        arrays = data.x, data.y, data.train, data.x_test, data.y_test
        processes.check_same("the data set", checkpoint.checksum(arrays))
    return at


def _whole(at: loop.Snapshot) -> loop.Snapshot:
    """With a state that process 0 can write; all processes call it."""
    if not processes.several():
        return at  # it is written some at a time, never copied as a whole
    return at._replace(state=processes.fetch(at.state))


def _stop(signum: int, at: loop.Snapshot) -> None:
    if signum and not at.ended_by:
        where = f"round {at.round} of stage {at.stage}"
        raise interrupt.StoppedError(f"ended after {where}, all saved", signum)


def _segments(config, parts: Parts, key, at: loop.Snapshot):
    return loop.segments(
        key,
        parts.stages,
        parts.model,
        parts.data,
        eval_every=config.eval_every,
        chunk=config.chunk,
        budgets=parts.budgets,
        metric=config.metric,
        client_store=config.client_store,
        memory_gb=config.memory_gb,
        until=loop.Limits(**config.until),
        initial=parts.initial,
        observe_rounds=config.observe_rounds,
        resume=at,
        traced=parts.traced,
    )


def _chunks(parts: Parts) -> str:
    """The chunk of every stage."""
    return ", ".join(str(traced.memory.chunk) for traced in parts.traced)


def _finish(config, parts: Parts, path: Path, at: loop.Snapshot, about: dict) -> dict:
    """Writes what only a finished run has."""
    metrics = report.read_lines(path / "metrics.jsonl")
    timing = timings.measured(report.read_lines(path / "timing.jsonl"))
    timings.remember(timings.digest(config), timing)
    facts = {k: about[k] for k in ("seconds", "commit")} | {"ended_by": at.ended_by}
    took = [
        {
            "chunk": traced.memory.chunk,
            "memory": traced.memory.parts(),
            "compile_seconds": stage["compile_seconds"],
        }
        for traced, stage in zip(parts.traced, timing["stages"], strict=False)
    ]
    told = summary.summarize(config, metrics, at.best, facts, took)
    directory.write(path / "summary.json", json.dumps(told, indent=2))
    _draw(path)
    return told


def _draw(path: Path) -> None:
    report.plot_run(path)
    report.write_page(path)


def _resumption(saved: checkpoint.Saved, now: dict) -> str:
    """Says where a run goes on, and whether it will be as if it had never stopped."""
    then, at = saved.about["machine"], saved.snapshot
    changed = [f"{k} {then.get(k)} -> {now[k]}" for k in now if then.get(k) != now[k]]
    how = f"to rounding, for {', '.join(changed)}" if changed else "bit for bit"
    return f"resuming after round {at.round} of stage {at.stage}, {how}"


def _keep_masks(path: Path, at: loop.Snapshot, kept: dict, model) -> None:
    """Writes packed masks, and once of which layers their entries or filters are."""
    folder = path / "masks"
    if kept and not (folder / "layers.json").exists():
        folder.mkdir(exist_ok=True)
        shapes, _ = jax.eval_shape(model.init, jax.random.key(0))
        layers = jax.tree.map(lambda m: m > 0, model.macs)
        sizes = masks.layer_sizes(shapes, layers).tolist()
        outputs = [leaf.shape[-1] for leaf in masks.layers(shapes, layers)]
        for name, of in (("layers", sizes), ("filters", outputs)):
            told = {"names": masks.layer_paths(layers), "sizes": of}
            directory.write(folder / f"{name}.json", json.dumps(told))
    for whose, packed in kept.items():
        name = f"{whose}_{at.stage}_{at.round:06d}.npy"
        storage.write_array(folder / name, packed)


def _forget_masks(path: Path, at: loop.Snapshot) -> None:
    """Removes the masks of rounds that will run again."""
    for file, _, stage, round in list(snapshot_files(path / "masks")):
        if (stage, round) > (at.stage, at.round):
            file.unlink()
