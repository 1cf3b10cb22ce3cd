"""How many rounds a budget pays for: `fit.gbit` and `fit.pflop` of a configuration.

The number is set before the run, so that schedules of rates and densities span it.
Where the plan tells the cost exactly, as it does for the bits of dense models and of
masks that never change, it is the largest that fits. Elsewhere the plan tells at most,
and a pilot of `fit.pilot` rounds measures which share of that is spent.
"""

import copy
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax

from sparsefl_jax.runs import loop, run_directory
from sparsefl_jax.runs.plan import describe

_MOST = 1_000_000  # rounds


class Planned(NamedTuple):
    """The planned cost of a run in one unit, Gbit or PFLOP."""

    first: float  # of all stages but the last, at most
    last: float  # of the last stage, at most
    exact: bool  # whether it is exactly that


def wanted(config) -> dict[str, float]:
    """Returns the budgets that are still to set the rounds, by 'gbit' and 'pflop'."""
    if config.fit.get("by") is not None:
        return {}
    return {name: v for name in ("gbit", "pflop") if (v := config.fit.get(name))}


def kept(config, old):
    """Returns a configuration with the rounds that its budget set before, or None.

    Args:
      config: a configuration.
      old: one that `fitted` returned.
    """
    if not wanted(config) or old.fit.get("by") is None:
        return None
    same = _of(config, old.num_rounds, old.fit.by)
    return None if run_directory.differences(old, same) else same


def fitted(config, build: Callable) -> tuple:
    """Returns a configuration with the number of rounds that its budget pays for.

    Args:
      config: with `fit.gbit` or `fit.pflop`; without, it is returned as it is.
      build: `(config) -> Parts`, see `experiment.build`.

    Returns:
      The configuration, and a line that says what was found, or ''.

    Raises:
      ValueError: the budget does not pay for one round, or the plan tells the cost at
        most and there is no `fit.pilot`.
    """
    budgets = wanted(config)
    if not budgets:
        return config, ""

    @functools.cache
    def plan(rounds: int) -> dict[str, Planned]:
        parts = build(_of(config, rounds))
        return _planned(parts.setup, parts.traced, config.seed)

    whole = dict.fromkeys(budgets, (1.0, 1.0))
    rounds, inexact = config.num_rounds, ""
    for name, planned in plan(rounds).items():
        if name in budgets and not planned.exact:
            inexact = name
    if inexact and config.fit.get("pilot") is None:
        raise ValueError(
            f"fit.{inexact}={budgets[inexact]:g}: the plan of {config.algorithm.name} "
            "bounds this cost but does not tell it, expected fit.pilot=N to measure N "
            "rounds first"
        )
    rounds = _largest(plan, budgets, whole, rounds)
    if inexact:
        shares = _measured(config, build(_of(config, max(rounds, 1))))
        rounds = _largest(plan, budgets, shares, max(rounds, 1))
    told = ", ".join(f"fit.{name}={value:g}" for name, value in budgets.items())
    if not rounds:
        raise ValueError(f"{told} does not pay for one round of the run")
    pilot = f"a pilot of {config.fit.pilot} rounds"
    source = pilot if inexact else "the exact plan"
    config = _of(config, rounds, "pilot" if inexact else "plan")
    return config, f"{told} pays for {rounds} rounds, by {source}"


def _of(config, rounds: int, by: str | None = None):
    """Returns the configuration with another number of rounds, and what set it."""
    config = copy.deepcopy(config)
    config.num_rounds = rounds
    with config.ignore_type():
        config.fit.by = by
    return config


def _planned(setup, traced, seed: int) -> dict[str, Planned]:
    """Returns the planned cost of a run by unit."""
    told = describe.describe(setup, key=jax.random.key(seed), traced=traced)
    planned = {}
    for name in ("gbit", "pflop"):
        costs = [_cost(stage, name) for stage in told["stages"]]
        exact = all(math.isclose(*pair, rel_tol=1e-9) for pair in costs)
        most = [pair[1] for pair in costs]
        planned[name] = Planned(sum(most[:-1]), most[-1], exact)
    return planned


def _cost(stage: dict, name: str) -> tuple[float, float]:
    """Returns the cost of a stage, at least and at most."""
    if name == "pflop":
        return 0.0, stage["rounds"] * stage["flops_most"] / 1e15
    bits = zip(stage["bits_down"], stage["bits_up"], strict=True)
    least, most = (stage["rounds"] * sum(pair) / 1e9 for pair in bits)
    return least, most


def _largest(plan: Callable, budgets: dict, shares: dict, guess: int) -> int:
    """Returns the largest number of rounds whose planned cost fits; 0 if none does.

    Costs are near to linear in the rounds, and so is the next guess; every guess
    narrows the range, so that the search ends for any cost that rises.
    """
    low, high = 0, _MOST + 1  # low fits, high does not
    while high - low > 1:
        following = math.inf
        for name, budget in budgets.items():
            planned, (first, last) = plan(guess)[name], shares[name]
            rest = budget * (1 + 1e-9) - first * planned.first
            each = max(last * planned.last / guess, 1e-30)
            following = min(following, rest / each)
        if following >= guess:
            low = guess
        else:
            high = guess
        guess = min(max(math.floor(following), low + 1), high - 1)
    return low


def _measured(config, parts) -> dict[str, tuple[float, float]]:
    """Returns which shares of the most the stages before, and a pilot, spend."""
    *before, last = parts.setup.stages
    pilot = min(config.fit.pilot, last.num_rounds)
    stages = [*before, last._replace(num_rounds=pilot)]
    short = parts.setup._replace(stages=stages, eval_every=pilot)
    planned = _planned(short, parts.traced, config.seed)
    settings = short._asdict()
    given = [settings.pop(name) for name in ("stages", "model", "data")]
    run = loop.run(jax.random.key(config.seed), *given, **settings)
    spent = {name: [0.0, 0.0] for name in planned}
    for record in run.metrics:
        if record["phase"] == "train":
            is_last = record["stage"] == len(before)
            spent["gbit"][is_last] += (record["bits_up"] + record["bits_down"]) / 1e9
            spent["pflop"][is_last] += record["flops"] / 1e15
    return {
        name: (
            spent[name][0] / planned[name].first if planned[name].first else 0.0,
            spent[name][1] / planned[name].last,
        )
        for name in planned
    }
