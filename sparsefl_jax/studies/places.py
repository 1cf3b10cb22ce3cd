"""Runs points: in this process, in a pool of processes, or on SLURM by submitit.

Each place is a function `(names) -> jobs` that starts points. A job has `done()`,
`cancel()`, and `fate()`, which says how it ended. `pool` starts this file as
`python -m sparsefl_jax.studies.places WORKDIR POINT CORES`; CORES are those to run on,
such as 0,1.
"""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax

from sparsefl_jax.config import defaults
from sparsefl_jax.core.check import UserError, blame, check, one_line
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.runs import experiment, fit_rounds
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.studies import grid
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point
from sparsefl_jax.system import hardware, interrupt

_ROOT = Path(__file__).parents[2]
_LOOK = 10.0  # seconds between looks at SLURM's queue


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
            stack.enter_context(run_folder.lock(workdir / name))
        except ValueError:  # another process runs the point
            return
        on_disk.failure(workdir, name).unlink(missing_ok=True)
        for what, error in _errors(workdir, known[name]):
            on_disk.note(workdir, name, f"{what}: {one_line(error)}", error)


def _errors(workdir: Path, point: Point) -> Iterator[tuple[str, Exception]]:
    """Goes on with the seeds; yields what failed, and its error."""
    part = "the budget"
    try:
        point = fit(workdir, point)
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


def fit(workdir: Path, point: Point) -> Point:
    """Returns the point with the rounds that its budget pays for."""
    point = on_disk.with_kept_rounds(workdir, point)
    config, message = fit_rounds.fit(point.config, experiment.build, progress=True)
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


def here(workdir: Path) -> Callable:
    """Returns the place where each point runs to its end before it is a job.

    Args:
      workdir: the study's folder.
    """
    ended = SimpleNamespace(done=lambda: True, fate=lambda: "ended without a result")

    def start(names: Sequence[str]) -> list[SimpleNamespace]:
        for name in names:
            run_point(workdir, name)
            jax.clear_caches()  # the next point has programs of its own
        return [ended] * len(names)

    return start


class _Process(NamedTuple):
    """A point that runs in a process of its own."""

    process: subprocess.Popen
    cores: Sequence[int]

    def done(self) -> bool:
        return self.process.poll() is not None

    def cancel(self) -> None:
        self.process.terminate()

    def fate(self) -> str:
        code = self.process.returncode
        return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"


def pool(workdir: Path, size: int) -> Callable:
    """Returns the place where each point has a process and its share of the cores.

    Args:
      workdir: the study's folder; the logs go to its `logs`.
      size: points at a time. Those beyond the number of cores get all of them.
    """
    cores, running = hardware.cores(), []
    shares = [cores[i::size] or cores for i in range(size)]

    def start(names: Sequence[str]) -> list[_Process]:
        (workdir / "logs").mkdir(exist_ok=True)
        for name in names:
            taken = [job.cores for job in running if not job.done()]
            share = next((share for share in shares if share not in taken), shares[0])
            command = [sys.executable, "-m", __name__, str(workdir), name]
            command.append(",".join(map(str, share)))
            # In a session of its own, so that Ctrl-C reaches it through us alone.
            apart = {"env": environment(), "start_new_session": True}
            with open(workdir / "logs" / f"{name}.txt", "ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, **apart)
            running.append(_Process(process, share))
        return running[-len(names) :]

    return start


def environment() -> dict[str, str]:
    """Returns the environment of processes that find this package from any folder."""
    paths = filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


class _RunPoint:
    """Runs a point; a job that is preempted is queued again and resumes."""

    def __call__(self, workdir: str, name: str) -> None:
        requeue = signal.getsignal(signal.SIGUSR2)  # of submitit
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which submitit ignores
        try:
            # It ends by `SystemExit` and not by an `Exception`, which submitit would
            # write down as the job's result, even if SLURM runs the job again.
            run_alone(workdir, name)
        except SystemExit as end:
            if end.code == 128 + signal.SIGUSR2 and callable(requeue):
                requeue(signal.SIGUSR2, None)
            raise

    def checkpoint(self, workdir: str, name: str):
        """Returns what submitit queues again after a preemption."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, workdir, name)


def _look() -> int:
    """Returns the number of the current look at SLURM's queue."""
    return int(time.monotonic() // _LOOK)


@functools.lru_cache(2)  # the last look too, to outlast slow disks
def _list_queue(look: int) -> frozenset[str] | None:
    """Returns the user's jobs in SLURM's queue; None if the controller is away.

    submitit queries SLURM's accounting, which may not be installed.

    Args:
      look: the number of the look, one every `_LOOK` seconds.
    """
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
    queue = subprocess.run(command, capture_output=True, text=True)
    return None if queue.returncode else frozenset(queue.stdout.split())


class _SlurmJob(NamedTuple):
    """A job of submitit."""

    job: Any
    born: int  # the look during which it was submitted

    def done(self) -> bool:
        if self.job.paths.result_pickle.exists():
            return True
        if (look := _look()) <= self.born + 1:  # an earlier look may stand for this one
            return False
        looks = _list_queue(look - 1), _list_queue(look)
        return not any(jobs is None or self.job.job_id in jobs for jobs in looks)

    def cancel(self) -> None:
        self.job.cancel(check=False)

    def fate(self) -> str:
        return f"job {self.job.job_id} ended (see {self.job.paths.stderr})"


def slurm(workdir: Path, options: str) -> Callable:
    """Returns the place where points form an array of jobs.

    Args:
      workdir: the study's folder; the jobs' logs go to its `jobs`.
      options: parameters of submitit's executor, `timeout_min=60,slurm_partition=gpu`;
        values are Python literals or plain text. SLURM needs a time limit.

    Raises:
      ValueError: submitit or SLURM is missing, or an option is refused.

    Example:
      >>> slurm(Path("a"), "timeout_min=x=1")
      Traceback (most recent call last):
      sparsefl_jax.UserError: --slurm has 'timeout_min=x=1', expected
      NAME=VALUE
    """
    parameters = {}
    for part in grid.split(options):
        name, _, value = part.partition("=")
        if not (name and value) or "=" in value and value[0] not in "[({":
            raise UserError(f"--slurm has {part!r}, expected NAME=VALUE")
        parameters[name] = defaults.parse(value)
    submitit = import_extra("submitit", "cluster", "--slurm")
    if not {"timeout_min", "slurm_time"} & parameters.keys():
        raise UserError(
            "--slurm has no limit of time, expected --slurm=timeout_min=MINUTES; a "
            "point that takes longer is queued again and goes on"
        )
    folder = workdir.resolve()
    with blame("--slurm"):
        executor = submitit.AutoExecutor(folder=folder / "jobs", cluster="slurm")
        executor.update_parameters(**{"name": "study"} | parameters)

    def start(names: Sequence[str]) -> list[_SlurmJob]:
        os.environ.update(environment())  # which jobs inherit
        with blame("--slurm"):
            folders = [str(folder)] * len(names)
            jobs = executor.map_array(_RunPoint(), folders, names)
        return [_SlurmJob(job, _look()) for job in jobs]

    return start


def main() -> None:
    """Runs the point that the command line names."""
    workdir, point, cores = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):  # Linux only
        os.sched_setaffinity(0, map(int, cores.split(",")))
    run_alone(workdir, point)


if __name__ == "__main__":
    main()
