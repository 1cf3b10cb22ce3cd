"""The seeds of a run: one after another, or together in one program.

What a seed leaves in its directory is the same either way, up to rounding.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from sparsefl_jax.data import federated
from sparsefl_jax.runs import job as single
from sparsefl_jax.runs import lockstep, loop, recording
from sparsefl_jax.runs.job import Job
from sparsefl_jax.runs.plan import checks
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.runs.progress import Progress, waited
from sparsefl_jax.runs.segments import Run, Snapshot
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.system import interrupt, processes

Outcome = tuple[int, dict | Exception]


def outcomes(jobs: Sequence[Job], asked: str) -> Iterator[Outcome]:
    """Runs jobs that differ in their seed alone; one that fails costs only itself.

    Args:
      jobs: one for each seed, all of the same `widths`.
      asked: a name in `lockstep.CHOICES`.

    Yields:
      The index of a job, and its summary or the error with which it has ended; as they
      end.

    Raises:
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    if not wanted(asked, len(jobs)):
        if asked == "yes" and len(jobs) > 1:
            show = any(job.progress for job in jobs)
            tell("seeds run one after another: there are several processes", show)
        for index, job in enumerate(jobs):
            yield index, attempt(single.perform, job)
        return
    with contextlib.ExitStack() as stack:
        open_jobs = {}
        for index, job in enumerate(jobs):
            found = attempt(stack.enter_context, single.claimed(job))
            if isinstance(found, Exception):
                yield index, found
            elif found[0].done:
                yield index, attempt(single.ended, job, found[0])
            else:
                open_jobs[index] = found
        if open_jobs:
            yield from _outcomes(jobs, open_jobs, asked == "yes")


def wanted(asked: str, count: int) -> bool:
    """Tells whether seeds are to run together, as far as this machine decides it."""
    if asked == "auto" and jax.devices()[0].platform == "cpu":
        return False
    return asked != "no" and count > 1 and not processes.several()


def attempt(function: Callable, *arguments, **options) -> Any:
    """Returns what a function returns or, if it fails, its error."""
    try:
        return function(*arguments, **options)
    except Exception as error:  # whatever it is, the other seeds go on
        return error


def _outcomes(jobs: Sequence[Job], left: dict, asked: bool) -> Iterator[Outcome]:
    """Goes on with the jobs that have not ended: what `claimed` yielded, by index."""
    show = any(job.progress for job in jobs)
    begin = time.perf_counter(), time.time()
    saved = {i: found.saved for i, (found, _) in left.items()}
    stands = {i: old.snapshot if old else Snapshot() for i, old in saved.items()}
    some = next(iter(left.values()))[1]
    setups = [
        left[i][1].setup if i in left else _other(some.setup, job)
        for i, job in enumerate(jobs)
    ]
    rounds = [at.rounds(some.setup.stages) for at in stands.values()]
    total, done = map(sum, zip(*rounds, strict=True))
    message = "ending after this segment; again to leave at once"
    with (
        interrupt.listening(message) as interrupted,
        Progress(total, done, show=show) as progress,
    ):
        try:
            programs = lockstep.compiled(
                setups,
                some.traced,
                first=min(at.stage for at in stands.values()),
                asked=asked,
                waiting=progress.compiling,
                interrupted=interrupted,
            )
        except lockstep.ApartError as error:
            why = str(error)
        else:
            tell(f"{len(jobs)} seeds run together", show)
            yield from _together(
                jobs, left, setups, programs, progress, begin, interrupted
            )
            return
    tell(f"seeds run one after another: {why}", show)
    for i, run in left.items():
        yield i, attempt(single.go_on, jobs[i], *run)


def _together(
    jobs: Sequence[Job],
    left: dict,
    setups: Sequence[Setup],
    programs: Programs,
    progress: Progress,
    begin: tuple[float, float],
    interrupted: Callable,
) -> Iterator[Outcome]:
    """Goes on with jobs in step, each with its own files.

    `begin` is when that began, by `time.perf_counter` and by `time.time`.
    """
    with contextlib.ExitStack() as stack:
        files, at, recorders = {}, {}, {}
        for i, run in left.items():
            job = jobs[i]
            if files and job.progress:
                job = job._replace(progress="rounds")  # one plan is enough
            files[i] = stack.enter_context(contextlib.ExitStack())
            context = single.opened(job, *run, len(jobs), progress, begin[0])
            opened = attempt(files[i].enter_context, context)
            if isinstance(opened, Exception):
                yield i, opened
            else:
                at[i], recorders[i] = opened
        waited(begin[1])
        seeds = [job.config.seed for job in jobs]
        for i, outcome in _in_step(at, recorders, seeds, setups, programs, interrupted):
            failed = attempt(files[i].close)
            yield i, failed or outcome


def tell(text: str, show: bool) -> None:
    """Says in one line how seeds run."""
    if show:
        print(text, file=sys.stderr)


def _other(setup: Setup, job: Job) -> Setup:
    """Returns the setup of a seed that does not run; its data keep its place."""
    data = attempt(job.data)
    return setup if isinstance(data, Exception) else setup._replace(data=data)


def _in_step(
    at: dict[int, Snapshot],
    recorders: dict[int, recording.Recorder],
    seeds: Sequence[int],
    setups: Sequence[Setup],
    programs: Programs,
    interrupted: Callable,
) -> Iterator[Outcome]:
    """Runs seeds in step and records each as if it were alone."""
    left = {i: where for i, where in at.items() if not where.ended_by}
    for i in at.keys() - left.keys():
        yield i, attempt(recorders[i].finish, at[i], programs.memory)
    runs = lockstep.steps(seeds, setups, programs, left)
    for came in lockstep.go_on(runs, lockstep.simulating(programs, setups)):
        stop = interrupted()
        for i, segment in came.items():
            what = attempt(_record, recorders[i], segment, programs, stop)
            if what is not None:
                runs[i].close()
                yield i, what
            elif segment.snapshot is not None:
                at[i] = segment.snapshot
        if stop:
            break
    if stop := interrupted():
        where = min(((a.stage, a.round) for a in at.values()), default=(0, 0))
        where_ended = "ended after round {1} of stage {0}, all saved".format(*where)
        raise interrupt.StoppedError(where_ended, stop)


def _record(recorder: recording.Recorder, came, programs, stop: int) -> dict | None:
    """Writes down a segment; returns the summary of a run that has ended with it."""
    if isinstance(came, Exception):
        raise came
    due, at = recorder.record(came), came.snapshot
    if at is None:  # the error follows
        return None
    if due or stop or at.ended_by:
        recorder.save(at, came.models)
    return recorder.finish(at, programs.memory) if at.ended_by else None


def pure(setups: dict[int, Setup], asked: str, show: bool) -> list[Run]:
    """Runs setups without files.

    Args:
      setups: by seed; they differ in their data at most.
      asked: a name in `lockstep.CHOICES`.
      show: whether to show the progress.

    Raises:
      Exception: as `loop.segments` does.
    """
    if wanted(asked, len(setups)):
        try:
            return _pure(setups, asked == "yes", show)
        except lockstep.ApartError as error:
            tell(f"seeds run one after another: {error}", show)
    found = []
    for seed, setup in setups.items():
        with Progress(*Snapshot().rounds(setup.stages), show=show) as bar:
            found.append(loop.run_setup(jax.random.key(seed), setup, bar.update))
    return found


def _pure(setups: dict[int, Setup], asked: bool, show: bool) -> list[Run]:
    data = [setup.data for setup in setups.values()]
    widths = [max(each) for each in zip(*map(federated.widths, data), strict=True)]
    padded = [
        setup._replace(data=federated.padded(setup.data, widths))
        for setup in setups.values()
    ]
    traced, *_ = [checks.run(setup) for setup in padded]
    each, _ = Snapshot().rounds(padded[0].stages)
    with Progress(len(padded) * each, show=show) as bar:
        programs = lockstep.compiled(padded, traced, asked=asked, waiting=bar.compiling)
        at = dict.fromkeys(range(len(padded)))
        runs = lockstep.steps(list(setups), padded, programs, at)
        simulate = lockstep.simulating(programs, padded)
        metrics, last = {i: [] for i in runs}, {}
        for came in lockstep.go_on(runs, simulate):
            for i, segment in came.items():
                if isinstance(segment, Exception):
                    raise segment
                metrics[i] += segment.records
                if segment.records:
                    bar.update(segment.records)
                last[i] = segment
    return [Run(*last[i].snapshot.state[:2], last[i].models, metrics[i]) for i in runs]
