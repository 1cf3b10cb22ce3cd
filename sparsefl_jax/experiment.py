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
    report,
    results,
    sinks,
    summary,
    timings,
)
from sparsefl_jax import data as datasets
from sparsefl_jax import workdir as directory
from sparsefl_jax.progress import Progress
from sparsefl_jax.sparsity import masks


class Parts(NamedTuple):
    """What a configuration builds."""

    data: datasets.FederatedData
    model: Any
    budgets: np.ndarray | None
    stages: list
    initial: Any  # SparseModel, None for a fresh network


def build(config) -> Parts:
    """Builds what a configuration names, and refuses what can not run.

    Raises:
      ValueError: in one line, before any compilation.
    """
    fields.check(config)
    data = configuration.build_data(config)
    model = configuration.build_model(config, data)
    budgets = configuration.build_budgets(config)
    stages = configuration.build_stages(config, local.cross_entropy(model), budgets)
    checks.run(stages, model, data, config.eval_every, config.chunk, budgets)
    initial = None
    if config.init_from is not None:
        key, _ = jax.random.split(jax.random.key(config.seed))
        initial = results.start_from(config.init_from, config.init_what, key, model)
    return Parts(data, model, budgets, stages, initial)


def plan(config, parts: Parts) -> str:
    """What a run will take: devices, bits, FLOPs, memory, time; nothing is trained."""
    told = estimate.describe(
        parts.stages,
        parts.model,
        parts.data,
        chunk=config.chunk,
        budgets=parts.budgets,
        eval_every=config.eval_every,
        known=timings.recall(timings.digest(config)),
        key=jax.random.key(config.seed),
    )
    return estimate.text(told)


def run(config, workdir, *, resume: bool = False, progress: bool = True) -> dict:
    """Runs a configuration and writes its files to `workdir`.

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
      OSError: if a file can not be written; the run can be resumed.
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    fields.check(config)
    if config.seeds > 1:
        return _run_seeds(config, workdir, resume, progress)
    parts = build(config)
    with directory.claimed(workdir, config, resume) as path:
        if (path / "summary.json").exists():
            return json.loads((path / "summary.json").read_text())
        return _run(config, parts, path, progress)


def _run_seeds(config, workdir, resume: bool, progress: bool) -> dict:
    """One run after another, each in a directory of its own, then their means."""
    singles = []
    for seed in range(config.seed, config.seed + config.seeds):
        singles.append(copy.deepcopy(config))
        singles[-1].seed, singles[-1].seeds = seed, 1
    build(singles[0])  # refuses before anything is written
    with directory.claimed(workdir, config, resume) as root:
        told = []
        for single in singles:
            path = root / f"seed_{single.seed}"
            begun = (path / "config.json").exists()
            told.append(run(single, path, resume=begun, progress=progress))
        both = summary.over_seeds(told)
        directory.write(root / "summary.json", json.dumps(both, indent=2))
    return both


def _run(config, parts: Parts, path: Path, progress: bool) -> dict:
    """Runs to the end, or to an interruption, from the last checkpoint if any."""
    key = jax.random.key(config.seed)
    saved = checkpoint.read(path, key)
    machine = checkpoint.machine(config.chunk)
    about = saved.about if saved else {"position": None, "seconds": 0.0}
    at = saved.snapshot if saved else None
    if progress:
        how = _resumption(at, about["machine"], machine) if saved else ""
        print(f"{how or plan(config, parts)}\nwriting to {path}", file=sys.stderr)
    _forget_masks(path, (at.stage, at.round) if at else (0, 0))
    np.save(path / "partition.npy", datasets.partition_counts(parts.data))
    commit, begin = summary.commit(), time.perf_counter()
    base = about["seconds"]
    done = at.round + sum(s.num_rounds for s in parts.stages[: at.stage]) if at else 0
    with (
        sinks.open_sinks(config.sinks, path, about["position"]) as log,
        Progress(sum(s.num_rounds for s in parts.stages), done, show=progress) as bar,
        interrupt.listening("ending after this segment; again to leave at once") as by,
    ):
        saved_at = begin
        for segment in loop.segments(
            key,
            parts.stages,
            parts.model,
            parts.data,
            eval_every=config.eval_every,
            chunk=config.chunk,
            budgets=parts.budgets,
            until=loop.Limits(**config.until),
            initial=parts.initial,
            observe_rounds=config.observe_rounds,
            resume=at,
        ):
            now = time.perf_counter()
            seconds = base + now - begin
            if segment.records:
                log.write(segment.records, seconds)
                bar.update(segment.records)
            if segment.snapshot is None:  # the loop is about to say what failed
                continue
            at = segment.snapshot
            _keep_masks(path, at, segment.masks, parts.model)
            stop = 0 if at.ended_by else by()
            due = now - saved_at >= 60 * config.checkpoint_minutes
            if due or stop or at.ended_by:
                about = {
                    "machine": machine,
                    "seconds": seconds,
                    "commit": commit,
                    "position": log.position(),
                }
                checkpoint.save(path, at, segment.models, key, about)
                saved_at = time.perf_counter()
            if stop:
                where = f"round {at.round} of stage {at.stage}"
                raise interrupt.StoppedError(f"ended after {where}, all saved", stop)
    told = _finish(config, path, at, about)
    if saved is None:  # a resumed run compiles in its middle
        segments = results.read_metrics(path / "timing.jsonl")
        timings.remember(timings.digest(config), timings.measured(segments))
    return told


def _finish(config, path: Path, at: loop.Snapshot, about: dict) -> dict:
    """Writes what only a finished run has."""
    metrics = results.read_metrics(path / "metrics.jsonl")
    facts = {k: about[k] for k in ("seconds", "commit")} | {"ended_by": at.ended_by}
    told = summary.summarize(config, metrics, at.best, facts)
    directory.write(path / "summary.json", json.dumps(told, indent=2))
    report.plot_run(path)
    report.write_page(path)
    return told


def _resumption(at: loop.Snapshot, then: dict, now: dict) -> str:
    """Says where a run goes on, and whether it will be as if it had never stopped."""
    changed = [f"{k} {then.get(k)} -> {now[k]}" for k in now if then.get(k) != now[k]]
    how = f"to rounding, for {', '.join(changed)}" if changed else "bit for bit"
    return f"resuming after round {at.round} of stage {at.stage}, {how}"


def _keep_masks(path: Path, at: loop.Snapshot, kept: dict, model) -> None:
    """Writes packed masks, and once which layers their bits are of."""
    folder = path / "masks"
    if kept and not (folder / "layers.json").exists():
        folder.mkdir(exist_ok=True)
        shapes, _ = jax.eval_shape(model.init, jax.random.key(0))
        layers = jax.tree.map(lambda m: m > 0, model.macs)
        paths = dict(
            zip(masks.leaf_paths(shapes), jax.tree.leaves(layers), strict=True)
        )
        names = [name for name, logged in paths.items() if logged]
        sizes = masks.layer_sizes(shapes, layers).tolist()
        told = json.dumps({"names": names, "sizes": sizes})
        directory.write(folder / "layers.json", told)
    for whose, packed in kept.items():
        np.save(folder / f"{whose}_{at.stage}_{at.round:06d}.npy", packed)


def _forget_masks(path: Path, after: tuple[int, int]) -> None:
    """Removes the masks of rounds that will run again."""
    for file in (path / "masks").glob("*_*_*.npy"):
        _, stage, round = file.stem.split("_")
        if (int(stage), int(round)) > after:
            file.unlink()
