"""A run with files: logs, checkpoints, masks, a summary, plots, a page.

The files are described in `docs/runs.md`.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparsefl_jax import report
from sparsefl_jax.data import federated
from sparsefl_jax.runs import (
    fit_rounds,
    resumption,
    run_directory,
    summary,
    together,
)
from sparsefl_jax.runs import job as single
from sparsefl_jax.runs.config import fields
from sparsefl_jax.runs.config.plain import plain, replaced, values
from sparsefl_jax.runs.job import Job
from sparsefl_jax.runs.source import CONFIGURATION, Parts, Source
from sparsefl_jax.system import files, processes


def build(config, started: bool = False) -> Parts:
    """Builds what a configuration names; refuses what cannot run.

    Args:
      config: as `defaults.default_config` makes it.
      started: whether there is a checkpoint, so that `init_from` is not needed.

    Raises:
      ValueError: in one line, before any compilation.
    """
    fields.check(config)
    plain_values = values(config)
    return CONFIGURATION.parts(plain_values, CONFIGURATION.data(plain_values), started)


def widths_of(
    configs: Sequence, source: Source = CONFIGURATION
) -> tuple[int, ...] | None:
    """Returns the widths of clients' tables that serve all of some configurations.

    Runs of the same widths share their compiled programs. Splits differ by seed.

    Args:
      configs: configurations that differ in their seed.
      source: of their data.

    Returns:
      The columns of `train`, `val` and `test`; None if all have the same anyway.
    """
    if len(configs) < 2 or configs[0].partition_seed is not None:
        return None
    each = [federated.widths(source.data(values(config))) for config in configs]
    return tuple(map(max, zip(*each, strict=True)))


def run(
    config,
    workdir,
    *,
    resume: bool = False,
    progress: bool = True,
    extend_at_final: bool = False,
    accept_lost_records: bool = False,
) -> dict:
    """Runs a configuration and writes its files to `workdir`.

    Of several processes, which all call it alike, the first one writes; to go on all
    have to read the same `workdir`.

    Args:
      config: as `defaults.default_config` makes it.
      workdir: a directory, created if absent.
      resume: whether to go on with the run that `workdir` holds; else it holds none.
        `config` may differ in what `run_directory.FREE` and `run_directory.LATER` name.
      progress: whether to show the plan and a progress bar, or lines where there is no
        terminal.
      extend_at_final: whether a resumed run may have more rounds although its method's
        own schedule has ended.
      accept_lost_records: whether to go on from a checkpoint although logs from before
        it are not whole.

    Returns:
      The summary, as `summary.json` has it.

    Raises:
      ValueError: in one line, before any compilation, on what cannot be run.
      FloatingPointError: if a loss is not finite; the last checkpoint stays.
      MemoryError: if the devices' memory does not suffice; the last checkpoint stays.
      OSError: if a file cannot be written; the run can be resumed.
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    if resume:  # says what cannot change before the fields are held to each other
        config = fit_rounds.kept(config, run_directory.read_config(workdir)) or config
        run_directory.check(Path(workdir), config, resume)
    fields.check(config)
    if not resume:
        show = progress and processes.leads()
        config, found = fit_rounds.fitted(config, build, progress=show)
        if found and show:
            print(found, file=sys.stderr)
    job = Job(
        values(config),
        Path(workdir),
        resume,
        progress,
        extend_at_final,
        accept_lost_records,
    )
    for name in ("extend_at_final", "accept_lost_records"):
        if getattr(job, name) and not resume:
            raise ValueError(f"{name}=True, expected resume=True with it")
    return perform(job)


def run_each(
    runs: Sequence[tuple], seeds_together: str
) -> Iterator[tuple[int, dict | Exception]]:
    """Runs configurations that differ in their seed alone; each costs only itself.

    Args:
      runs: pairs of a configuration, with its number of rounds, and its directory.
      seeds_together: whether in one program, a name in `lockstep.CHOICES`.

    Yields:
      As `together.outcomes` does.

    Raises:
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    widths = widths_of([config for config, _ in runs])
    jobs = [
        Job(
            values(config),
            folder,
            resume=(folder / "config.json").exists(),
            progress="rounds",
            widths=widths,
        )
        for config, folder in runs
    ]
    return together.outcomes(jobs, seeds_together)


def perform(job: Job) -> dict:
    """Runs what was asked for; returns and raises what `run` does."""
    found = _run_seeds(job) if job.config.seeds > 1 else single.perform(job)
    if job.progress and processes.leads():
        print(f"report: {job.path / 'report.html'}", file=sys.stderr)
    return found


def _run_seeds(job: Job) -> dict:
    """Runs all seeds in directories of their own; averages them."""
    config, changed = job.config, {}
    if job.resume:
        old = run_directory.read_config(job.path)
        config, _ = resumption.planned(config, plain(old))
        changed = run_directory.differences(old, config)
    configs = [
        replaced(config, seed=seed, seeds=1, seeds_together="auto")
        for seed in range(config.seed, config.seed + config.seeds)
    ]
    widths = widths_of(configs, job.source)
    seeds = [
        job._replace(config=one, path=job.path / f"seed_{one.seed}", widths=widths)
        for one in configs
    ]
    if not job.resume:
        seeds[0].build(seeds[0].config)  # refuses before anything is written
    if not processes.leads():
        for seed in seeds:
            single.perform(seed._replace(resume=True))
        return processes.lead()
    with run_directory.claimed(job.path, config, job.resume) as root:
        seeds = [
            seed._replace(resume=(seed.path / "config.json").exists()) for seed in seeds
        ]
        if changed:  # all are asked before any goes on
            for seed in seeds:
                if seed.resume:
                    single.find(seed)
            run_directory.amend(root, config)
        both = summary.over_seeds(_all(seeds, config.seeds_together))
        files.write_json(root / "summary.json", both)
        report.write_comparison([root], root)
    return processes.lead(both)


def _all(seeds: Sequence[Job], asked: str) -> list[dict]:
    """Returns the summaries of all seeds; one that diverges fails after the others."""
    summaries, diverged = {}, []
    for index, outcome in together.outcomes(seeds, asked):
        alone = isinstance(outcome, FloatingPointError) and not processes.several()
        if alone:
            told = f"seed {seeds[index].config.seed}: {outcome}"
            diverged.append(FloatingPointError(told))
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            summaries[index] = outcome
    if diverged:
        raise diverged[0]
    return [summaries[index] for index in range(len(seeds))]
