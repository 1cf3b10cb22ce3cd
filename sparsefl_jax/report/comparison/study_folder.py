"""Reads from a study's folder which runs it holds, and what its points are called."""

from pathlib import Path

from sparsefl_jax.core.validate import blaming
from sparsefl_jax.system import files

FILE = "study.json"  # the points' configurations, and `labels` of those that have one


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
    points = files.read_json(folder / FILE, {"points": {}})["points"]
    with blaming(folder / FILE):
        runs = [
            folder / name / f"seed_{seed}"
            for name, config in points.items()
            for seed in range(config["seed"], config["seed"] + config["seeds"])
        ]
    begun = [run for run in runs if (run / "metrics.jsonl").is_file()]
    if not begun:
        raise ValueError(f"run_dir={str(folder)!r} is a study none of whose runs began")
    return begun


def label_of(run: Path) -> str:
    """Returns what a study calls the point of a run; '' if it has no name for it.

    Args:
      run: the folder of a run, POINT/seed_N in the folder of the study.
    """
    point = run.resolve().parent
    file = point.parent / FILE
    study = files.read_optional(file, {})
    return study.get("labels", {}).get(point.name, "")
