"""Runs that write files: logs, checkpoints, masks, a summary, plots, a page.

A run is built from a configuration or from parts made in Python. Several seeds run one
after another. The files are described in `docs/reference/files.md`.
"""

import dataclasses
import functools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import jax

from sparsefl_jax import report
from sparsefl_jax.config.build import build_data, load
from sparsefl_jax.config.changes import keep_schedule
from sparsefl_jax.config.defaults import fill_in, freeze, plain
from sparsefl_jax.config.fields import Config, Described
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.check import UserError, check, integer, one_line, unread
from sparsefl_jax.core.types import Count
from sparsefl_jax.data import federated
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models.base import Model
from sparsefl_jax.runs import checkpoint, fit_rounds, folder, records, results, simulate
from sparsefl_jax.runs.describe import describe
from sparsefl_jax.runs.plan import Plan, check_stages, plan
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.runs.setup import Setup, build_setup, make
from sparsefl_jax.runs.simulate import Run, Segment
from sparsefl_jax.system import hardware, interrupt, processes, sinks
from sparsefl_jax.system.progress import Progress

_FILES = {"checkpoint_minutes": 10.0, "sinks": ()}  # settings of a run with files


def build(config, started: bool = False) -> Plan:
    """Builds a run from its configuration, and plans it, which checks that it can run.

    Args:
      config: a configuration, see `defaults.default_config`.
      started: whether there is a checkpoint, so that `init_from` is not needed.

    Raises:
      ValueError: the run is not possible; raised before a round is compiled.
    """
    config = freeze(config)
    return _plan(config, build_data(config), started)


def _plan(config: Config, data: FederatedData, started: bool) -> Plan:
    setup = build_setup(config, data)
    unscaled = data.mean is None and data.numeric is None
    if unscaled and not config.normalize and not started:  # older runs may have it
        why = f"{data.name!r} has neither channels nor columns to normalise"
        raise unread("normalize=False", why)
    planned = plan(setup)
    if config.init_from is not None and not started:
        path, what, seed = config.init_from, config.init_what, config.seed
        initial = results.start_from(path, what, seed, setup.model, config.adapter)
        if what != "weights":
            results.check_kept(setup.stages[0].algorithm, initial, what)
        planned = planned._replace(setup=setup._replace(initial=initial))
    check_stages(config, planned)
    return planned


def run(
    config, workdir, *, resume: bool = False, progress: bool = True
) -> dict | list[dict]:
    """Runs a configuration and writes its files to `workdir`.

    With several processes, all of them call this function with the same arguments, and
    the first one writes. To resume, all must be able to read the same `workdir`.

    Args:
      config: a configuration, see `defaults.default_config`.
      workdir: a directory, created if absent.
      resume: whether to continue the run in `workdir`; otherwise `workdir` must not
        hold a run. `config` may differ from that of the run in the fields of
        `config.changes.FREE` and `LATER`.
      progress: whether to show the plan and the progress.

    Returns:
      The summary, the content of `summary.json`; for several seeds a list of them.

    Raises:
      ValueError: the run is not possible; raised before its compilation, unless a
        compiled program does not fit the memory, and after the pilot of a budget.
      FloatingPointError: a loss or a weight is not finite; the last checkpoint stays.
      MemoryError: the devices lack memory; the last checkpoint stays.
      OSError: a file cannot be written; the run can be resumed.
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    path, show = Path(workdir), progress and processes.leads()
    # First report fields that cannot change, then check the rest.
    if resume or (processes.leads() and (path / "config.json").exists()):
        config = fit_rounds.resume_rounds(config, folder.read_config(path)) or config
        folder.check_folder(path, fill_in(config), resume)
    freeze(config)
    if not resume:
        config, cost = fit_rounds.fit(config, build, progress=show)
        if cost and show:
            print(cost, file=sys.stderr)
    each = run_seeds if config.seeds > 1 else run_seed
    summary = each(freeze(config), path, resume, progress)
    if show:
        print(f"report: {path / 'report.html'}", file=sys.stderr)
    return summary


def experiment(
    stages: Sequence[Stage],
    model: Model,
    data: FederatedData | Callable[[int], FederatedData],
    *,
    workdir: str | Path | None = None,
    seeds: int = 1,
    seed: int = 0,
    name: str | None = None,
    progress: bool = True,
    **settings,
) -> Run | list[Run]:
    """Runs the stages one after another, as the command line does.

    With a `workdir`, the plan is printed and all files of a run are written: metrics,
    summary, checkpoints, masks, `report.html`. A second call with the same arguments
    continues a run that was stopped and reads back one that has ended; if the last
    stage has more rounds, the run is extended. Several seeds run in `seed_N/`, and
    `workdir` gets a page that compares them. Without a `workdir` nothing is written;
    the results are the same.

    Args:
      stages: the stages to run.
      model: the network.
      data: the samples of all clients, or a function of the seed that returns them.
      workdir: a directory, created if absent; None writes nothing.
      seeds: the number of runs; their seeds are consecutive.
      seed: the first seed.
      name: the method's name in tables and pages; by default that of the factory of the
        last stage's method.
      progress: whether to show the plan and the progress.
      **settings: the other fields of a `Setup`, such as `eval_every` and `until`. With
        a `workdir` also `checkpoint_minutes` (10) and `sinks`, see `default_config`.

    Returns:
      A `Run`; for several seeds a list of them, in order.

    Raises:
      ValueError: the run is not possible, or `workdir` holds other files or a run with
        another setup. The settings of the stages and of the network are compared, but
        not the code of functions. With a `workdir`, also if the factory of a method is
        not decorated with `sfl.method`, or a setting has no name.
      TypeError: there is no such setting.
      MemoryError, FloatingPointError: as in `segments`; the last checkpoint stays.
      OSError: a file cannot be written.
      interrupt.StoppedError: after Ctrl-C, with a `workdir` and with everything saved.

    Example:
      >>> import sparsefl_jax as sfl
      >>> import numpy as np
      >>> x, y = np.eye(8, dtype=np.float32), np.arange(8) % 2
      >>> data = sfl.from_arrays(x, y, num_clients=2, x_test=x, y_test=y)
      >>> model = sfl.models.build("mlp", 2, (8,), widths=(4,))
      >>> method = sfl.fedavg(model, sfl.training.make_optimizer())
      >>> run = sfl.experiment([sfl.Stage(method, 1, 2)], model, data, progress=False)
      >>> run.metrics[-1]["round"]
      1
    """
    check("seeds", seeds, Count)
    check("seed", seed, integer(0, 2**31 - seeds))
    every, show = range(seed, seed + seeds), progress and processes.leads()
    read = data if callable(data) else lambda seed: data
    if seeds > 1:
        hardware.keep_compilations()  # which the seeds share
    if workdir is None:
        if name is not None:
            raise UserError(f"name={name!r}, expected a workdir whose pages show it")
        runs, read = [], of_one_width(read, every)
        for one in every:
            key = jax.random.key(one)
            setup = Setup(stages, model, read(one), **settings)
            with Progress(sum(s.num_rounds for s in stages), show=show) as bar:
                runs.append(simulate.run(key, **setup._asdict(), callback=bar.update))
        return runs if seeds > 1 else runs[0]
    of_files = {k: settings.pop(k, default) for k, default in _FILES.items()}
    sinks.check_sinks(of_files["sinks"])

    def make_plan(config: Config, data: FederatedData, started: bool) -> Plan:
        # `describe` made the configuration, and `initial` is given.
        return plan(make(stages, model, data, **settings))

    setup = make(stages, model, read(seed), **settings)
    described = describe(setup, name) | of_files
    config = Described(**plain(described | {"seed": seed, "seeds": seeds}))
    path = Path(workdir)
    each, begun = run_seeds if seeds > 1 else run_seed, (path / "config.json").exists()
    each(config, path, begun, progress, lambda config: read(config.seed), make_plan)
    if show:
        print(f"report: {path / 'report.html'}", file=sys.stderr)
    paths = [path / f"seed_{one}" for one in every] if seeds > 1 else [path]
    setups = (setup._replace(data=read(one)) for one in every)
    runs = list(map(results.read_back, paths, setups, every))
    return runs if seeds > 1 else runs[0]


def run_each(runs: Sequence[tuple]) -> Iterator[dict | Exception]:
    """Runs configurations that differ only in their seed; a failed one stops no other.

    Args:
      runs: pairs of a configuration, with its number of rounds, and its directory.

    Yields:
      For each run the summary, or the error that ended it.

    Raises:
      interrupt.StoppedError: after Ctrl-C or SIGTERM, with everything saved.
    """
    configs = [freeze(config) for config, _ in runs]
    read, paths = of_one_width(reading_once(configs[0]), configs), (p for _, p in runs)
    return _in_turn(zip(configs, paths, strict=True), "rounds", read, _plan)


def reading_once(config: Config) -> Callable:
    """Returns `build_data` of configurations that share the data set of this one."""
    dataset = functools.cache(lambda: load(config))
    return functools.partial(build_data, read=lambda _: dataset())


def of_one_width(read: Callable, seeds: Sequence) -> Callable:
    """Returns `read` with clients' tables padded to the same widths for all seeds.

    Splits differ by seed, and runs whose tables have the same widths share their
    compiled programs.

    Args:
      read: `(seed) -> FederatedData`; a configuration may take the place of its seed.
      seeds: all arguments with which `read` will be called.
    """
    if len(seeds) < 2 or getattr(seeds[0], "partition_seed", None) is not None:
        return read
    each = [federated.widths(read(seed)) for seed in seeds]
    widths = tuple(map(max, zip(*each, strict=True)))
    return lambda seed: federated.pad(read(seed), widths)


def run_seeds(
    config: Config,
    path: Path,
    resume: bool,
    progress: bool = True,
    read: Callable | None = None,
    plan_of: Callable = _plan,
) -> list[dict]:
    """Runs all seeds of a configuration in folders below `path`, and compares them.

    A seed that fails stops no other one in a single process; the first error is raised
    after the last seed.

    Args, raises: as `run_seed`. Returns the summary of each seed.
    """
    if resume:
        config = keep_schedule(config, plain(folder.read_config(path)))
    seeds = range(config.seed, config.seed + config.seeds)
    configs = [dataclasses.replace(config, seed=seed, seeds=1) for seed in seeds]
    read = of_one_width(read or reading_once(config), configs)
    runs = [(one, path / f"seed_{one.seed}") for one in configs]
    if not resume:
        plan_of(configs[0], read(configs[0]), False)  # raises before writing anything
    leads = processes.leads()
    with folder.claim(path, config, resume):
        if resume and leads:  # all are asked before any goes on
            for one, below in runs:
                if (below / "config.json").exists():
                    folder.resumption(below, one)
            folder.amend(path, config)
        summaries, failed = [], []
        outcomes = _in_turn(runs, progress, read, plan_of)
        for seed, outcome in zip(seeds, outcomes, strict=True):
            if not isinstance(outcome, Exception):
                summaries.append(outcome)
                continue
            print(f"seed {seed} failed: {one_line(outcome)}", file=sys.stderr)
            outcome.add_note(f"seed {seed}")
            if processes.are_several():
                raise outcome  # the other processes wait for this one
            failed.append(outcome)
        if failed:
            raise failed[0]
        if leads:
            report.write_comparison(report.compare(report.read_groups([path])), path)
    return processes.lead(summaries)


def _in_turn(runs, *how) -> Iterator[dict | Exception]:
    """Yields the summary of each seed, or its error; starts or resumes each run.

    Args:
      runs: pairs of a configuration and its folder.
      *how: the further arguments of `run_seed`.
    """
    for config, path in runs:
        begun = (path / "config.json").exists()
        try:
            outcome = run_seed(config, path, begun, *how)
        except Exception as error:  # whatever it is, its caller goes on with the others
            traceback.clear_frames(error.__traceback__)  # which hold its arrays
            outcome = error
        yield outcome


def run_seed(
    config: Config,
    path: Path,
    resume: bool,
    progress: bool | str = True,
    read: Callable = build_data,
    plan_of: Callable = _plan,
) -> dict:
    """Runs one seed, from its start or from its last checkpoint.

    Args:
      config: as `freeze` returns it.
      path: the run's folder.
      resume: whether the folder holds this run.
      progress: whether to show the progress; 'rounds' leaves out the plan.
      read: `(config) -> FederatedData`.
      plan_of: `(config, data, started) -> Plan`; `started` tells whether there is a
        checkpoint.

    Returns, raises: as `run` does.
    """
    processes.check_same("the configuration", plain(config))
    leads = processes.leads()
    message = "ending after this segment; again to leave at once"
    # Errors of a new run are raised before anything is written.
    planned = None if resume else plan_of(config, read(config), False)
    with folder.claim(path, config, resume):
        going = folder.resumption(path, config) if leads else folder.Resumption(config)
        done, begun = processes.lead([going.done, going.saved is not None])
        if done:
            if leads and not (path / "report.html").exists():
                records.draw(path)
            return processes.lead(report.read_summary(path) if leads else None)
        if begun and not leads:
            going = folder.resumption(path, config)
        if planned is None:
            planned = plan_of(going.config, read(going.config), begun)
        setup, key = planned.setup, jax.random.key(going.config.seed)
        with (
            records.open_records(path, going, planned, progress) as (at, recorder),
            interrupt.watch_signals(message) as interrupted,
            Programs(planned, recorder.waiting, interrupted) as programs,
        ):
            left = () if at.ended_by else simulate.simulate(key, programs, at)
            for segment in _note_errors(left, path):
                due = recorder.record(segment)
                if segment.snapshot is None:
                    continue
                at = segment.snapshot
                due, stop = processes.most(due, interrupted())
                # The next stage may have to compile; a signal ends that at once.
                ends = at.round == setup.stages[at.stage].num_rounds
                if due or stop or ends or at.ended_by:
                    kept = at  # a single process writes it in parts, without a copy
                    if processes.are_several():  # all take part
                        kept = at._replace(state=processes.fetch(at.state))
                    recorder.save(kept, segment.models)
                if stop and not at.ended_by:
                    where = f"ended after round {at.round} of stage {at.stage}"
                    raise interrupt.StoppedError(f"{where}, all saved", stop)
            written = recorder.finish(at, programs.memory())
            (stop,) = processes.most(interrupted())
            if stop:  # do not start later runs, such as those of other seeds
                raise interrupt.StoppedError("the run has finished", stop)
        return processes.lead(written)


def _note_errors(segments: Iterable[Segment], path: Path) -> Iterator[Segment]:
    """Yields segments; says of an error that ends them where it came and what stays."""
    where = "in the first segment"
    try:
        for segment in segments:
            yield segment
            if at := segment.snapshot:
                where = f"after round {at.round} of stage {at.stage}"
    except Exception as error:
        kept = (path / checkpoint.FILE).exists()
        stays = "its last checkpoint stays" if kept else "there is no checkpoint yet"
        error.add_note(f"in {path}, {where}; {stays}")
        raise
