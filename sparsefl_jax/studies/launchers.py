"""Runs the points of a study as jobs of a cluster, by submitit (extra `cluster`)."""

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sparsefl_jax.core.check import UserError, blaming
from sparsefl_jax.core.extras import imported
from sparsefl_jax.studies import grid, processes, runner
from sparsefl_jax.system import hardware, interrupt

_LOOK = 10.0  # seconds between looks at SLURM's queue
_LOCAL = {"timeout_min": 60 * 24 * 30}  # submitit would end local jobs after 2 minutes


class _RunPoint:
    """Runs a point; a job that is preempted is queued again and resumes."""

    def __call__(self, workdir: str, name: str) -> None:
        hardware.use_cpu_cores()
        hardware.keep_compilations()
        requeue = signal.getsignal(signal.SIGUSR2)  # of submitit
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which submitit ignores
        try:
            runner.run_point(workdir, name)
        except interrupt.StoppedError as error:
            if error.code == 128 + signal.SIGUSR2 and callable(requeue):
                requeue(signal.SIGUSR2, None)
            # Not an `Exception`, which submitit would write down as the job's result,
            # even if SLURM runs the job again.
            sys.exit(error.code)

    def checkpoint(self, workdir: str, name: str):
        """Returns what submitit queues again after a preemption."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, workdir, name)


def _look() -> int:
    """Returns the number of the current look at SLURM's queue."""
    return int(time.monotonic() // _LOOK)


@functools.lru_cache(2)  # the last look too, to outlast slow disks
def _queued(look: int) -> frozenset[str] | None:
    """Returns the user's jobs in SLURM's queue; None if the controller is away.

    submitit queries SLURM's accounting, which may not be installed.

    Args:
      look: the number of the look, one every `_LOOK` seconds.
    """
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
    found = subprocess.run(command, capture_output=True, text=True)
    return None if found.returncode else frozenset(found.stdout.split())


class _Job(NamedTuple):
    """A job of submitit."""

    job: Any
    local: bool
    born: int = 0  # the look during which it was submitted

    def done(self) -> bool:
        if self.local or self.job.paths.result_pickle.exists():
            return self.job.done()
        if (look := _look()) <= self.born + 1:  # an earlier look may stand for this one
            return False
        found = _queued(look - 1), _queued(look)
        return not any(jobs is None or self.job.job_id in jobs for jobs in found)

    def cancel(self) -> None:
        if self.local:  # its SIGINT would leave the run one second
            os.kill(int(self.job.job_id), signal.SIGTERM)
        else:
            self.job.cancel(check=False)

    def fate(self) -> str:
        log = self.job.paths.stderr
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        last = next(filter(str.strip, reversed(lines)), "without a word")
        return f"job {self.job.job_id} ended: {last} (see {log})"


def submitting(launcher: str, workdir: Path, options: str = "") -> Callable:
    """Returns `(names) -> jobs`, which submits points as an array of jobs.

    Args:
      launcher: 'slurm', or 'local' for processes on this machine.
      workdir: the study's folder; the jobs' logs go to its `jobs`.
      options: parameters of submitit's executor, `timeout_min=60,slurm_partition=gpu`;
        values are Python literals or plain text. SLURM needs a time limit.

    Raises:
      ValueError: submitit or SLURM is missing, or an option is refused.

    Example:
      >>> submitting("slurm", Path("a"), "timeout_min=x=1")
      Traceback (most recent call last):
      sparsefl_jax.UserError: --launcher_options has 'timeout_min=x=1', expected
      NAME=VALUE
    """
    parameters = _parse(options)
    submitit = imported("submitit", "cluster", f"--launcher={launcher}")
    if launcher == "slurm" and not {"timeout_min", "slurm_time"} & parameters.keys():
        raise UserError(
            "--launcher=slurm has no limit of time, expected "
            "--launcher_options=timeout_min=MINUTES; a point that takes longer is "
            "queued again and goes on"
        )
    parameters = (_LOCAL if launcher == "local" else {}) | parameters
    folder = workdir.resolve()
    with blaming(f"--launcher={launcher}"):
        executor = submitit.AutoExecutor(folder=folder / "jobs", cluster=launcher)
        executor.update_parameters(**{"name": "study"} | parameters)

    def submit(names):
        folders = [str(folder)] * len(names)
        with blaming(f"--launcher={launcher}"), _submitting():
            jobs = executor.map_array(_RunPoint(), folders, names)
        return [_Job(job, launcher == "local", _look()) for job in jobs]

    return submit


@contextmanager
def _submitting() -> Iterator[None]:
    """Sets what jobs inherit: where this package is, and that Ctrl-C is the study's."""
    ours, paths = {signal.SIGINT, signal.SIGHUP}, os.environ.get("PYTHONPATH")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    os.environ.update(processes.environment())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.environ.pop("PYTHONPATH")
        os.environ.update({} if paths is None else {"PYTHONPATH": paths})


def _parse(options: str) -> dict:
    parameters = {}
    for part in grid.split(options):
        name, _, value = part.partition("=")
        if not (name and value) or "=" in value and value[0] not in "[({":
            raise UserError(f"--launcher_options has {part!r}, expected NAME=VALUE")
        parameters[name] = grid.literal(value)
    return parameters
