"""Reads from a study's folder which runs it holds, and the names of its points."""

import re
from pathlib import Path

from sparsefl_jax.core.check import UserError, blaming
from sparsefl_jax.report.schema import Study
from sparsefl_jax.system import files

FILE = "study.json"


def read(folder: Path) -> dict:
    """Returns the content of the file of a study's folder.

    Its `points` are the configurations of all studies in the folder, `labels` the names
    of those that have one, and `shown` names those of the last study, which reports
    show.

    Raises:
      ValueError: the file is damaged.
    """
    study = files.read_json(folder / FILE, Study)
    with blaming(folder / FILE):
        for name, config in study["points"].items():
            check_name(name, config["seeds"])
    return study


def check_name(name: str, seeds: int) -> None:
    """Refuses a point whose name cannot be a folder's, or that has too many seeds.

    Example:
      >>> check_name("..", 1)
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: a point '..' of 1 seeds, expected a name of at most 200
      letters,
      digits and _.,=+- (it names a folder), and at most 10000 seeds
    """
    if not re.fullmatch(r"\w[\w.,=+-]{,199}", str(name)) or seeds > 10_000:
        raise UserError(
            f"a point {name!r} of {seeds} seeds, expected a name of at most 200 "
            "letters, digits and _.,=+- (it names a folder), and at most 10000 seeds"
        )


def runs_of(folder: str | Path) -> list[Path] | None:
    """Returns the runs of a study that have begun; None if a folder holds no study.

    Raises:
      ValueError: no run has begun, or the study's file is damaged.

    Example:
      >>> runs_of("no/such/study") is None
      True
    """
    folder = Path(folder)
    if not (folder / FILE).is_file():
        return None
    study = read(folder)
    with blaming(folder / FILE):
        runs = [
            folder / name / f"seed_{config['seed'] + i}"
            for name in study.get("shown") or study["points"]
            for config in [study["points"][name]]
            for i in range(config["seeds"])
        ]
    begun = [run for run in runs if (run / "metrics.jsonl").is_file()]
    if not begun:
        raise UserError(f"run_dir={str(folder)!r} is a study none of whose runs began")
    return begun


def label_of(run: Path) -> str:
    """Returns what a study calls the point of a run; '' if it has no name for it.

    Args:
      run: the folder of a run, POINT/seed_N in the folder of the study.
    """
    point = run.resolve().parent
    file = point.parent / FILE
    return files.read_optional(file, Study).get("labels", {}).get(point.name, "")
