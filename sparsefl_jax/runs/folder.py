"""A run's folder: one configuration, one process at a time, nothing overwritten.

A resumed run continues as if it had never stopped. Therefore the configuration and the
content of the data are compared with those of the checkpoint. Only the evaluation
interval, the end of the run and what changes no result may differ. More rounds extend
the last stage, and schedules keep the horizon that they had at the start.
"""

import contextlib
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sparsefl_jax.config import changes
from sparsefl_jax.config.defaults import fill_in, plain
from sparsefl_jax.config.fields import TABLES, Config
from sparsefl_jax.core import users_code
from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.data import federated
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.runs.checkpoint import Snapshot
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.system import files, log_lines, processes

_OURS = ("lock", "config.json.tmp")  # possible leftovers of a run killed at its start


def read_config(workdir: str | Path) -> Config:
    """Returns the configuration of a run; newer fields have their defaults.

    Raises:
      ValueError: there is no run, or its `config.json` cannot be read.
    """
    path = Path(workdir) / "config.json"
    if not path.exists():
        raise UserError(f"workdir={str(workdir)!r} has no config.json, expected a run")
    fields = files.read_json(path, dict)
    with blame(path):
        return fill_in(fields)


def check_folder(workdir: Path, config: Config, resume: bool) -> None:
    """Checks that a folder can hold the run; raises the ValueErrors of `claim`."""
    name = f"workdir={str(workdir)!r}"
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f"{name} is a file, expected a directory")
    begun = (workdir / "config.json").exists()
    if resume or begun:
        if differs := changes.difference(read_config(workdir), config):
            raise UserError(
                f"{name} holds a run of another configuration: {differs}; a resumed "
                "run keeps its configuration"
            )
        if not resume:
            raise UserError(
                f"{name} holds a run already, expected an empty directory; "
                "--resume continues it"
            )
    elif workdir.exists():
        others = [p.name for p in workdir.iterdir() if p.name not in _OURS]
        if others:
            raise UserError(f"{name} holds {min(others)}, expected an empty directory")


@contextlib.contextmanager
def claim(workdir: Path, config, resume: bool) -> Iterator[None]:
    """Holds a run's folder for process 0; the others go on without.

    Args:
      workdir: created if absent, unless the run is resumed.
      config: the configuration.
      resume: whether the folder must hold the same run already.

    Raises:
      ValueError: the folder is not empty or, with `resume`, holds no run, a run of
        another configuration, or one that is still in progress.
    """
    if not processes.leads():
        yield
        return
    check_folder(workdir, config, resume)
    workdir.mkdir(parents=True, exist_ok=True)
    with lock(workdir):
        # Another process may have written meanwhile.
        check_folder(workdir, config, resume)
        if not (workdir / "config.json").exists():
            files.write_json(workdir / "config.json", plain(config))
        yield


def amend(workdir: Path, config) -> None:
    """Removes the files of a run's end, and writes the configuration to continue."""
    for name in ("summary.json", "report.html"):  # in this order, in case of a kill
        (workdir / name).unlink(missing_ok=True)
    files.write_json(workdir / "config.json", plain(config))


@contextlib.contextmanager
def lock(workdir: Path, wait: float = 1.0) -> Iterator[None]:
    """Holds a lock that the operating system releases when the process ends.

    Args:
      workdir: a folder; its file `lock` is the lock.
      wait: seconds to keep trying, because `in_use` briefly holds a free lock.

    Raises:
      ValueError: another process holds it.
    """
    until = time.monotonic() + wait
    with open(workdir / "lock", "a") as file:
        while not _lock(file, "LOCK_EX"):
            if time.monotonic() >= until:
                raise UserError(
                    f"workdir={str(workdir)!r} is in use by a run that is still running"
                )
            time.sleep(0.05)
        yield


def in_use(workdir: Path) -> bool:
    """Returns whether a process runs in a folder now."""
    if not (workdir / "lock").exists():
        return False
    with open(workdir / "lock", "a+") as file:  # shared with other readers
        return not _lock(file, "LOCK_SH")


def _lock(file, kind: str) -> bool:
    """Locks a file until it is closed, unless another process has locked it.

    If it cannot be locked, as on some NFS, a line says so.
    """
    import fcntl  # absent on Windows, where only the folders of runs need it

    try:
        fcntl.flock(file, getattr(fcntl, kind) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        warnings.warn(f"no lock keeps a second run out: {error.strerror}", stacklevel=2)
    return True


class Resumption(NamedTuple):
    """How a run continues or begins."""

    config: Config
    saved: checkpoint.Saved | None = None  # the checkpoint; None to begin
    done: bool = False  # nothing is left to run


def resumption(workdir: Path, config: Config) -> Resumption:
    """Decides how the run in a folder continues, without changing the folder.

    Args:
      workdir: the folder, with a `config.json`.
      config: with which the run is to continue, as `freeze` returns it.

    Raises:
      ValueError: the run cannot continue.
    """
    ended = (workdir / "summary.json").exists()
    changed = changes.differences(read_config(workdir), config)
    if ended and not changed.keys() - set(changes.FREE):
        return Resumption(config, done=True)
    saved = checkpoint.read(workdir)
    if saved is None:
        if ended:
            raise UserError(f"workdir={str(workdir)!r} has no checkpoint to extend")
        return Resumption(config)
    found = continue_from(config, saved)
    if ended and found.saved.snapshot.ended_by:
        return found._replace(done=True)
    log_lines.check_logs(workdir, saved.about["position"])
    return found


def continue_from(config: Config, saved: checkpoint.Saved) -> Resumption:
    """Decides how a run continues from a checkpoint.

    More rounds extend the last stage; the first stage and the learning rate stay as
    planned. A run that had ended continues if the limit that ended it was raised or
    removed.

    Args:
      config: as in `resumption`.
      saved: the checkpoint.

    Raises:
      ValueError: another field differs from the checkpoint's, or there are fewer
        rounds.
    """
    old, at = plain(fill_in(saved.about["config"])), saved.snapshot
    if differs := changes.difference(old, config):
        raise UserError(f"the configuration is not that of the checkpoint: {differs}")
    before, now = old["num_rounds"], config.num_rounds
    if now < before:
        raise UserError(
            f"num_rounds={now}, expected at least the {before} that the run has been "
            "planned for; until ends it earlier"
        )
    config = changes.keep_schedule(config, old)
    if at.ended_by and _is_lifted(old, config, at):
        done = at.stage == len(config.stages) - 1 and at.round == now
        at = at._replace(ended_by="rounds" if done else "")
    return Resumption(config, saved._replace(snapshot=at))


def _is_lifted(old: dict, config: Config, at: Snapshot) -> bool:
    """Returns whether the limit that ended a run was raised or removed."""
    by = at.ended_by
    if by == "rounds":
        return config.num_rounds > old["num_rounds"]
    limit = config.until[by]
    if by == "value":  # lower or higher may be better
        return limit != old["until"][by]
    return limit is None or limit > at.costs().get(by, old["until"][by])


def start(saved: checkpoint.Saved | None, setup: Setup) -> tuple[Snapshot, dict]:
    """Returns where a run begins or continues, the same for all processes.

    Args:
      saved: the checkpoint, if there is one.
      setup: the run.

    Returns:
      The snapshot, and the fingerprint of the data and devices, which a checkpoint
      keeps.

    Raises:
      ValueError: the data, devices or budgets are not those of the checkpoint, or the
        processes of the run differ.
    """
    at = saved.snapshot if saved else Snapshot()
    now = fingerprint(setup.data)
    # The file of a table may have changed, and how another version deals budgets.
    drawn = {"system": setup.system, "budgets": setup.budgets}
    now |= {k: checkpoint.checksum(v) for k, v in drawn.items() if v is not None}
    processes.check_same("the checkpoint", [at.stage, at.round, at.bits])
    processes.check_same("the data set", now)
    old = saved.about["data"] if saved else now
    changed = [name for name in old | now if old.get(name) != now.get(name)]
    if changed:
        raise UserError(
            f"what the run reads is not that of the checkpoint: {', '.join(changed)} "
            "changed, expected the arrays, partition, devices and budgets it began with"
        )
    return at, now


def fingerprint(data: federated.FederatedData) -> dict[str, int]:
    """Computes a checksum of every field of the data except what describes it.

    Clients' tables count without their padding.

    Example:
      >>> from sparsefl_jax import data
      >>> x, y = [[0.0], [1.0]], [0, 1]
      >>> one, other = (data.from_arrays(x, y, num_clients=1, num_classes=n,
      ...     x_test=x, y_test=y) for n in (2, 3))
      >>> old, new = fingerprint(one), fingerprint(other)
      >>> [name for name in old if old[name] != new[name]]
      ['num_classes']
    """
    tables = data.train, data.val, data.test
    bare = federated.pad(data, [max(1, rows.size.max()) for rows in tables])
    fields = bare._asdict().items()
    told = "name", "classes", "clients", "numeric", "columns", "scaling", "tests"
    return {k: checkpoint.checksum(v) for k, v in fields if k not in told}


def own_code(config: dict) -> dict[str, int]:
    """Computes checksums of the files of a user's methods, networks, optimizers etc.

    So it does of measures, of what these import of the user's own, and of
    `adapter.base`.

    Args:
      config: as `plain` returns it; a user's have names `module:function`.
    """
    named = (*TABLES, "optimizer", "server_optimizer")
    names = [config.get(section, {}).get("name") or "" for section in named]
    names.append(config.get("measure") or "")
    paths = users_code.files([n.partition(":")[0] for n in names if ":" in n])
    paths.append(config.get("adapter", {}).get("base"))
    return {path: zlib.crc32(Path(path).read_bytes()) for path in paths if path}


def describe_start(saved: checkpoint.Saved, now: dict) -> str:
    """Describes where a run continues, and whether its results will be bit-identical.

    Args:
      saved: the checkpoint.
      now: the current machine and versions, from `provenance.facts`, and `own_code`.
    """
    then, at = saved.about["machine"], saved.snapshot
    changed = [f"{k} {then.get(k)} -> {now[k]}" for k in now if then.get(k) != now[k]]
    exactness = f"not bit for bit: {', '.join(changed)}" if changed else "bit for bit"
    return f"resuming after round {at.round} of stage {at.stage}, {exactness}"
