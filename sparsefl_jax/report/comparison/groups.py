"""Groups runs that differ only in the seed."""

import collections
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparsefl_jax.core.formats import MISSING
from sparsefl_jax.report.comparison import study_folder
from sparsefl_jax.report.comparison.evaluations import seed_of
from sparsefl_jax.report.load import Run, read_run, run_folders


class Group(NamedTuple):
    """Runs of one configuration that differ only in the seed."""

    name: str
    runs: list[Run]
    label: str = ""  # what it is called; '' to call it by what differs


def read_groups(run_dirs: Sequence[str | Path]) -> list[Group]:
    """Reads runs and groups those that differ only in the seed.

    A folder whose `seed_*/` hold runs is a group by itself. Other runs form a group if
    their `config.json` are equal except for `seed` and `seeds`. A repeated seed goes
    into another group, because it is not a further sample.

    Args:
      run_dirs: folders of runs, of seeds, or of studies, which stand for their runs.

    Returns:
      The groups, in the order of their first runs. The name of a group is that of its
      first folder, its label what a study has called it.

    Raises:
      ValueError: a folder cannot be read, see `run_folders` and `read_run`.

    Example:
      >>> read_groups(["no/such/run"])
      Traceback (most recent call last):
      sparsefl_jax.UserError: run_dir='no/such/run', expected a folder with
      metrics.jsonl or seed_*/
    """
    members = collections.defaultdict(dict)  # {seed: run} by kind and copy
    found = {}
    for path in run_dirs:
        for run_dir in study_folder.runs_of(path) or [Path(path)]:
            for folder in run_folders(run_dir):
                found.setdefault(folder.resolve(), (folder, run_dir))
    for folder, run_dir in found.values():
        run = read_run(folder)
        kind, seed = _kind(run, run_dir)
        copy = next(i for i in itertools.count() if seed not in members[kind, i])
        members[kind, copy][seed] = run
    alike = [list(by_seed.values()) for by_seed in members.values()]
    return [
        Group(name, runs, study_folder.label_of(runs[0].path))
        for name, runs in zip(_names(alike), alike, strict=True)
    ]


def method_of(run: Run) -> str:
    """Returns the name of a run's method; two stages are joined by a plus sign.

    The module of a method of one's own is left out, as a run made in Python lacks it.
    """
    method = (run.config.get("algorithm") or {}).get("name") or MISSING
    first = (run.config.get("first_stage") or {}).get("name")
    names = [str(name).rpartition(":")[2] for name in (first, method) if name]
    return " + ".join(names)


def made_in_python(run: Run) -> bool:
    """Returns whether a run's parts were made in Python, by `sfl.experiment`."""
    return run.config.get("source") == "python"


def _kind(run: Run, run_dir: Path) -> tuple[str, int | str | None]:
    """Returns a key that the runs of a group share, and the seed of this run."""
    if run.path != run_dir:
        return str(run_dir.resolve()), seed_of(run)
    if not run.config:
        return str(run_dir.resolve()), None
    rest = {k: v for k, v in run.config.items() if k not in ("seed", "seeds")}
    fit = rest.get("fit") or {}
    rest["fit"] = {k: v for k, v in fit.items() if k != "measured"}  # by each seed
    return json.dumps(rest, sort_keys=True), run.config.get("seed")


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Names groups by their first folders, by the whole path where names are the same.

    `seed_0` and the like have the name of the folder that they are in.
    """
    paths = [runs[0].path.resolve() for runs in groups]
    paths = [p.parent if re.fullmatch(r"seed_\d+", p.name) else p for p in paths]
    names = [path.name for path in paths]
    return [p.name if names.count(p.name) == 1 else str(p) for p in paths]
