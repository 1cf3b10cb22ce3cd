"""A run's directory: one configuration, one process at a time, nothing overwritten."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path


def read_config(workdir: str | Path):
    """The configuration of a run, as a `ConfigDict`.

    Raises:
      ValueError: there is no run, or its `config.json` can not be read.
    """
    from ml_collections import config_dict

    path = Path(workdir) / "config.json"
    try:
        fields = json.loads(path.read_text())
        return config_dict.ConfigDict(fields)
    except FileNotFoundError:
        raise ValueError(
            f"workdir={str(workdir)!r}, expected the directory of a run"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} can not be read: {error}") from None


@contextlib.contextmanager
def claimed(workdir: str | Path, config, resume: bool) -> Iterator[Path]:
    """Holds a run's directory for this process.

    Args:
      workdir: created if absent, unless the run is resumed.
      config: the configuration that runs, a `ConfigDict`.
      resume: whether the directory is to hold the same run already.

    Raises:
      ValueError: the directory holds a run although it should not, no run although it
        should, another configuration, or a run that still goes on.
    """
    workdir = Path(workdir)
    name = f"workdir={str(workdir)!r}"
    if workdir.exists() and not workdir.is_dir():
        raise ValueError(f"{name} is a file, expected a directory")
    found = (workdir / "config.json").exists()
    if resume or found:
        differs = difference(read_config(workdir), config)
        if differs:
            raise ValueError(f"{name} holds a run of another configuration: {differs}")
    elif (workdir / "metrics.jsonl").exists():
        raise ValueError(f"{name} holds metrics but no config.json, expected no run")
    workdir.mkdir(parents=True, exist_ok=True)
    with _locked(workdir / "lock", name):
        if found and not resume:
            raise ValueError(
                f"{name} holds a run already, expected an empty directory; "
                "--resume continues it"
            )
        if not found:
            write(workdir / "config.json", config.to_json_best_effort(indent=2))
        yield workdir


def write(path: Path, text: str) -> None:
    """Writes a file whole or, if the process is killed, not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def difference(old, new) -> str:
    """The first field in which two configurations differ, '' if none.

    Example:
      >>> from ml_collections import config_dict
      >>> old, new = (config_dict.create(a=1, b={"c": c}) for c in (2, 3))
      >>> difference(old, new)
      'b.c is 2 there and 3 here'
    """
    old, new = (flatten(json.loads(c.to_json_best_effort())) for c in (old, new))
    for name in sorted(old | new):
        there, here = old.get(name), new.get(name)
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
def _locked(path: Path, name: str) -> Iterator[None]:
    """Holds a lock that the system releases with the process, however it ends."""
    import fcntl

    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{name} is in use by a run that still goes on") from None
        yield
