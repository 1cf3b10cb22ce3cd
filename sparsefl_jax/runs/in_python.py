"""A run of parts that were made in Python: a pure call, or a run with files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.validate import one_of, whole
from sparsefl_jax.data.federated import FederatedData
from sparsefl_jax.models.base import Model
from sparsefl_jax.runs import experiment as runs
from sparsefl_jax.runs import lockstep, results, sinks, together
from sparsefl_jax.runs.config.plain import plain
from sparsefl_jax.runs.description import describe
from sparsefl_jax.runs.job import Job
from sparsefl_jax.runs.plan import checks
from sparsefl_jax.runs.segments import Run
from sparsefl_jax.runs.setup import make
from sparsefl_jax.runs.source import Parts, Source
from sparsefl_jax.system import files

_FILES = {"checkpoint_minutes": 10.0, "sinks": ()}  # settings of a run with files


def experiment(
    stages: Sequence[Stage],
    model: Model,
    data: FederatedData | Callable[[int], FederatedData],
    *,
    workdir: str | Path | None = None,
    seeds: int = 1,
    seed: int = 0,
    seeds_together: str = "auto",
    name: str | None = None,
    progress: bool = True,
    **settings,
) -> Run | list[Run]:
    """Runs the stages one after another, as the command line does.

    With a `workdir` there are the plan, and all files of a run: metrics, summary,
    checkpoints, masks, `report.html`. Called again with the same arguments, a run that
    was stopped goes on and one that has ended is read back; more rounds of the last
    stage extend it. With several seeds the runs are in `seed_N/`, and `workdir` has the
    page of their comparison. Without a `workdir` nothing is written. The results are
    the same.

    Args:
      stages: what runs.
      model: the network.
      data: the samples of all clients, or a function of the seed that returns them.
      workdir: a directory, created if absent; None writes nothing.
      seeds: the number of runs, of seeds that follow one another.
      seed: the first seed.
      seeds_together: whether several seeds run in one program: 'auto' (on accelerators,
        where the memory suffices), 'yes' or 'no'. It changes results by rounding.
      name: of the method of the last stage in tables and pages; by default that of its
        factory.
      progress: whether to show the plan and the progress.
      **settings: the other fields of a `Setup`, such as `eval_every` and `until`. With
        a `workdir` also `checkpoint_minutes` (10) and `sinks`, see `default_config`.

    Returns:
      A `Run`; of several seeds a list of them, in their order.

    Raises:
      ValueError: in one line, on what cannot run. `workdir` holds something else, or
        the run of another setup; the settings of the stages and of the network are
        compared, the code of functions is not. With a `workdir`, a method's factory is
        not decorated with `sfl.method`, or a setting has no name.
      TypeError: there is no such setting.
      MemoryError, FloatingPointError: as `segments` does; the last checkpoint stays.
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
    whole("seeds", seeds, 1)
    whole("seed", seed, 0, 2**31 - seeds)
    one_of("seeds_together", seeds_together, lockstep.CHOICES)
    read = data if callable(data) else lambda seed: data
    if workdir is None:
        if name is not None:
            raise ValueError(f"name={name!r}, expected a workdir whose pages show it")
        first = make(stages, model, read(seed), **settings)
        setups = {s: first._replace(data=read(s)) for s in range(seed, seed + seeds)}
        found = together.pure(setups, seeds_together, progress)
        return found if seeds > 1 else found[0]
    of_files = {k: settings.pop(k, default) for k, default in _FILES.items()}
    sinks.check(of_files["sinks"])

    def parts(config: SimpleNamespace, data: FederatedData, started: bool) -> Parts:
        # `describe` made the configuration, and `initial` is given.
        setup = make(stages, model, data, **settings)
        return Parts(setup, checks.run(setup))

    setup = make(stages, model, read(seed), **settings)
    fields = describe(setup, name) | of_files | {"seed": seed, "seeds": seeds}
    fields["seeds_together"] = seeds_together
    config, path = SimpleNamespace(**plain(fields)), Path(workdir)
    files.check_name("workdir", path)
    begun = (path / "config.json").exists()
    source = Source(lambda config: read(config.seed), parts)
    runs.perform(Job(config, path, begun, progress, source=source))
    found = [
        results.read_back(
            path / f"seed_{s}" if seeds > 1 else path,
            setup._replace(data=read(s)),
            s,
        )
        for s in range(seed, seed + seeds)
    ]
    return found if seeds > 1 else found[0]
