"""Runs what is missing of a study, and says what is known of it.

The points run one after another in this process, or side by side in processes or jobs
of their own. The outcome of a point is in the files of the study alone, so that a study
that is started again sees what is left, whoever ran the rest.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sparsefl_jax import report
from sparsefl_jax.config.defaults import fill_in, plain
from sparsefl_jax.core import formats
from sparsefl_jax.core.check import blame, check, one_line
from sparsefl_jax.models.measure import find
from sparsefl_jax.report.groups import Group, refuse_unlike
from sparsefl_jax.report.load import Run, unify
from sparsefl_jax.report.tables import format_value
from sparsefl_jax.runs import experiment, fit_rounds
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.runs.describe import describe_largest
from sparsefl_jax.simulation import judge
from sparsefl_jax.studies import places
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point
from sparsefl_jax.system import interrupt

_POLL = 0.2  # seconds between looks at processes and jobs
_WAIT = 20.0  # times as long as the page takes, until it is written again


def run(
    points: Sequence[Point],
    workdir: str | Path,
    *,
    jobs: int = 1,
    submit: Callable | None = None,
    unlike: bool = False,
) -> dict[str, str]:
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
      The states of all points, by name, as `points.state` words them.

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
        message = "asking the points to end after this segment"
        listening = interrupt.watch_signals(message)
    on_disk.write(workdir, points)
    missing = [point for point in points if on_disk.state(workdir, point) != "done"]
    say(f"study of {len(points)} points, {len(missing)} to run, in {workdir}")
    due, ended, since = 0.0, 0, time.monotonic()

    def tell(point: Point) -> None:
        nonlocal due, ended
        ended += 1
        spent = time.monotonic() - since  # also on pilots and compilations
        left = formats.format_seconds(spent / ended * (len(missing) - ended))
        say(describe_ending(workdir, point))
        say(line(workdir, points) + f", about {left} left" * (ended < len(missing)))
        if (begun := time.monotonic()) >= due:  # a page of many runs takes seconds
            write_page(workdir, points, unlike)
            due = begun + _WAIT * (time.monotonic() - begun)

    with listening as stopped:
        _work(workdir, missing, start, jobs, stopped, tell)
    write_page(workdir, points, unlike)
    return {point.name: on_disk.state(workdir, point) for point in points}


def _build(points: Sequence[Point], unlike: bool) -> None:
    """Refuses points that cannot run, and runs that cannot be compared."""
    groups = []  # and not the setups, whose data would fill the memory
    for point in points:
        with blame(f"point {point.name!r}"):
            setup, _ = experiment.build(point.of_seed(point.seeds[0]), started=True)
        metric = judge.resolve_metric(setup.metric, setup.stages)
        evals = [find(setup.measure, setup.data.y).record({"metric": metric})]
        config = plain(fill_in(point.config))
        run = Run(Path(point.name), [], evals, [0], {}, config, None)
        groups.append(Group(point.name, [run], point.label or point.name))
    if not unlike:
        refuse_unlike(groups)


def _work(workdir, missing, start, at_once: int, stopped, tell) -> None:
    """Runs points as jobs, `at_once` of them."""
    points = {point.name: point for point in missing}
    waiting, running = list(points), {}
    while waiting or running:
        # Another process may have run some of them, or run them now.
        waiting = [n for n in waiting if on_disk.state(workdir, points[n]) != "done"]
        free = [name for name in waiting if not run_folder.in_use(workdir / name)]
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
            if on_disk.state(workdir, points[name]) == "missing":  # such as a kill
                on_disk.note(workdir, name, job.fate())
            tell(points[name])
        if number := stopped():
            for job in running.values():
                job.cancel()
            while not all(job.done() for job in running.values()):
                time.sleep(_POLL)
            raise interrupt.StoppedError("the study has stopped", number)
        if running or not free:
            time.sleep(_POLL)


def describe(points: Sequence[Point]) -> str:
    """Returns what is known of each point of a study, without running any.

    Args:
      points: all of the study.

    Raises:
      ValueError: names a point that cannot run, and why.
    """
    rows = [["point", "seeds", "rounds", "memory"]]
    for point in points:
        with blame(f"point {point.name!r}"):
            plan = experiment.build(point.config, started=True)
        rounds = str(sum(stage.num_rounds for stage in plan.setup.stages))
        if fit_rounds.budgets_of(point.config):
            rounds = "by its budget"
        memory = describe_largest([stage.memory for stage in plan.stages])
        name = point.label or point.name
        rows.append([name, str(len(point.seeds)), rounds, memory])
    return "\n".join(formats.align(rows))


def describe_ending(workdir: Path, point: Point) -> str:
    """Describes the outcome of a point in one line.

    Args:
      workdir: the study's folder.
      point: one that no longer runs.
    """
    state = on_disk.state(workdir, point)
    if state != "done":
        return f"{point.name} {state}"
    folders = [folder for _, folder in on_disk.folders(workdir, point)]
    summaries = [unify(report.read_summary(folder)) for folder in folders]
    models = [next(iter(s.get("accuracy", {}).values()), {}) for s in summaries]
    measure = summaries[0].get("measure", "accuracy")
    form = partial(format_value, measure=measure)
    accuracies = ", ".join(form(model.get("final")) for model in models)
    if scores := [m["validation"] for m in models if "validation" in m]:
        accuracies += f", validation {', '.join(map(form, scores))}"
    took = formats.format_seconds(sum(s.get("seconds", 0.0) for s in summaries))
    return f"{point.name}: {accuracies} in {took}"


def line(workdir: Path, points: Sequence[Point]) -> str:
    """Returns how far a study has come, in one line.

    Args:
      workdir: the study's folder.
      points: all of them.
    """
    states = [on_disk.state(workdir, point).partition(":")[0] for point in points]
    parts = [f"{states.count('done')} of {len(points)} points done"]
    kinds = [kind for kind in ("running", "failed") if kind in states]
    parts += [f"{states.count(kind)} {kind}" for kind in kinds]
    return ", ".join(parts)


def write_page(workdir: Path, points: Sequence[Point], unlike: bool) -> None:
    """Writes the comparison of all runs so far, with the states of all points.

    Args:
      workdir: the study's folder.
      points: all of the study.
      unlike: whether runs may differ in data, partition, table of devices or metric.
    """
    states = [(point.name, on_disk.state(workdir, point)) for point in points]
    folders = [f for point in points for f in on_disk.begun_folders(workdir, point)]
    try:
        with run_folder.lock(workdir, wait=60):
            groups = report.sort_groups(report.read_groups(folders))
            comparison = report.compare(groups, unlike=unlike)
            title = workdir.resolve().name
            report.write_comparison(comparison, workdir, title=title, status=states)
    except (ValueError, OSError) as error:
        say(f"the page cannot be written: {one_line(error)}")


def say(text: str) -> None:
    """Prints a line of the progress."""
    print(text, file=sys.stderr, flush=True)
