"""A run's directory: one configuration, one process at a time, nothing overwritten."""

import contextlib
import fcntl
import json
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import msgspec

from sparsefl_jax.core.flatten import flatten
from sparsefl_jax.core.validate import blaming
from sparsefl_jax.data.hub import OPTIONS
from sparsefl_jax.runs.config.defaults import default_config, plain, with_defaults
from sparsefl_jax.system import files

# Fields that change a run's results by rounding at most. The place of the data is one
# of them, because a checkpoint knows their content.
FREE = (
    *("checkpoint_minutes", "chunk", "client_store", "data_dir", "dataset"),
    *("memory_gb", "sinks", "writers"),
    *(f"hf.{option}" for option in OPTIONS),
)
# Fields that set how often a run is evaluated and when it ends, see `resumption`.
LATER = (
    *("eval_every", "first_stage.num_rounds", "lr_horizon", "num_rounds"),
    *("until.accuracy", "until.gbit", "until.hours", "until.pflop"),
)
_OURS = ("lock", "config.json.tmp")  # all that a kill may leave before a run has begun


class _Named(msgspec.Struct):
    name: str


class _Config(msgspec.Struct):
    algorithm: _Named
    model: _Named


def read_config(workdir: str | Path) -> Any:  # a ConfigDict
    """Returns the configuration of a run; fields added since have their defaults.

    Raises:
      ValueError: there is no run, or its `config.json` cannot be read.
    """
    files.check_name("workdir", workdir)
    path = Path(workdir) / "config.json"
    if not path.exists():
        there = ", with config.json" if path.parent.exists() else ""
        raise ValueError(
            f"workdir={str(workdir)!r}, expected the directory of a run{there}"
        )
    fields = files.read_json(path, _Config)
    with blaming(path):
        return with_defaults(fields)


@contextlib.contextmanager
def claimed(workdir: str | Path, config, resume: bool) -> Iterator[Path]:
    """Holds a run's directory for this process.

    Args:
      workdir: created if absent, unless the run is resumed.
      config: the configuration.
      resume: whether the directory must hold the same run already.

    Raises:
      ValueError: the directory is not empty, or, to resume, holds no run, another
        configuration, or a run that is still in progress.
    """
    workdir = Path(workdir)
    check(workdir, config, resume)
    workdir.mkdir(parents=True, exist_ok=True)
    with locked(workdir):
        check(workdir, config, resume)  # what another process wrote in between
        if not (workdir / "config.json").exists():
            _write_config(workdir, config)
        yield workdir


def check(workdir: Path, config, resume: bool) -> None:
    """Refuses a directory that is not that of a run, as `claimed` does."""
    files.check_name("workdir", workdir)
    name = f"workdir={str(workdir)!r}"
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"{name} is a file, expected a directory")
    found = (workdir / "config.json").exists()
    if resume or found:
        differs = difference(read_config(workdir), config)
        if differs:
            raise ValueError(
                f"{name} holds a run of another configuration: {differs}; a resumed "
                "run keeps what it began with"
            )
        if not resume:
            raise ValueError(
                f"{name} holds a run already, expected an empty directory; "
                "--resume continues it"
            )
    elif workdir.exists():
        others = [p.name for p in workdir.iterdir() if p.name not in _OURS]
        if others:
            raise ValueError(f"{name} holds {min(others)}, expected an empty directory")


def difference(old, new, free: Container[str] = (*FREE, *LATER)) -> str:
    """Names the first field that differs and may not change in a run; '' if none.

    Args:
      old: a configuration, as `plain` takes it. A field that one of the two lacks,
        because it was added since, has its default there.
      new: another.
      free: the fields that may change.

    Example:
      >>> difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
      'b.c is 2 there and 3 here'
    """
    for name, (there, here) in differences(old, new).items():
        if name not in free:
            return f"{name} is {there!r} there and {here!r} here"
    return ""


def differences(old, new) -> dict[str, tuple]:
    """Returns all fields that differ, by dotted name, with both values.

    A budget comes first, as the rounds and what depends on them follow it.

    Example:
      >>> differences({"num_rounds": 4, "seed": 1}, {"num_rounds": 8, "seed": 1})
      {'num_rounds': (4, 8)}
    """
    default, old, new = (flatten(plain(c)) for c in (default_config(), old, new))
    pairs = {
        name: tuple(c.get(name, default.get(name)) for c in (old, new))
        for name in sorted(old | new, key=lambda name: (name[:4] != "fit.", name))
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def fixed(config) -> str:
    """Returns the fields that a resumed run may not change as text, without the seed.

    Fields at their defaults are left out, and 1 is written as 1.0, so that
    configurations between which `difference` finds nothing have the same text.

    Example:
      >>> config = default_config()
      >>> config.epochs, config.num_rounds, config.seed = 3, 7, 5
      >>> fixed(config)
      '{"epochs": 3.0}'
    """
    found = {
        name: here
        for name, (_, here) in differences(default_config(), config).items()
        if name not in (*FREE, *LATER, "seed")
    }
    return json.dumps(json.loads(json.dumps(found), parse_int=float))


def amend(workdir: Path, config) -> None:
    """Prepares a run's directory for continuing with a configuration.

    Args:
      workdir: of a run, as `claimed` holds it.
      config: the configuration; it becomes the directory's `config.json`.
    """
    for name in ("summary.json", "report.html"):  # in this order: a kill may come
        (workdir / name).unlink(missing_ok=True)
    _write_config(workdir, config)


def _write_config(workdir: Path, config) -> None:
    files.write_json(workdir / "config.json", plain(config))


@contextlib.contextmanager
def locked(workdir: Path, wait: float = 1.0) -> Iterator[None]:
    """Holds a lock that the system releases with the process, however it ends.

    Args:
      workdir: a folder; its file `lock` is the lock.
      wait: the time to try, in seconds; `in_use` may hold a free lock for a moment.

    Raises:
      ValueError: another process holds it.
    """
    until = time.monotonic() + wait
    with open(workdir / "lock", "a") as file:
        while not _try(file, fcntl.LOCK_EX):
            if time.monotonic() >= until:
                raise ValueError(
                    f"workdir={str(workdir)!r} is in use by a run that still goes on"
                )
            time.sleep(0.05)
        yield


def in_use(workdir: Path) -> bool:
    """Tells whether a process runs in a directory now."""
    if not (workdir / "lock").exists():
        return False
    with open(workdir / "lock", "a+") as file:  # shared with others who look
        return not _try(file, fcntl.LOCK_SH)


def _try(file, kind: int) -> bool:
    """Locks a file until it is closed, unless another process has locked it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
