"""Runs the points of a study in processes, each on its share of the cores."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sparsefl_jax.system import hardware

_ROOT = Path(__file__).parents[2]


class _Process:
    """A point that runs in a process of its own."""

    def __init__(self, workdir: Path, name: str, cores: Sequence[int]):
        self.cores, folder = cores, workdir / "logs"
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "sparsefl_jax.studies", str(workdir), name]
        command.append(",".join(map(str, cores)))
        # In a session of its own, so that Ctrl-C reaches it through us alone.
        apart = {"env": environment(), "start_new_session": True}
        with open(folder / f"{name}.txt", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **apart)

    def done(self) -> bool:
        return self.process.poll() is not None

    def cancel(self) -> None:
        self.process.terminate()

    def fate(self) -> str:
        code = self.process.returncode
        return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"


def starting(workdir: Path, jobs: int) -> Callable:
    """Returns `(names) -> processes`, which starts points on free cores.

    Args:
      workdir: the study's folder; the logs go to its `logs`.
      jobs: points at a time. Each gets its share of the cores; those beyond the number
        of cores get all of them.
    """
    shares = shared(hardware.cores(), jobs)
    running: list[_Process] = []

    def start(names: list[str]) -> list[_Process]:
        for name in names:
            taken = [job.cores for job in running if not job.done()]
            free = [share for share in shares if share not in taken] or shares
            running.append(_Process(workdir, name, free[0]))
        return running[-len(names) :]

    return start


def shared(cores: Sequence[int], jobs: int) -> list[Sequence[int]]:
    """Divides cores among jobs.

    Example:
      >>> shared([0, 1, 2, 5], 2), shared([3], 2)
      ([[0, 2], [1, 5]], [[3], [3]])
    """
    return [cores[i::jobs] or cores for i in range(jobs)]


def environment() -> dict[str, str]:
    """Returns the environment of processes that find this package from any folder."""
    paths = [str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths = filter(None, dict.fromkeys(paths))
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
