"""What a run is made of, and where it comes from: a configuration, or Python."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import jax

from sparsefl_jax.core import keys
from sparsefl_jax.runs import results
from sparsefl_jax.runs.config import fields
from sparsefl_jax.runs.config.build import (
    build_budgets,
    build_data,
    build_model,
    build_stages,
    build_system,
)
from sparsefl_jax.runs.plan import checks
from sparsefl_jax.runs.setup import Limits, Setup


class Parts(NamedTuple):
    """A run, and its stages as traced."""

    setup: Setup
    traced: list[checks.Traced]


class Source(NamedTuple):
    """Where the parts of a run come from; both read `config`, as `plain.values` has it.

    Attributes:
      data: `(config) -> FederatedData`.
      parts: `(config, data, started) -> Parts`; `started` says whether there is a
        checkpoint, so that `init_from` is not needed.
    """

    data: Callable
    parts: Callable


def _parts(config: SimpleNamespace, data, started: bool) -> Parts:
    model = build_model(config, data)
    fields.check_densities(config, model)
    system = build_system(config, len(data.train.size))
    budgets = build_budgets(config, system)
    stages = build_stages(config, model, budgets, system)
    setup = Setup(
        stages,
        model,
        data,
        eval_every=config.eval_every,
        chunk=config.chunk,
        budgets=budgets,
        metric=config.metric,
        client_store=config.client_store,
        memory_gb=config.memory_gb,
        until=Limits(**config.until),
        observe_rounds=config.observe_rounds,
        system=system,
    )
    traced = checks.run(setup)
    fields.check_stages(config, stages, model, traced)
    if config.init_from is not None and not started:
        key, _ = keys.of_run(jax.random.key(config.seed))
        initial = results.start_from(config.init_from, config.init_what, key, model)
        if config.init_what != "weights":
            results.check_kept(stages[0].algorithm, initial, config.init_what)
        setup = setup._replace(initial=initial)
    return Parts(setup, traced)


CONFIGURATION = Source(build_data, _parts)
