"""How far a study has come: lines for the terminal, and its page."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sparsefl_jax import report
from sparsefl_jax.core.validate import one_line
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point

_WAIT = 20.0  # times as long as the page takes, until it is written again


def status(workdir: Path, point: Point) -> str:
    """Returns 'done', 'running', 'missing', or 'failed: ' and why.

    Args:
      workdir: the study's folder.
      point: one of its points.
    """
    state = on_disk.state(workdir, point)
    if state.failed:
        return f"failed: {state.failed.splitlines()[0]}"
    if state.done == len(point.seeds):
        return "done"
    return "running" if state.running else "missing"


def line(workdir: Path, points: Sequence[Point]) -> str:
    """Returns how far a study has come, in one line.

    Args:
      workdir: the study's folder.
      points: all of them.
    """
    kinds = [status(workdir, point).partition(":")[0] for point in points]
    parts = [f"{kinds.count('done')} of {len(points)} points done"]
    parts += [f"{kinds.count(k)} {k}" for k in ("running", "failed") if k in kinds]
    return ", ".join(parts)


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
    states = [(point.name, status(workdir, point)) for point in points]
    folders = [folder for p in points for folder in on_disk.begun(workdir, p)]
    try:
        with on_disk.writing(workdir):
            comparison = report.compare(report.read_groups(folders), unlike=unlike)
            title = workdir.resolve().name
            report.write_comparison(comparison, workdir, title=title, status=states)
    except (ValueError, OSError) as error:
        say(f"the page cannot be written: {one_line(error)}")
