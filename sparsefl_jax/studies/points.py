"""The points of a study: named configurations, and the state of each on disk.

A study's folder holds `study.json`, the points with their configurations, and for each
point a folder of its name with a run for every seed, `seed_0`, `seed_1`, ...
"""

import copy
import dataclasses
import runpy
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sparsefl_jax.config import changes
from sparsefl_jax.config.defaults import default_config, fill_in, freeze, plain
from sparsefl_jax.core.check import UserError, blame
from sparsefl_jax.report.groups import STUDY as FILE
from sparsefl_jax.report.groups import Study, read_study
from sparsefl_jax.runs import fit_rounds
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.system import files, shipped

_TAKEN = (
    *(FILE, "failed", "jobs", "lock", "logs", "figures"),
    *("comparison.csv", "comparison.tex", "methods.bib", "report.html"),
)


class Point(NamedTuple):
    """A configuration of a study; its seeds run one after another."""

    name: str  # of its folder
    config: Any  # a ConfigDict; `seed` and `seeds` say which seeds
    label: str = ""  # in legends and tables; '' for what differs

    @property
    def seeds(self) -> range:
        """Returns the seeds of the point."""
        return range(self.config.seed, self.config.seed + self.config.seeds)

    def of_seed(self, seed: int):
        """Returns the configuration of one seed's run."""
        config = copy.deepcopy(self.config)
        config.seed, config.seeds = seed, 1
        return config


def load(path: str) -> list[Point]:
    """Returns the points that a Python file's `get_study` names.

    Args:
      path: FILE or FILE:ARGUMENT; the argument, '' by default, goes to `get_study`,
        which returns a list of `Point`s, or of pairs of a name and a configuration.

    Raises:
      ValueError: there is no such file, or it returns something else.

    Example:
      >>> load("studies/five_method.py")
      Traceback (most recent call last):
      sparsefl_jax.UserError: --study=studies/five_method.py: there is no such file;
      --list names all
    """
    name, _, argument = shipped.find("study", "studies", path).partition(":")
    with blame(name):
        get_study = runpy.run_path(name).get("get_study")
        if get_study is None:
            raise UserError("there is no get_study, expected it to return the points")
        points = [Point(*pair) for pair in get_study(argument)]
    check_points(points)
    return points


def check_points(points: Sequence[Point]) -> None:
    """Refuses points that cannot be distinguished, and invalid configurations.

    Raises:
      ValueError: names the point.
    """
    if not points:
        raise UserError("the study has no points, expected at least one")
    names = [point.name for point in points]
    for point in points:
        if point.name in _TAKEN:
            raise UserError(f"a point is called {point.name!r}, as a file of the study")
        if names.count(point.name) > 1:
            raise UserError(f"two points are called {point.name!r}")
        with blame(f"point {point.name!r}"):
            seeds = {"seed": point.config.seed, "seeds": point.config.seeds}
            msgspec.convert({"points": {point.name: seeds}}, Study)
            freeze(point.config)


def write(workdir: Path, points: Sequence[Point]) -> None:
    """Adds a study to the file of its folder, or refuses one that changes a begun run.

    The points of other studies in this folder stay in the file. `shown` there names
    those of this study, of which reports are.

    Args:
      workdir: the study's folder, created if absent.
      points: all of it.

    Raises:
      ValueError: a folder holds the run of another configuration, or of other code.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    with run_folder.lock(workdir, wait=60):  # of the files that belong to no point
        known = read_study(workdir)
        held = {n: dict(known.get(n) or {}) for n in ("code", "labels", "points")}
        for point in points:
            config = plain(point.config)  # what follows the rounds is left to follow
            code = run_folder.own_code(config)
            _check_begun(workdir, point, held["code"].get(point.name, {}), code)
            held["code"][point.name] = code
            held["labels"][point.name] = point.label
            held["points"][point.name] = config
        held["shown"] = [point.name for point in points]
        files.write_json(workdir / FILE, held)


def _check_begun(workdir: Path, point: Point, old: dict, code: dict) -> None:
    """Refuses another configuration, or other code than the old, of runs that began."""
    begun = [f for _, f in folders(workdir, point) if (f / "config.json").exists()]
    again = f"remove {workdir / point.name} to run it again, or give another --workdir"
    for folder in begun:
        kept = run_folder.read_config(folder)
        wanted = point.of_seed(kept.seed)
        wanted = fit_rounds.resume_rounds(wanted, kept) or wanted
        free = {*changes.FREE, "fit.by"}
        if (folder / "summary.json").exists():  # nothing reads its data again
            free.discard("dataset")
        if differs := changes.difference(kept, fill_in(wanted), free):
            raise UserError(
                f"{folder} holds a run of another configuration: {differs}; {again}"
            )
    for file, checksum in code.items() if begun else ():
        if old.get(file, checksum) != checksum:
            raise UserError(f"{file} has changed since {point.name!r} began; {again}")


def folders(workdir: Path, point: Point) -> list[tuple[int, Path]]:
    """Returns the seeds of a point, each with the folder of its run."""
    return [(seed, workdir / point.name / f"seed_{seed}") for seed in point.seeds]


def with_kept_rounds(workdir: Path, point: Point) -> Point:
    """Returns a point with the rounds that its budget has set for one of its runs.

    Args:
      workdir: the study's folder, which may not exist yet.
      point: as the study describes it.
    """
    seeds = {"seed": point.config.seed, "seeds": point.config.seeds}
    for _, folder in folders(workdir, point):
        if (folder / "config.json").exists():
            old = dataclasses.replace(run_folder.read_config(folder), **seeds)
            if config := fit_rounds.resume_rounds(point.config, old):
                return point._replace(config=config)
    return point


def begun_folders(workdir: Path, point: Point) -> list[Path]:
    """Returns the folders of a point's runs that have records."""
    return [f for _, f in folders(workdir, point) if (f / "metrics.jsonl").exists()]


def read(workdir: str | Path) -> list[Point]:
    """Returns the points of all studies in a folder.

    Raises:
      ValueError: the folder holds no study, or its file is damaged.
    """
    path = Path(workdir) / FILE
    if not (study := read_study(path.parent)):
        raise UserError(f"workdir={str(workdir)!r}, expected the folder of a study")
    labels = study.get("labels") or {}
    with blame(path):
        return [
            Point(name, default_config(**values), labels.get(name, ""))
            for name, values in study["points"].items()
        ]


def state(workdir: Path, point: Point) -> str:
    """Returns 'done', 'running', 'missing' or 'failed: REASON', by a point's files."""
    note = failure(workdir, point.name)
    if note.exists():
        return f"failed: {note.read_text().splitlines()[0]}"
    if all((f / "summary.json").exists() for _, f in folders(workdir, point)):
        return "done"  # `write` has compared the configurations
    return "running" if run_folder.in_use(workdir / point.name) else "missing"


def failure(workdir: Path, name: str) -> Path:
    """Returns the file that says why a point failed."""
    return workdir / "failed" / f"{name}.txt"


def note(workdir: Path, name: str, reason: str, error: Exception | None = None) -> None:
    """Writes down why a point has failed, in a line, with the traceback of an error."""
    trace = traceback.format_exception(error) if error else []
    path = failure(workdir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text() if path.exists() else ""
    files.write_text(path, "".join([before, f"{reason}\n", *trace]))
