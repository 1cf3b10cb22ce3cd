"""A run's directory: one configuration, one process at a time, nothing overwritten."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from sparsefl_jax import storage
from sparsefl_jax.configuration import default_config

# Fields that change nothing of what a run gives, or its last bits.
FREE = ("client_store", "chunk", "memory_gb")
_OURS = ("lock", "config.json.tmp")  # all that a kill may leave before a run has begun


def read_config(workdir: str | Path):
    """The configuration of a run, as a `ConfigDict`; later fields at their defaults.

    Raises:
      ValueError: there is no run, or its `config.json` can not be read.
    """
    from ml_collections import config_dict

    storage.check_name("workdir", workdir)
    path = Path(workdir) / "config.json"
    if not path.exists():
        told = f"workdir={str(workdir)!r}, expected the directory of a run"
        raise ValueError(told + (", with config.json" if path.parent.exists() else ""))
    named = {"name": storage.TEXT}
    fields = storage.read_json(path, {"algorithm": named, "model": named})
    with storage.blaming(path):
        return config_dict.ConfigDict(default_config().to_dict() | fields)


@contextlib.contextmanager
def claimed(workdir: str | Path, config, resume: bool) -> Iterator[Path]:
    """Holds a run's directory for this process.

    Args:
      workdir: created if absent, unless the run is resumed.
      config: the configuration that runs, a `ConfigDict`.
      resume: whether the directory is to hold the same run already.

    Raises:
      ValueError: the directory holds something although it should not, no run although
        it should, another configuration, or a run that still goes on.
    """
    workdir = Path(workdir)
    _check(workdir, config, resume)
    workdir.mkdir(parents=True, exist_ok=True)
    with _locked(workdir):
        _check(workdir, config, resume)  # what another process wrote in between
        if not (workdir / "config.json").exists():
            write(workdir / "config.json", config.to_json_best_effort(indent=2))
        yield workdir


def _check(workdir: Path, config, resume: bool) -> None:
    storage.check_name("workdir", workdir)
    name = f"workdir={str(workdir)!r}"
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"{name} is a file, expected a directory")
    found = (workdir / "config.json").exists()
    if resume or found:
        differs = difference(read_config(workdir), config)
        if differs:
            raise ValueError(f"{name} holds a run of another configuration: {differs}")
        if not resume:
            raise ValueError(
                f"{name} holds a run already, expected an empty directory; "
                "--resume continues it"
            )
    elif workdir.exists():
        others = [p.name for p in workdir.iterdir() if p.name not in _OURS]
        if others:
            raise ValueError(f"{name} holds {min(others)}, expected an empty directory")


def write(path: Path, text: str) -> None:
    """Writes a file whole or, if the process is killed, not at all."""
    storage.write_bytes(path, text.encode())


def difference(old, new) -> str:
    """The first field in which two configurations differ, '' if none but in `FREE`.

    A field that one lacks, as it has come since, has its default there.

    Example:
      >>> from ml_collections import config_dict
      >>> old, new = (config_dict.create(a=1, b={"c": c}) for c in (2, 3))
      >>> difference(old, new)
      'b.c is 2 there and 3 here'
    """
    default, old, new = (
        flatten(json.loads(c.to_json_best_effort()))
        for c in (default_config(), old, new)
    )
    for name in sorted((old | new).keys() - FREE):
        there, here = (c.get(name, default.get(name)) for c in (old, new))
        if there != here:
            return f"{name} is {there!r} there and {here!r} here"
    return ""


def flatten(fields: dict, prefix: str = "") -> dict:
    """Nested sections as one dictionary of dotted names.

    Example:
      >>> flatten({"a": 1, "b": {"c": 2}})
      {'a': 1, 'b.c': 2}
    """
    flat = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


@contextlib.contextmanager
def _locked(workdir: Path) -> Iterator[None]:
    """Holds a lock that the system releases with the process, however it ends."""
    import fcntl

    with open(workdir / "lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"workdir={str(workdir)!r} is in use by a run that still goes on"
            ) from None
        yield
