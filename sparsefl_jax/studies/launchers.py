"""Runs the points of a study as jobs of a cluster, by submitit (extra `cluster`)."""

import ast
from collections.abc import Callable
from pathlib import Path


class _RunPoint:
    """Runs a point; a job that is preempted is queued again and resumes."""

    def __call__(self, workdir: str, name: str) -> None:
        from sparsefl_jax.system import hardware

        hardware.use_cpu_cores()
        hardware.keep_compilations()
        from sparsefl_jax.studies import runner

        runner.run_point(workdir, name)

    def checkpoint(self, workdir: str, name: str):
        """Returns what submitit queues again after a preemption."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, workdir, name)


class _Job:
    """A job of submitit."""

    def __init__(self, job):
        self.job = job

    def done(self) -> bool:
        return self.job.done()

    def cancel(self) -> None:
        self.job.cancel()

    def fate(self) -> str:
        error = self.job.exception() or "it ended without a result"
        lines = str(error).strip().splitlines()
        return f"job {self.job.job_id}: {lines[-1] if lines else 'ended'}"


def submitting(launcher: str, workdir: Path, options: str = "") -> Callable:
    """Returns `(names) -> jobs`, which submits points as an array of jobs.

    Args:
      launcher: 'slurm', or 'local' for processes on this machine.
      workdir: the study's folder; the jobs' logs go to its `jobs`.
      options: parameters of submitit's executor, `timeout_min=60,slurm_partition=gpu`.

    Raises:
      ValueError: submitit is missing, SLURM is, or it refuses an option.

    Example:
      >>> submitting("slurm", Path("a"), "timeout_min=x=1")
      Traceback (most recent call last):
      ValueError: --launcher_options has 'timeout_min=x=1', expected NAME=VALUE
    """
    parameters = _parse(options)
    try:
        import submitit
    except ImportError:
        raise ValueError(
            f"--launcher={launcher} needs submitit: pip install -e '.[cluster]'"
        ) from None
    try:
        executor = submitit.AutoExecutor(folder=workdir / "jobs", cluster=launcher)
        executor.update_parameters(name="study", **parameters)
    except Exception as error:  # submitit has errors of many kinds
        raise ValueError(f"--launcher={launcher}: {error}") from None

    def submit(names):
        folders = [str(workdir.resolve())] * len(names)
        return [_Job(j) for j in executor.map_array(_RunPoint(), folders, names)]

    return submit


def _parse(options: str) -> dict:
    parameters = {}
    for part in filter(None, options.split(",")):
        name, equals, value = part.partition("=")
        if not equals or "=" in value or not name:
            raise ValueError(f"--launcher_options has {part!r}, expected NAME=VALUE")
        try:
            parameters[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            parameters[name] = value
    return parameters
