"""How many rounds a budget pays for: `fit.gbit` and `fit.pflop` of a configuration.

The number is set before the run, so that schedules of rates and densities span it.
Where the plan tells the cost exactly, as it does for the bits of dense models, it is
the largest that fits. Elsewhere the plan tells at most, and a pilot of `fit.pilot`
rounds measures which share of that is spent, see `pilot`. `fit.most` limits the rounds
of messages so small that their budget would take days to spend.
"""

import copy
import functools
import math
from collections.abc import Callable

import jax

from sparsefl_jax.runs import pilot, run_directory
from sparsefl_jax.runs.plan import describe

_MOST = 1_000_000  # rounds, without `fit.most`


def wanted(config) -> dict[str, float]:
    """Returns the budgets that are still to set the rounds, by 'gbit' and 'pflop'."""
    if config.fit.get("by") is not None:
        return {}
    return {name: v for name in ("gbit", "pflop") if (v := config.fit.get(name))}


def kept(config, old):
    """Returns a configuration with the rounds that its budget set before, or None.

    Args:
      config: a configuration.
      old: one that `fitted` returned. It may differ in what `run_directory.FREE` names.
    """
    if not wanted(config) or old.fit.get("by") is None:
        return None
    same = with_rounds_of(config, old)
    differing = run_directory.differences(old, same).keys()
    return same if differing <= set(run_directory.FREE) else None


def followed(config) -> bool:
    """Tells whether other fields, as FedSparsify's, follow rounds yet to be set."""
    longer = copy.deepcopy(config)
    longer.num_rounds += 1
    return bool(wanted(config)) and len(run_directory.differences(config, longer)) > 1


def with_rounds_of(config, old):
    """Returns a configuration with the rounds of another, and what set them."""
    return _of(config, old.num_rounds, old.fit.by, old.fit.get("measured"))


def fitted(
    config, build: Callable, *, progress: bool = False, measure: bool = True
) -> tuple:
    """Returns a configuration with the number of rounds that its budget pays for.

    Args:
      config: with `fit.gbit` or `fit.pflop`; without, it is returned as it is.
      build: `(config) -> Parts`, see `experiment.build`.
      progress: whether to show the rounds of a pilot.
      measure: whether to run a pilot where there has to be one. If not, the rounds are
        those that the plan's bound pays for, at least one, and are still to be set.

    Returns:
      The configuration, and a line that says what was found, or ''.

    Raises:
      ValueError: the budget does not pay for one round, or the plan tells the cost at
        most and there is no `fit.pilot`.
    """
    budgets = wanted(config)
    if not budgets:
        return config, ""

    bare = copy.deepcopy(config)
    bare.observe_rounds = ()  # a guess or a pilot may be shorter

    @functools.cache
    def plan(rounds: int) -> tuple:
        parts, key = build(_of(bare, rounds)), jax.random.key(config.seed)
        described = describe.describe(parts.setup, key=key, traced=parts.traced)
        return parts, described["stages"]

    def planned(rounds: int) -> dict[str, tuple[float, float]]:
        _, stages = plan(rounds)
        most = {name: [_cost(s, name)[1] for s in stages] for name in budgets}
        return {name: (sum(costs[:-1]), costs[-1]) for name, costs in most.items()}

    _, stages = plan(config.num_rounds)
    inexact = [
        name
        for name in budgets
        if not all(math.isclose(*_cost(s, name), rel_tol=1e-9) for s in stages)
    ]
    if inexact and config.fit.get("pilot") is None:
        raise ValueError(
            f"fit.{inexact[0]}={budgets[inexact[0]]:g}: the plan of "
            f"{config.algorithm.name} bounds this cost but does not tell it, expected "
            "fit.pilot=N to measure N rounds first"
        )
    most = config.fit.get("most") or _MOST
    rounds, found = _largest(planned, budgets, config.num_rounds, most), None
    if rounds == most:  # even by the bound
        inexact = []
    if inexact and not measure:
        return _of(config, max(rounds, 1)), f"at least {rounds} rounds, by the plan"
    if inexact:
        parts, stages = plan(max(rounds, 1))
        measured = pilot.measure(
            parts,
            stages[-1]["flops_most"],
            config.fit.pilot,
            config.seed,
            progress=progress,
        )

        def estimated(rounds: int) -> dict[str, tuple[float, float]]:
            parts, stages = plan(rounds)
            return pilot.cost(measured, parts, stages[-1]["flops_most"], config.seed)

        rounds = _largest(estimated, budgets, max(rounds, 1), most)
        found = pilot.sentence(measured)
    budget = ", ".join(f"fit.{name}={value:g}" for name, value in budgets.items())
    if not rounds:
        raise ValueError(f"{budget} does not pay for one round of the run")
    source = f"a pilot of {config.fit.pilot} rounds" if inexact else "the exact plan"
    if rounds == most:
        source = "fit.most"
    config = _of(config, rounds, "pilot" if inexact else "plan", found)
    sentence = f"{budget} pays for {rounds} rounds, by {source}"
    return config, f"{sentence}: {found}" if found else sentence


def _of(config, rounds: int, by: str | None = None, measured: str | None = None):
    """Returns the configuration with another number of rounds, and what set it."""
    config = copy.deepcopy(config)
    config.num_rounds = rounds
    with config.unlocked(), config.ignore_type():
        config.fit.by, config.fit.measured = by, measured
    return config


def _cost(stage: dict, name: str) -> tuple[float, float]:
    """Returns the cost of a stage, at least and at most."""
    if name == "pflop":
        return 0.0, stage["rounds"] * stage["flops_most"] / 1e15
    bits = zip(stage["bits_down"], stage["bits_up"], strict=True)
    least, most = (stage["rounds"] * sum(pair) / 1e9 for pair in bits)
    return least, most


def _largest(cost: Callable, budgets: dict, guess: int, most: int) -> int:
    """Returns the largest number of rounds, up to `most`, whose cost fits, or 0.

    `cost` maps rounds to the costs of the stages before, and of the last, by name.
    Costs are near to linear in the rounds, and so is the next guess; every guess
    narrows the range, so that the search ends for any cost that rises.
    """
    low, high = 0, most + 1  # low fits, high does not
    guess = min(guess, most)
    while high - low > 1:
        following, costs = math.inf, cost(guess)
        for name, budget in budgets.items():
            first, last = costs[name]
            rest = budget * (1 + 1e-9) - first
            following = min(following, rest / max(last / guess, 1e-30))
        if following >= guess:
            low = guess
        else:
            high = guess
        guess = min(max(math.floor(following), low + 1), high - 1)
    return low
