"""Runs what is missing of a study, and keeps its page and its progress up to date.

The points run one after another in this process, or side by side in processes or jobs
of their own. The outcome of a point is in its folder alone, so that a study that is
started again sees what is left, whoever ran the rest.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sparsefl_jax.core.check import UserError, check, one_line
from sparsefl_jax.report.groups import refuse_unlike
from sparsefl_jax.runs import experiment, fit_rounds
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.simulation import judge
from sparsefl_jax.studies import places, status, worker
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point
from sparsefl_jax.studies.status import say
from sparsefl_jax.system import interrupt

_POLL = 0.2  # seconds between looks at processes and jobs


def run(
    points: Sequence[Point],
    workdir: str | Path,
    *,
    jobs: int = 1,
    submit: Callable | None = None,
    unlike: bool = False,
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
      submit: `(names) -> jobs`, which runs points elsewhere, see `places`.
      unlike: whether runs may differ in data, partition, table of devices or metric.

    Returns:
      The states of all points, by name.

    Raises:
      ValueError: a point cannot run, or the runs cannot be compared; before any runs.
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    check("jobs", jobs, "[1, inf)")
    workdir = Path(workdir)
    on_disk.check_points(points)
    _build(points, unlike)
    if submit is None and jobs == 1:  # runs listen for themselves
        start, listening = places.here(workdir), contextlib.nullcontext(lambda: 0)
    else:
        start = submit or places.pool(workdir, jobs)
        listening = interrupt.listening("asking the points to end after this segment")
    old = on_disk.read(workdir) if (workdir / on_disk.FILE).exists() else []
    if left := {point.name for point in old} - {point.name for point in points}:
        say(f"not in this study, and so not on its page: {', '.join(sorted(left))}")
    points, failed = _with_rounds(workdir, points)
    on_disk.write(workdir, points)
    able = [point for point in points if point.name not in failed]
    missing = [point for point in able if not on_disk.complete(workdir, point)]
    say(f"study of {len(points)} points, {len(missing)} to run, in {workdir}")
    write = functools.partial(status.write_page, workdir, points, unlike)
    write_seldom = status.seldom(write)

    def tell(point: Point) -> None:
        say(status.ending(workdir, point))
        say(status.line(workdir, points))
        write_seldom()

    with listening as stopped:
        _work(workdir, missing, start, jobs, stopped, tell)
    write()
    return {point.name: on_disk.state(workdir, point) for point in points}


def _build(points: Sequence[Point], unlike: bool) -> None:
    """Refuses points that cannot run, and runs that cannot be compared."""
    metrics = []  # and not the setups, whose data would fill the memory
    for point in points:
        with on_disk.naming(point):
            setup, _ = experiment.build(point.of_seed(point.seeds[0]), started=True)
        metrics.append(judge.resolve_metric(setup.metric, setup.stages))
    if not unlike:
        refuse_unlike(on_disk.groups(points, metrics))


def _with_rounds(
    workdir: Path, points: Sequence[Point]
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
                point = worker.fitted(workdir, point)
            except UserError as error:  # a mistake is named before any runs
                raise UserError(f"point {point.name!r}: {one_line(error)}") from error
            except Exception as error:
                failed.append(point.name)
                worker.note_errors(workdir, point.name, [("the budget", error)])
                say(status.ending(workdir, point))
        fitted.append(point)
    return fitted, failed


def _work(workdir, missing, start, at_once: int, stopped, tell) -> None:
    """Runs points as jobs, `at_once` of them."""
    points = {point.name: point for point in missing}
    waiting, running = list(points), {}
    while waiting or running:
        free = [name for name in waiting if not run_folder.in_use(workdir / name)]
        for name in [n for n in free if on_disk.complete(workdir, points[n])]:
            free.remove(name)
            waiting.remove(name)
            tell(points[name])  # another process has run it
        if chosen := free[: at_once - len(running)]:
            for name in chosen:
                waiting.remove(name)
                say(f"point {[*points].index(name) + 1} of {len(points)}: {name}")
            running |= zip(chosen, start(chosen), strict=True)
        for name in [name for name, job in running.items() if job.done()]:
            job = running.pop(name)
            if run_folder.in_use(workdir / name):
                waiting.append(name)  # another process was faster
                continue
            left = not on_disk.complete(workdir, points[name])
            if left and not on_disk.failure(workdir, name).exists():  # such as a kill
                on_disk.note(workdir, name, f"{job.fate()}\n")
            tell(points[name])
        if number := stopped():
            for job in running.values():
                job.cancel()
            while not all(job.done() for job in running.values()):
                time.sleep(_POLL)
            raise interrupt.StoppedError("the study has stopped", number)
        if running or not free:
            time.sleep(_POLL)
