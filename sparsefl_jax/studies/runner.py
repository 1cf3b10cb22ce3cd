"""Runs what is missing of a study, and keeps its page and its progress up to date.

The points run one after another in this process, or side by side in processes or jobs
of their own. The outcome of a point is in its folder alone, so that a study that is
started again sees what is left, whoever ran the rest.
"""

import contextlib
import functools
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import jax

from sparsefl_jax.core.check import UserError, check, one_line
from sparsefl_jax.report.groups import refuse_unlike
from sparsefl_jax.runs import experiment, fit_rounds
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.simulation import evaluate
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies import processes, progress
from sparsefl_jax.studies.points import Point
from sparsefl_jax.system import files, interrupt

_POLL = 0.2  # seconds between looks at processes and jobs


def run(
    points: Sequence[Point],
    workdir: str | Path,
    *,
    jobs: int = 1,
    submit: Callable | None = None,
    unlike: bool = False,
    show: bool = True,
) -> dict[str, on_disk.State]:
    """Runs the points of a study that have not ended.

    A point that fails costs only itself: the others run, and the failed one is tried
    again when the study is started again.

    Args:
      points: the study.
      workdir: its folder, created if absent. If it holds the study already, what is
        missing runs.
      jobs: points at a time, each in a process of its own with its share of the cores;
        1 runs them in this process, unless `submit` is given.
      submit: `(names) -> jobs`, which runs points elsewhere, see `launchers`; a job has
        `done()`, `cancel()`, and `fate()`, which says how it ended.
      unlike: whether runs may differ in data, partition, table of devices or metric.
      show: whether to print the progress.

    Returns:
      The states of all points, by name.

    Raises:
      ValueError: a point cannot run, or the runs cannot be compared; before any runs.
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    check("jobs", jobs, "[1, inf)")
    workdir = Path(workdir)
    on_disk.check_points(points)
    say = _say if show else lambda text: None
    metrics = []  # and not the setups, whose data would fill the memory
    for point in points:
        with on_disk.naming(point):
            setup, _ = experiment.build(point.of_seed(point.seeds[0]), started=True)
        metrics.append(evaluate.resolved(setup.metric, setup.stages))
    if not unlike:
        refuse_unlike(on_disk.groups(points, metrics))
    start = submit
    listening = interrupt.listening("asking the points to end after this segment")
    if submit is None and jobs > 1:
        start = processes.starting(workdir, jobs)
    elif submit is None:  # runs listen for themselves
        start, listening = _here(workdir), contextlib.nullcontext(lambda: 0)
    old = on_disk.read(workdir) if (workdir / on_disk.FILE).exists() else []
    if left := {point.name for point in old} - {point.name for point in points}:
        say(f"not in this study, and so not on its page: {', '.join(sorted(left))}")
    points, failed = _with_rounds(workdir, points, say)
    on_disk.write(workdir, points)
    able = [point for point in points if point.name not in failed]
    missing = [point for point in able if not _complete(workdir, point)]
    say(f"study of {len(points)} points, {len(missing)} to run, in {workdir}")
    with listening as stopped:
        write = functools.partial(progress.write_page, workdir, points, unlike, say)
        _work(workdir, points, missing, start, say, jobs, stopped, write)
    write()
    return {point.name: on_disk.state(workdir, point) for point in points}


def run_point(workdir: str | Path, name: str) -> None:
    """Runs the seeds of a point that have not ended; notes why any fails.

    Args:
      workdir: the study's folder.
      name: of the point.

    Raises:
      ValueError: there is no such study or point.
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    workdir, known = Path(workdir), on_disk.read(workdir)
    check("point", name, [point.name for point in known])
    (point,) = (point for point in known if point.name == name)
    (workdir / name).mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(run_folder.locked(workdir / name))
        except ValueError:  # another process runs the point
            return
        on_disk.failure(workdir, name).unlink(missing_ok=True)
        reasons = []
        for what, error in _errors(workdir, point):
            reasons.append(f"{what}: {one_line(error)}")
            trace = ""
            if not isinstance(error, UserError):
                trace = "".join(traceback.format_exception(error))
            _note(workdir, point, "\n".join([*reasons, trace]))


def _errors(workdir: Path, point: Point) -> Iterator[tuple[str, Exception]]:
    """Goes on with the seeds; yields what failed, and its error."""
    part = "the budget"
    try:
        point = _fitted(workdir, point)
        part = "the data"
        folders = on_disk.folders(workdir, point)
        runs = [(point.of_seed(seed), folder) for seed, folder in folders]
        outcomes = experiment.run_each(runs)
    except Exception as error:  # a method of one's own may raise any
        yield part, error
        return
    for seed, outcome in zip(point.seeds, outcomes, strict=True):
        if isinstance(outcome, Exception):
            yield f"seed {seed}", outcome


def _with_rounds(
    workdir: Path, points: Sequence[Point], say: Callable
) -> tuple[list[Point], list[str]]:
    """Sets the rounds of points whose methods follow them, as FedSparsify's does.

    The study's file keeps plain values, so what follows the rounds follows them here
    alone, and not in the process of the point.

    Returns:
      All points, and the names of those whose pilots failed, as one that diverges does.
    """
    fitted, failed = [], []
    for point in points:
        if fit_rounds.followed(point.config):
            on_disk.failure(workdir, point.name).unlink(missing_ok=True)
            try:
                point = _fitted(workdir, point)
            except ValueError as error:  # a mistake is named before any runs
                raise UserError(f"point {point.name!r}: {one_line(error)}") from error
            except Exception as error:
                failed.append(point.name)
                trace = "".join(traceback.format_exception(error))
                _note(workdir, point, f"the budget: {one_line(error)}\n{trace}")
                say(progress.ending(workdir, point))
        fitted.append(point)
    return fitted, failed


def _fitted(workdir: Path, point: Point) -> Point:
    """Returns the point with the rounds that its budget pays for."""
    point = on_disk.with_kept_rounds(workdir, point)
    config, found = fit_rounds.fitted(point.config, experiment.build, progress=True)
    if found:
        _say(f"{point.name}: {found}")
    return point._replace(config=config)


def _complete(workdir: Path, point: Point) -> bool:
    """Returns whether all runs of a point have ended; `write` has compared them."""
    folders = on_disk.folders(workdir, point)
    return all((folder / "summary.json").exists() for _, folder in folders)


def _here(workdir: Path) -> Callable:
    """Returns `(names) -> jobs`, which runs points in this process to their end."""
    ended = SimpleNamespace(done=lambda: True, fate=lambda: "ended without a result")

    def start(names: Sequence[str]) -> list[SimpleNamespace]:
        for name in names:
            run_point(workdir, name)
            jax.clear_caches()  # the next point has programs of its own
        return [ended] * len(names)

    return start


def _work(workdir, points, missing, start, say, at_once: int, stopped, write) -> None:
    """Runs points as jobs, `at_once` of them."""
    waiting, running = list(missing), {}
    places = {point.name: i for i, point in enumerate(missing, 1)}
    write_page = progress.seldom(write)

    def tell(point):
        say(progress.ending(workdir, point))
        say(progress.line(workdir, points))
        write_page()

    while waiting or running:
        free = [p for p in waiting if not run_folder.in_use(workdir / p.name)]
        for point in [p for p in free if _complete(workdir, p)]:
            free.remove(point)
            waiting.remove(point)
            tell(point)  # another process has run it
        if chosen := free[: at_once - len(running)]:
            waiting = [point for point in waiting if point not in chosen]
            for name in (point.name for point in chosen):
                say(f"point {places[name]} of {len(missing)}: {name}")
            jobs = start([point.name for point in chosen])
            running |= {p.name: (p, j) for p, j in zip(chosen, jobs, strict=True)}
        for name, (point, job) in list(running.items()):
            if not job.done():
                continue
            del running[name]
            if run_folder.in_use(workdir / name):
                waiting.append(point)  # another process was faster
                continue
            left = not _complete(workdir, point)
            if left and not on_disk.failure(workdir, name).exists():  # such as a kill
                _note(workdir, point, f"{job.fate()}\n")
            tell(point)
        if number := stopped():
            for _, job in running.values():
                job.cancel()
            while not all(job.done() for _, job in running.values()):
                time.sleep(_POLL)
            raise interrupt.StoppedError("the study has stopped", number)
        if running or not free:
            time.sleep(_POLL)


def _note(workdir: Path, point: Point, text: str) -> None:
    """Writes down why a point has failed."""
    note = on_disk.failure(workdir, point.name)
    note.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(note, text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
