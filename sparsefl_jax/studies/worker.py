"""Runs one point of a study, in this process or in one of its own.

`places.pool` starts `python -m sparsefl_jax.studies.worker WORKDIR POINT CORES`; CORES
are those to run on, such as 0,1.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparsefl_jax.core.check import UserError, check, one_line
from sparsefl_jax.runs import experiment, fit_rounds
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point
from sparsefl_jax.system import hardware, interrupt


def run_point(workdir: str | Path, name: str) -> None:
    """Runs the seeds of a point that have not ended; notes why any fails.

    Args:
      workdir: the study's folder.
      name: of the point.

    Raises:
      ValueError: there is no such study or point.
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    workdir = Path(workdir)
    known = {point.name: point for point in on_disk.read(workdir)}
    check("point", name, known)
    (workdir / name).mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(run_folder.locked(workdir / name))
        except ValueError:  # another process runs the point
            return
        on_disk.failure(workdir, name).unlink(missing_ok=True)
        errors = []
        for error in _errors(workdir, known[name]):
            errors.append(error)
            note_errors(workdir, name, errors)


def note_errors(workdir: Path, name: str, errors: Sequence[tuple]) -> None:
    """Writes down why a point has failed, with the traceback of the last error.

    Args:
      workdir: the study's folder.
      name: of the point.
      errors: pairs of what failed and its error.
    """
    reasons = [f"{what}: {one_line(error)}" for what, error in errors]
    error = errors[-1][1]
    trace = ""
    if not isinstance(error, UserError):
        trace = "".join(traceback.format_exception(error))
    on_disk.note(workdir, name, "\n".join([*reasons, trace]))


def _errors(workdir: Path, point: Point) -> Iterator[tuple[str, Exception]]:
    """Goes on with the seeds; yields what failed, and its error."""
    part = "the budget"
    try:
        point = fitted(workdir, point)
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


def fitted(workdir: Path, point: Point) -> Point:
    """Returns the point with the rounds that its budget pays for."""
    point = on_disk.with_kept_rounds(workdir, point)
    config, message = fit_rounds.fitted(point.config, experiment.build, progress=True)
    if message:
        print(f"{point.name}: {message}", file=sys.stderr, flush=True)
    return point._replace(config=config)


def run_alone(workdir: str, name: str) -> None:
    """Runs a point in a process of its own, which ends if it is asked to."""
    hardware.use_cpu_cores()
    hardware.keep_compilations()
    try:
        run_point(workdir, name)
    except interrupt.StoppedError as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)


def main() -> None:
    """Runs the point that the command line names."""
    workdir, point, cores = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):  # Linux only
        os.sched_setaffinity(0, map(int, cores.split(",")))
    run_alone(workdir, point)


if __name__ == "__main__":
    main()
