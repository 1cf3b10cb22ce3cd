"""A run with files: logs, checkpoints, masks, a summary, plots, a page.

The files are described in `docs/runs.md`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax

from sparsefl_jax import report
from sparsefl_jax.core.types import Key
from sparsefl_jax.data import federated
from sparsefl_jax.runs import (
    checkpoint,
    fit_rounds,
    loop,
    recording,
    resumption,
    run_directory,
    summary,
)
from sparsefl_jax.runs.config import fields
from sparsefl_jax.runs.config.plain import plain, replaced, values
from sparsefl_jax.runs.plan import describe, formatting
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.runs.source import CONFIGURATION, Parts, Source, assemble
from sparsefl_jax.system import files, interrupt, log_lines, processes, provenance


class Job(NamedTuple):
    """A run as it was asked for; mostly the arguments of `run`."""

    config: SimpleNamespace  # as `plain.values` returns it
    path: Path
    resume: bool
    progress: bool | str = True
    extend_at_final: bool = False
    accept_lost_records: bool = False
    widths: tuple[int, int, int] | None = None
    source: Source = CONFIGURATION

    def build(self, config: SimpleNamespace, started: bool = False) -> Parts:
        """Builds what runs, with the configuration that the run goes on with."""
        return assemble(self.source, config, started, self.widths)


def build(config, started: bool = False) -> Parts:
    """Builds what a configuration names; refuses what cannot run.

    Args:
      config: as `defaults.default_config` makes it.
      started: whether there is a checkpoint, so that `init_from` is not needed.

    Raises:
      ValueError: in one line, before any compilation.
    """
    fields.check(config)
    return assemble(CONFIGURATION, values(config), started)


def widths_of(
    configs: Sequence, source: Source = CONFIGURATION
) -> tuple[int, int, int] | None:
    """Returns the widths of clients' tables that serve all of some configurations.

    Runs of the same widths share their compiled programs. Splits differ by seed.

    Args:
      configs: configurations that differ in their seed.
      source: of their data.

    Returns:
      The columns of `train`, `val` and `test`; None if all have the same anyway.
    """
    if len(configs) < 2 or configs[0].partition_seed is not None:
        return None
    train, val, test = zip(
        *(federated.widths(source.data(values(c))) for c in configs), strict=True
    )
    return max(train), max(val), max(test)


def plan(config, parts: Parts, compiled: bool = False) -> str:
    """Returns the plan as text: devices, bits, FLOPs, memory and time.

    Args:
      config: of the run.
      parts: what it builds.
      compiled: whether to compile the stages, which tells what memory they take.
    """
    stages = range(len(parts.traced))
    memories = None
    if compiled:
        with Programs(*parts) as programs:
            memories = [programs.of(stage).memory for stage in stages]
    told = describe.describe(*parts, key=jax.random.key(config.seed), memories=memories)
    lines = [formatting.text(told)]
    if config.seeds > 1:
        lines.append(f"All this {config.seeds} times, once for each seed.")
    limits = [f"until.{k}={v:g}" for k, v in config.until.items() if v is not None]
    if limits:
        lines.append(f"Less if it ends earlier, by {' or '.join(limits)}.")
    return "\n".join(lines)


def run(
    config,
    workdir,
    *,
    resume: bool = False,
    progress: bool | str = True,
    extend_at_final: bool = False,
    accept_lost_records: bool = False,
    widths: tuple[int, int, int] | None = None,
) -> dict:
    """Runs a configuration and writes its files to `workdir`.

    Of several processes, which all call it alike, the first one writes; to go on all
    have to read the same `workdir`.

    Args:
      config: as `defaults.default_config` makes it.
      workdir: a directory, created if absent.
      resume: whether to go on with the run that `workdir` holds; else it holds none.
        `config` may differ in what `workdir.FREE` and `workdir.LATER` name.
      progress: whether to show the plan and a progress bar, or lines where there is no
        terminal; 'rounds' leaves out the plan.
      extend_at_final: whether a resumed run may have more rounds although its method's
        own schedule has ended.
      accept_lost_records: whether to go on from a checkpoint although logs from before
        it are not whole.
      widths: to which clients' tables are padded, see `widths_of`; no result changes.

    Returns:
      The summary, as `summary.json` has it.

    Raises:
      ValueError: in one line, before any compilation, on what cannot be run.
      FloatingPointError: if a loss is not finite; the last checkpoint stays.
      MemoryError: if the devices' memory does not suffice; the last checkpoint stays.
      OSError: if a file cannot be written; the run can be resumed.
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    fields.check(config)
    if resume:
        config = fit_rounds.kept(config, run_directory.read_config(workdir)) or config
    else:
        show = bool(progress) and processes.leads()
        config, said = fit_rounds.fitted(config, build, progress=show)
        if said and show:
            print(said, file=sys.stderr)
    how = resume, progress, extend_at_final, accept_lost_records, widths
    job = Job(values(config), Path(workdir), *how)
    for name in ("extend_at_final", "accept_lost_records"):
        if getattr(job, name) and not resume:
            raise ValueError(f"{name}=True, expected resume=True with it")
    return perform(job)


def perform(job: Job) -> dict:
    """Runs what was asked for; returns and raises what `run` does."""
    return _run_seeds(job) if job.config.seeds > 1 else _run_one(job)


def _run_one(job: Job) -> dict:
    """Runs a configuration with one seed."""
    config, path = job.config, job.path
    processes.check_same("the configuration", plain(config))
    parts = None
    if not job.resume:  # refuses before anything is written
        parts = job.build(config)
    if not processes.leads():
        return _follow(job, parts)
    with run_directory.claimed(path, config, job.resume):
        found = _find(job)
        processes.lead([found.done, found.saved is not None])
        if not found.done:
            started = found.saved is not None
            parts = parts or job.build(found.config, started)
            return processes.lead(_run(found, parts, path, job.progress))
        if job.progress:
            print(*found.said, sep="\n", end="\n" * bool(found.said), file=sys.stderr)
        if not (path / "report.html").exists():
            recording.draw(path)
        return processes.lead(report.read_summary(path))


def _find(job: Job) -> resumption.Found:
    may = job.extend_at_final, job.accept_lost_records
    return resumption.find(job.path, job.config, *may)


def _run_seeds(job: Job) -> dict:
    """Runs one seed after another in directories of their own; averages them."""
    config, changed = job.config, {}
    if job.resume:
        old = run_directory.read_config(job.path)
        config, _ = resumption.planned(config, plain(old))
        changed = run_directory.differences(old, config)
    singles = [
        job._replace(
            config=replaced(config, seed=seed, seeds=1),
            path=job.path / f"seed_{seed}",
        )
        for seed in range(config.seed, config.seed + config.seeds)
    ]
    widths = widths_of([single.config for single in singles], job.source)
    singles = [single._replace(widths=widths) for single in singles]
    if not job.resume:
        singles[0].build(singles[0].config)  # refuses before anything is written
    if not processes.leads():
        for single in singles:
            _run_one(single._replace(resume=True))
        return processes.lead()
    with run_directory.claimed(job.path, config, job.resume) as root:
        singles = [
            single._replace(resume=(single.path / "config.json").exists())
            for single in singles
        ]
        if changed:  # all are asked before any goes on
            for single in singles:
                if single.resume:
                    _find(single)
            run_directory.amend(root, config)
        both = summary.over_seeds([_run_one(single) for single in singles])
        files.write_text(root / "summary.json", json.dumps(both, indent=2))
        report.write_comparison([root], root)
    return processes.lead(both)


def _run(found: resumption.Found, parts: Parts, path: Path, progress: bool) -> dict:
    """Runs to the end, or to an interruption, from the last checkpoint if any."""
    config, saved = found.config, found.saved
    chunks = ", ".join(str(traced.memory.chunk) for traced in parts.traced)
    key, here = jax.random.key(config.seed), provenance.facts(chunks)
    at, data = resumption.start(saved, parts.setup.data)
    before = saved.about if saved else {"position": None, "seconds": 0.0}
    if progress and (saved or progress != "rounds"):
        said = resumption.describe(saved, here) if saved else plan(config, parts)
        if saved is None and (path / "metrics.jsonl").exists():
            said = f"{said}\nno checkpoint was saved here: it begins again"
        print(said, *found.said, f"writing to {path}", sep="\n", file=sys.stderr)
    about = before | {
        "machine": here,
        "commit": before.get("commit", here["commit"]),
        "config": plain(config),
        "data": data,
        "lost": [*before.get("lost", ()), *found.lost],
    }
    if saved:
        about["position"] = log_lines.restore(path, before["position"])
    run_directory.amend(path, config)
    opened = recording.recording(path, config, key, parts.setup, at, about, progress)
    with opened as recorder:
        message = "ending after this segment; again to leave at once"
        return _simulate(key, parts, at, recorder, message)


def _follow(job: Job, parts: Parts | None) -> dict:
    """Runs the same rounds on every other process, without writing files."""
    done, begun = processes.lead()
    if done:
        return processes.lead()
    config, saved, key = job.config, None, jax.random.key(job.config.seed)
    if begun:
        saved = checkpoint.read(job.path, key)
        found = resumption.settle(config, saved, job.extend_at_final)
        config, saved = found.config, found.saved
    parts = parts or job.build(config, begun)
    at, _ = resumption.start(saved, parts.setup.data)
    message = "asking all processes to end after this segment"
    _simulate(key, parts, at, recording.Recorder(), message)
    return processes.lead()


def _simulate(
    key: Key, parts: Parts, at: loop.Snapshot, recorder: recording.Recorder, message
) -> dict:
    """Runs to the end, or to an interruption; returns what `finish` returns."""
    with (
        interrupt.listening(message) as interrupted,
        Programs(*parts, at.stage, recorder.waiting) as programs,
    ):
        for segment in () if at.ended_by else loop.go_on(key, programs, at):
            due = recorder.record(segment)
            if segment.snapshot is None:
                continue
            at = segment.snapshot
            due, stop = processes.most(due, interrupted())
            if due or stop or at.ended_by:
                recorder.save(_whole(at), segment.models)
            if stop and not at.ended_by:
                where = f"round {at.round} of stage {at.stage}"
                raise interrupt.StoppedError(f"ended after {where}, all saved", stop)
        written = recorder.finish(at, programs.memory)
        (stop,) = processes.most(interrupted())
        if stop:  # later runs, such as those of other seeds, are not to begin
            raise interrupt.StoppedError("the run has finished", stop)
    return written


def _whole(at: loop.Snapshot) -> loop.Snapshot:
    """Gathers the state so that process 0 can write it; every process calls it."""
    if not processes.several():
        return at  # it is written some at a time, never copied as a whole
    return at._replace(state=processes.fetch(at.state))
