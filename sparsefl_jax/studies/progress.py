"""How far a study has come: lines for the terminal, and its page."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sparsefl_jax import report
from sparsefl_jax.core.check import one_line
from sparsefl_jax.core.formats import format_percent, format_seconds
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point

_WAIT = 20.0  # times as long as the page takes, until it is written again


def ending(workdir: Path, point: Point) -> str:
    """Describes the outcome of a point in one line.

    Args:
      workdir: the study's folder.
      point: one that no longer runs.
    """
    state = on_disk.state(workdir, point)
    if state.failed:
        return f"{point.name} failed: {state.failed.splitlines()[0]}"
    summaries = [report.read_summary(f) for _, f in on_disk.folders(workdir, point)]
    models = [next(iter(s.get("accuracy", {}).values()), {}) for s in summaries]
    accuracies = ", ".join(format_percent(model.get("final")) for model in models)
    took = format_seconds(sum(s.get("seconds", 0.0) for s in summaries))
    return f"{point.name}: {accuracies} in {took}"


def line(workdir: Path, points: Sequence[Point]) -> str:
    """Returns how far a study has come, in one line.

    Args:
      workdir: the study's folder.
      points: all of them.
    """
    states = [on_disk.state(workdir, point) for point in points]
    whole = [len(point.seeds) for point in points]
    done = sum(state.done == n for state, n in zip(states, whole, strict=True))
    failed = sum(bool(s.failed) for s in states)
    running = sum(s.running for s in states)
    ended = (folder.parent for folder in workdir.glob("*/seed_*/summary.json"))
    seconds = [report.read_summary(folder).get("seconds") for folder in ended]
    each = float(np.mean([s for s in seconds if s] or [0.0]))
    left = each * (sum(whole) - sum(state.done for state in states))
    parts = [
        f"{done} of {len(points)} points done",
        f"{running} running" if running else "",
        f"{failed} failed" if failed else "",
        f"{format_seconds(left)} of computing left" if left else "",
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


def write_page(
    workdir: Path, points: Sequence[Point], unlike: bool, say: Callable
) -> None:
    """Writes the comparison of all runs so far, with the states of all points.

    Args:
      workdir: the study's folder.
      points: all of the study.
      unlike: whether runs may differ in data, partition, table of devices or metric.
      say: is called with a line if the page cannot be written.
    """
    status, folders = [], []
    for point in points:
        state = on_disk.state(workdir, point)
        kind = "running" if state.running else "missing"
        if state.done == len(point.seeds):
            kind = "done"
        if state.failed:
            kind = f"failed: {state.failed.splitlines()[0]}"
        status.append((point.name, kind))
        folders += on_disk.begun(workdir, point)
    try:
        with on_disk.writing(workdir):
            comparison = report.compare(report.read_groups(folders), unlike=unlike)
            title = workdir.resolve().name
            report.write_comparison(comparison, workdir, title=title, status=status)
    except (ValueError, OSError) as error:
        say(f"the page cannot be written: {one_line(error)}")
