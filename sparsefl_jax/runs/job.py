"""One run with its files, from its start or from its last checkpoint."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax

from sparsefl_jax import report
from sparsefl_jax.core.types import Key
from sparsefl_jax.data.federated import FederatedData, padded
from sparsefl_jax.runs import (
    checkpoint,
    dry_run,
    loop,
    recording,
    resumption,
    run_directory,
)
from sparsefl_jax.runs.config.plain import plain
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.runs.progress import Progress
from sparsefl_jax.runs.segments import Snapshot
from sparsefl_jax.runs.source import CONFIGURATION, Parts, Source
from sparsefl_jax.system import interrupt, log_lines, processes, provenance


class Job(NamedTuple):
    """A run as it was asked for; mostly the arguments of `run`."""

    config: SimpleNamespace  # as `plain.values` returns it
    path: Path
    resume: bool
    progress: bool | str = True  # whether to show it; 'rounds' leaves out the plan
    extend_at_final: bool = False
    accept_lost_records: bool = False
    widths: tuple[int, ...] | None = None  # of clients' tables, see `widths_of`
    source: Source = CONFIGURATION

    def build(self, config: SimpleNamespace, started: bool = False) -> Parts:
        """Builds what runs, with the configuration that the run goes on with."""
        return self.source.parts(config, self.data(), started)

    def data(self) -> FederatedData:
        """Reads the data of the run, with clients' tables of its widths."""
        data = self.source.data(self.config)
        return data if self.widths is None else padded(data, self.widths)


def perform(job: Job) -> dict:
    """Runs a configuration with one seed; returns and raises as `experiment.run`."""
    processes.check_same("the configuration", plain(job.config))
    if not processes.leads():
        return _follow(job)
    with claimed(job) as (found, parts):
        if found.done:
            return processes.lead(ended(job, found))
        return processes.lead(go_on(job, found, parts))


@contextlib.contextmanager
def claimed(job: Job) -> Iterator[tuple[resumption.Found, Parts | None]]:
    """Holds the directory of a run.

    Args:
      job: the run.

    Yields:
      What the directory holds, and what is to run; None if it has ended.

    Raises:
      ValueError: in one line: it cannot run, or not there.
    """
    # A new run is refused before anything is written.
    parts = None if job.resume else job.build(job.config)
    with run_directory.claimed(job.path, job.config, job.resume):
        found = find(job)
        processes.lead([found.done, found.saved is not None])
        if parts is None and not found.done:
            parts = job.build(found.config, found.saved is not None)
        yield found, parts


def find(job: Job) -> resumption.Found:
    """Reads what the directory of a run holds."""
    return resumption.find(
        job.path, job.config, job.extend_at_final, job.accept_lost_records
    )


def ended(job: Job, found: resumption.Found) -> dict:
    """Returns the summary of a run that has ended; draws what is missing."""
    if job.progress:
        print(*found.said, sep="\n", end="\n" * bool(found.said), file=sys.stderr)
    if not (job.path / "report.html").exists():
        recording.draw(job.path)
    return report.read_summary(job.path)


def go_on(job: Job, found: resumption.Found, parts: Parts) -> dict:
    """Runs to the end, or to an interruption, from the last checkpoint if any."""
    message = "ending after this segment; again to leave at once"
    with opened(job, found, parts) as (at, recorder):
        key = jax.random.key(found.config.seed)
        return _simulate(key, parts, at, recorder, message)


@contextlib.contextmanager
def opened(
    job: Job,
    found: resumption.Found,
    parts: Parts,
    together: int = 1,
    progress: Progress | None = None,
    begin: float | None = None,
) -> Iterator[tuple[Snapshot, recording.Recorder]]:
    """Opens the files of a run where it stood.

    Args:
      job: the run, whose directory is claimed.
      found: what the directory holds.
      parts: what the run builds.
      together: the number of seeds that one program runs, and that share its time.
      progress: which the run adds to; by default one of its own.
      begin: when its time began, by `time.perf_counter`; by default now.

    Yields:
      Where the run stands, and its `Recorder`.

    Raises:
      ValueError: in one line: the data are not those of the checkpoint.
      OSError: a file cannot be written.
    """
    config, saved, path = found.config, found.saved, job.path
    chunks = ", ".join(str(traced.memory.chunk) for traced in parts.traced)
    if together > 1:
        chunks += f" of {together} seeds together"
    key, code = jax.random.key(config.seed), resumption.own_code(plain(config))
    machine = provenance.facts(chunks) | code
    at, data = resumption.start(saved, parts.setup)
    before = saved.about if saved else {"position": None, "seconds": 0.0}
    if job.progress and (saved or job.progress != "rounds"):
        opening = resumption.describe(saved, machine) if saved else dry_run.text(parts)
        if saved is None and (path / "metrics.jsonl").exists():
            opening = f"{opening}\nno checkpoint was saved here: it begins again"
        print(opening, *found.said, f"writing to {path}", sep="\n", file=sys.stderr)
    about = before | {
        "machine": machine,
        "commit": before.get("commit", machine["commit"]),
        "code": before.get("code", code),
        "config": plain(config),
        "data": data,
        "lost": [*before.get("lost", ()), *found.lost],
    }
    if saved:
        about["position"] = log_lines.restore(path, before["position"])
    run_directory.amend(path, config)
    with contextlib.ExitStack() as stack:
        if progress is None:
            rounds = at.rounds(parts.setup.stages)
            progress = stack.enter_context(Progress(*rounds, show=bool(job.progress)))
        opened = recording.recording(
            path, config, key, parts.setup, at, about, progress, together, begin
        )
        yield at, stack.enter_context(opened)


def _follow(job: Job) -> dict:
    """Runs the same rounds on every other process, without writing files."""
    parts = None if job.resume else job.build(job.config)
    done, begun = processes.lead()
    if done:
        return processes.lead()
    config, saved, key = job.config, None, jax.random.key(job.config.seed)
    if begun:
        saved = checkpoint.read(job.path, key)
        found = resumption.settle(config, saved, job.extend_at_final)
        config, saved = found.config, found.saved
    parts = parts or job.build(config, begun)
    at, _ = resumption.start(saved, parts.setup)
    message = "asking all processes to end after this segment"
    _simulate(key, parts, at, recording.Recorder(), message)
    return processes.lead()


def _simulate(
    key: Key, parts: Parts, at: Snapshot, recorder: recording.Recorder, message
) -> dict:
    """Runs to the end, or to an interruption; returns what `finish` returns."""
    with (
        interrupt.listening(message) as interrupted,
        Programs(
            *parts, at.stage, recorder.waiting, interrupted=interrupted
        ) as programs,
    ):
        for segment in () if at.ended_by else loop.go_on(key, programs, at):
            due = recorder.record(segment)
            if segment.snapshot is None:
                continue
            at = segment.snapshot
            due, stop = processes.most(due, interrupted())
            # The next stage may have to compile, when a signal ends the run at once.
            ends = at.round == parts.setup.stages[at.stage].num_rounds
            if due or stop or ends or at.ended_by:
                recorder.save(_whole(at), segment.models)
            if stop and not at.ended_by:
                where = f"round {at.round} of stage {at.stage}"
                raise interrupt.StoppedError(f"ended after {where}, all saved", stop)
        written = recorder.finish(at, programs.memory)
        (stop,) = processes.most(interrupted())
        if stop:  # later runs, such as those of other seeds, are not to begin
            raise interrupt.StoppedError("the run has finished", stop)
    return written


def _whole(at: Snapshot) -> Snapshot:
    """Gathers the state so that process 0 can write it; every process calls it."""
    if not processes.several():
        return at  # it is written some at a time, never copied as a whole
    return at._replace(state=processes.fetch(at.state))
