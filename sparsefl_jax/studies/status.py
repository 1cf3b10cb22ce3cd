"""What is known of a study: before it runs, line by line as it runs, and its page."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sparsefl_jax import report
from sparsefl_jax.core import formats
from sparsefl_jax.core.check import one_line
from sparsefl_jax.report.differences import compare_fields
from sparsefl_jax.runs import dry_run, experiment, fit_rounds
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point

_WAIT = 20.0  # times as long as the page takes, until it is written again
_HEAD = ["point", "seeds", "rounds", "bits of a round", "FLOPs of a round", "memory"]


def describe(points: Sequence[Point], workdir: Path | None = None) -> str:
    """Returns the points of a study and what is known of each, without running any.

    Args:
      points: all of the study.
      workdir: of the study; the rounds that pilots have found of its runs there count.

    Raises:
      ValueError: names a point that cannot run, and why.
    """
    if workdir is not None:
        points = [on_disk.with_kept_rounds(workdir, point) for point in points]
    rows = []
    for point in points:
        with on_disk.naming(point):
            plan = experiment.build(point.config, started=True)
        setup, last = plan.setup, len(plan.stages) - 1
        down, up, flops = dry_run.largest_round(plan, last)
        rounds = sum(stage.num_rounds for stage in setup.stages)
        rows.append(
            [
                point.label or point.name,
                str(len(point.seeds)),
                "by a pilot" if fit_rounds.wanted(point.config) else str(rounds),
                formats.format_si(down + up, "bit"),
                formats.format_si(flops),
                dry_run.largest([stage.memory for stage in plan.stages]),
            ]
        )
    runs = sum(len(point.seeds) for point in points)
    lines = [
        *formats.align([_HEAD, *rows]),
        "",
        f"{len(points)} points, {runs} runs; bits and FLOPs are the most that a round "
        "of the last stage takes, all weights and positions",
        "",
    ]
    if settings := compare_fields(on_disk.groups(points)).settings:
        lines.append("what differs, beside the method and what follows from it:")
        for i, point in enumerate(points):
            values = (
                f"{name}={of[i]}" for name, of in settings.items() if of[i] != "-"
            )
            lines.append(f"  {point.label or point.name}: {', '.join(values) or '-'}")
    return "\n".join(lines)


def ending(workdir: Path, point: Point) -> str:
    """Describes the outcome of a point in one line.

    Args:
      workdir: the study's folder.
      point: one that no longer runs.
    """
    state = on_disk.state(workdir, point)
    if state.failed:
        return f"{point.name} failed: {state.reason}"
    summaries = [report.read_summary(f) for _, f in on_disk.folders(workdir, point)]
    models = [next(iter(s.get("accuracy", {}).values()), {}) for s in summaries]
    accuracies = ", ".join(
        formats.format_percent(model.get("final")) for model in models
    )
    took = formats.format_seconds(sum(s.get("seconds", 0.0) for s in summaries))
    return f"{point.name}: {accuracies} in {took}"


def line(workdir: Path, points: Sequence[Point]) -> str:
    """Returns how far a study has come, in one line.

    Args:
      workdir: the study's folder.
      points: all of them.
    """
    states = [on_disk.state(workdir, point) for point in points]
    done = sum(on_disk.complete(workdir, point) for point in points)
    failed = sum(bool(s.failed) for s in states)
    running = sum(s.running for s in states)
    ended = (folder.parent for folder in workdir.glob("*/seed_*/summary.json"))
    seconds = [report.read_summary(folder).get("seconds") for folder in ended]
    each = float(np.mean([s for s in seconds if s] or [0.0]))
    seeds = sum(len(point.seeds) for point in points)
    left = each * (seeds - sum(state.done for state in states))
    parts = [
        f"{done} of {len(points)} points done",
        f"{running} running" if running else "",
        f"{failed} failed" if failed else "",
        f"{formats.format_seconds(left)} of computing left" if left else "",
    ]
    return ", ".join(filter(None, parts))


def seldom(write: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that writes the page, as long as that takes little time.

    The page of many runs takes seconds, so a call does nothing that comes before
    twenty times as long has passed.

    Args:
      write: writes the page.
    """
    due = -math.inf

    def write_if_due() -> None:
        nonlocal due
        begun = time.monotonic()
        if begun >= due:
            write()
            due = begun + _WAIT * (time.monotonic() - begun)

    return write_if_due


def write_page(workdir: Path, points: Sequence[Point], unlike: bool) -> None:
    """Writes the comparison of all runs so far, with the states of all points.

    Args:
      workdir: the study's folder.
      points: all of the study.
      unlike: whether runs may differ in data, partition, table of devices or metric.
    """
    status, folders = [], []
    for point in points:
        state = on_disk.state(workdir, point)
        kind = "running" if state.running else "missing"
        if on_disk.complete(workdir, point):
            kind = "done"
        if state.failed:
            kind = f"failed: {state.reason}"
        status.append((point.name, kind))
        folders += on_disk.begun(workdir, point)
    try:
        with on_disk.writing(workdir):
            comparison = report.compare(report.read_groups(folders), unlike=unlike)
            title = workdir.resolve().name
            report.write_comparison(comparison, workdir, title=title, status=status)
    except (ValueError, OSError) as error:
        say(f"the page cannot be written: {one_line(error)}")


def say(text: str) -> None:
    """Prints a line of the progress."""
    print(text, file=sys.stderr, flush=True)
