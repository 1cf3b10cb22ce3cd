"""The command line's `--study` and `--sweep`."""

import sys
from pathlib import Path

import jax

from sparsefl_jax import report
from sparsefl_jax.core import formats
from sparsefl_jax.core.check import UserError
from sparsefl_jax.studies import grid, places, points, runner
from sparsefl_jax.system import interrupt


def run(
    file: str | None,
    swept: str | None,
    config,
    workdir: str | None,
    *,
    jobs: int = 1,
    unlike: bool = False,
    slurm: str | None = None,
    dry_run: bool = False,
) -> None:
    """Runs a study, or goes on with it, and prints its table.

    Args:
      file: of the study, FILE or FILE:ARGUMENT; or None.
      swept: the fields and values of a sweep, see `grid.parse`; or None.
      config: what a sweep varies.
      workdir: the study's folder.
      jobs: points at a time on this machine.
      unlike: whether runs may differ in data, partition, table of devices or metric.
      slurm: parameters of submitit's jobs, `NAME=VALUE,NAME=VALUE`; or None.
      dry_run: whether to print what is known of all points instead, see
        `runner.describe`.

    Raises:
      ValueError: in one line, on what cannot run, and at the end if a point failed.
    """
    if not file and config is None:
        raise UserError("--sweep varies a configuration, expected --config with it")
    given = ["jobs"] * (jobs != 1) + ["slurm"] * (slurm is not None)
    if given and dry_run:
        raise UserError(f"--{given[0]} is not read beside --dry_run")
    if len(given) > 1:
        raise UserError(f"--jobs={jobs} has no effect with --slurm")
    if given:  # leaves the memory of accelerators to the points
        jax.config.update("jax_platforms", "cpu")
    study = points.load(file) if file else grid.sweep(config, swept)
    if dry_run:
        return formats.say(runner.describe(study))
    if workdir is None:
        raise UserError("--workdir is missing, expected the folder of the study")
    folder, submit = Path(workdir), None
    if slurm is not None:
        submit = places.slurm(folder, slurm)
        jobs = len(study)  # SLURM knows how many run at a time
    try:
        states = runner.run(study, workdir, jobs=jobs, submit=submit, unlike=unlike)
    except interrupt.StoppedError as error:
        print(f"{error}; the same command goes on with it", file=sys.stderr)
        sys.exit(error.code)
    folders = [f for p in study for f in points.begun_folders(folder, p)]
    if folders:
        comparison = report.compare(report.sort_groups(report.read_groups(folders)))
        formats.say(report.comparison_table(comparison))
        formats.say(f"\nreport: {folder / 'report.html'}")
        if comparison.chosen is not None:
            names = [] if file else list(grid.parse(swept))
            formats.say(report.describe_choice(comparison, names))
    if failed := {n: s for n, s in states.items() if s.startswith("failed: ")}:
        first, reason = next(iter(failed.items()))
        reason = reason.removeprefix("failed: ")
        told = f"{len(failed)} of {len(states)} points failed, first {first}: {reason}"
        raise UserError(told)
