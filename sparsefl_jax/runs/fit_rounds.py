"""Computes the number of rounds that a budget allows: `fit.gbit` and `fit.pflop`.

The number is set before the run, so that schedules of learning rates and densities span
the whole run. A pilot measures the cost of a round. It is a short version of the run,
with `fit.pilot` rounds, so that schedules that depend on the number of rounds are part
of it. Methods with a fixed period, such as PruneFL, which changes its mask at regular
intervals, need a pilot longer than this period.

The rounds of a pilot differ from those of the run in two ways. The first round of a
stage may send a dense model, so it is counted separately. A client's first exchange
transfers data that it then keeps, such as positions, and a pilot has many first
exchanges. They are measured separately; their number in the run follows from its
cohorts. Costs of methods whose masks shrink are in proportion to the share of weights
that `Algorithm.density_after` returns. There is no pilot where the bits of an exchange
follow from the shapes of its messages, as FedAvg's do. `fit.most` limits the rounds of
methods whose messages are so small that spending the budget would take days.
"""

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from sparsefl_jax.config import changes
from sparsefl_jax.config.defaults import fill_in
from sparsefl_jax.config.fields import Limits
from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.check import UserError, check
from sparsefl_jax.data import cohorts
from sparsefl_jax.data.batching import samples_per_round
from sparsefl_jax.runs import simulate
from sparsefl_jax.runs.plan import plan
from sparsefl_jax.runs.programs import Programs
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import clock
from sparsefl_jax.system.progress import Progress
from sparsefl_jax.wire.charges import packet_bits
from sparsefl_jax.wire.packets import Count

PILOT = 20  # rounds, without `fit.pilot`
_MOST = 1_000_000  # rounds, without `fit.most`
_TRIES = 8  # numbers of rounds, since the cost of a round depends on the number
_DRAWS = 5_000_000  # clients of all rounds drawn; no first exchanges beyond these


class Measured(NamedTuple):
    """The costs that a pilot has measured, scaled to a full mask."""

    begin: dict[str, float]  # Gbit and PFLOP up to the last stage's first round
    first: float  # Gbit of a client's first exchange, after that round
    again: float  # Gbit of its later ones
    flops: float  # PFLOP for each sample, as often as it is seen


def budgets_of(config) -> dict[str, float]:
    """Returns the budgets that are still to set the rounds, by 'gbit' and 'pflop'."""
    if config.fit.get("by") is not None:
        return {}
    return {name: v for name in ("gbit", "pflop") if (v := config.fit.get(name))}


def resume_rounds(config, old):
    """Returns a configuration with the rounds that its budget set before, or None.

    Args:
      config: a configuration.
      old: one that `fit` returned. It may differ in what `changes.FREE` names.
    """
    if not budgets_of(config) or old.fit.get("by") is None:
        return None
    same = with_rounds(config, old.num_rounds, old.fit["by"])
    differs = changes.difference(fill_in(old), fill_in(same), changes.FREE)
    return None if differs else same


def with_rounds(config, rounds: int, by: str | None = None):
    """Returns the configuration with another number of rounds, and its source."""
    config = copy.deepcopy(config)
    config.num_rounds = rounds
    if evaluations := config.fit.get("evaluations"):
        config.eval_every = max(1, round(rounds / evaluations))
    config.fit.by = by
    return config


def fit(config, build: Callable, *, progress: bool = False) -> tuple:
    """Returns a configuration with the number of rounds that its budget allows.

    Args:
      config: with `fit.gbit` or `fit.pflop`; otherwise it is returned unchanged.
      build: `(config) -> Plan`, see `experiment.build`.
      progress: whether to show the rounds of the pilot.

    Returns:
      The configuration, and a line that names its rounds, or ''.

    Raises:
      ValueError: the budget does not pay for one round, or rounds after the first of
        the last stage cost nothing of it.
    """
    budgets = budgets_of(config)
    if not budgets:
        return config, ""
    given = ", ".join(f"fit.{name}={value:g}" for name, value in budgets.items())
    length, seed = config.fit.get("pilot") or PILOT, config.seed
    most = config.fit.get("most") or _MOST
    setup = build(with_rounds(config, length)).setup
    known = exchange_by_shape(setup) if [*budgets] == ["gbit"] else None
    if known is None:
        by, told = "pilot", f"a pilot of {length} rounds"
        measured = measure(setup, budgets, seed, progress=progress)
    else:
        by, told = "messages", "the sizes of its messages"
        (new, *_), (later, *_), _ = exchanges(setup, seed)
        begin = {"gbit": float(new * known[0] + later * known[1])}
        measured = Measured(begin, *known, 0.0)
    left = {n: v * (1 + 1e-9) - measured.begin[n] for n, v in budgets.items()}
    if min(left.values()) < 0:
        raise UserError(f"{given} does not pay for one round of the run")
    rounds = length
    for _ in range(_TRIES):
        each = mean_cost(measured, setup, seed)
        if not any(each[name] for name in budgets):  # such as bits of fine-tuning
            raise UserError(f"{given}, expected what later rounds of the run cost too")
        pays = min(left[name] / max(each[name], 1e-30) for name in budgets)
        before, rounds = rounds, int(min(1 + pays, most))
        if rounds == before:
            break
        setup = build(with_rounds(config, rounds)).setup
    if rounds == most:
        by = "most"
        told = "fit.most" if config.fit.get("most") else "the default of fit.most"
    config = with_rounds(config, rounds, by)
    return config, f"{given} pays for {rounds} rounds, by {told}"


def exchange_by_shape(setup: Setup) -> tuple[float, float] | None:
    """Returns the Gbit of a client's first exchange and of a later one.

    It is None if they do not follow from the shapes of its messages, because of a mask
    or because data decides what is sent, or if the run has several stages or a system,
    or the method says how its costs fall.
    """
    if len(setup.stages) > 1 or setup.system is not None:
        return None
    if setup.stages[0].algorithm.density_after is not None:
        return None
    one, own = plan(setup).stages[0].round, set()

    def sent(*arguments):
        down, up, *_ = one.client(*arguments)
        own.update(down, up)
        return [[jnp.asarray(p.sent) for p in m.values()] for m in (down, up)]

    always = jax.make_jaxpr(sent)(*one.arguments).jaxpr.outvars
    all_sent = all(isinstance(flag, Literal) and flag.val for flag in always)
    bits = np.zeros(2)
    for message in one.layouts.values():
        for name, packet in message.items():
            plain = packet.index == "none" and packet.mask is None
            if not all_sent or not plain or packet.optional:
                return None
            sizes = np.array([leaf.size for leaf in jax.tree.leaves(packet.values)])
            once = np.array([True, name in own])
            count = Count(np.tile(sizes, (2, 1)), fresh=once, sent=once)
            bits += packet_bits(packet, count).total
    first, again = (bits / 1e9).tolist()
    return first, again


def measure(
    setup: Setup, budgets: dict[str, float], seed: int, *, progress: bool = False
) -> Measured:
    """Runs a pilot, which ends with the first round that reaches a budget.

    It writes nothing.

    Args:
      setup: of the pilot.
      budgets: by 'gbit' and 'pflop'.
      seed: of the run.
      progress: whether to show the rounds.

    Raises:
      ValueError: no client was available in the rounds that predict later ones.
    """
    total, last = sum(stage.num_rounds for stage in setup.stages), len(setup.stages) - 1
    # An evaluation ends a stage, and there is no other.
    setup = setup._replace(eval_every=total, until=Limits(**budgets))
    records = []
    with (
        Progress(total, show=progress, title="pilot: ") as bar,
        Programs(plan(setup)) as programs,
    ):
        for segment in simulate.simulate(jax.random.key(seed), programs):
            if segment.records:
                records += segment.records
                bar.update(segment.records)
    main = [r for r in records if r["phase"] == "train" and r["stage"] == last]
    if not main:  # the stages before have spent the budget
        return Measured(dict.fromkeys(budgets, math.inf), 0.0, 0.0, 0.0)
    begin = {name: main[0][f"{name}_cumulative"] for name in budgets}
    later = slice(1 if len(main) > 1 else 0, len(main))
    shares = _alive(setup.stages[-1])[later]
    first, again = _each_exchange(main, shares)
    *_, samples = exchanges(setup, seed)
    work = float(samples[later] @ shares)
    pflop = sum(r["flops"] for r in main[later]) / 1e15 / max(work, 1.0)
    return Measured(begin, first, again, pflop)


def mean_cost(measured: Measured, setup: Setup, seed: int) -> dict[str, float]:
    """Returns the mean Gbit and PFLOP of a round of the last stage after its first.

    Args:
      measured: by the pilot.
      setup: of the run, with any number of rounds in its last stage.
      seed: of the run, whose very cohorts are counted.
    """
    last = setup.stages[-1]
    rounds = max(last.num_rounds, 2)
    stages = [*setup.stages[:-1], last._replace(num_rounds=rounds)]
    new, again, samples = exchanges(setup._replace(stages=stages), seed)
    shares = _alive(last)[1:rounds]
    gbit = float((new * measured.first + again * measured.again)[1:] @ shares)
    work = float(samples[1:] @ shares)
    return {"gbit": gbit / (rounds - 1), "pflop": measured.flops * work / (rounds - 1)}


def _alive(stage: Stage) -> np.ndarray:
    """Returns the shares alive after 0, 1, ... rounds, up to all of a stage."""
    density_after = stage.algorithm.density_after or (lambda round: 1.0)
    shares = [float(density_after(round)) for round in range(stage.num_rounds + 1)]
    for round, share in enumerate(shares):
        check(f"density_after({round})", share, "[0, 1]")
    return np.array(shares)


def exchanges(setup: Setup, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts clients of the last stage, with first participations counted separately.

    Beyond the rounds that are drawn, all clients are assumed to have taken part before,
    and as many to be available as in the drawn rounds.

    Args:
      setup: of the run.
      seed: of the run, whose very cohorts are counted.

    Returns:
      The number of clients that take part for the first time, [T] int, that of the
      others, [T] float, and the samples of all, [T] float.
    """
    stage, sizes = setup.stages[-1], np.asarray(setup.data.train.size)
    seen = samples_per_round(stage, sizes)
    _, run_key = keys.of_run(jax.random.key(seed))
    root = keys.of_stage(run_key, len(setup.stages) - 1)
    # Up to `SHUFFLED` clients are all shuffled to draw a few of them.
    each = len(sizes) if len(sizes) <= cohorts.SHUFFLED else stage.cohort_size
    drawn = min(stage.num_rounds, max(1, _DRAWS // each))
    present = clock.presence(setup.system, sizes)
    draw = cohorts.make_draw(root, stage, len(sizes), present)
    ids = draw(np.arange(drawn, dtype=np.int32))
    clients, places = np.unique(ids, return_index=True)
    places = places[clients < len(sizes)] // stage.cohort_size
    new = np.bincount(places, minlength=stage.num_rounds)
    there, samples = (
        np.append(each, np.full(stage.num_rounds - drawn, each.mean()))
        for each in (np.sum(ids < len(sizes), axis=1), np.append(seen, 0)[ids].sum(1))
    )
    return new, there - new, samples


def _each_exchange(records: list[dict], shares: np.ndarray) -> tuple[float, float]:
    """Returns the Gbit of a first exchange and of a later one, for a whole mask.

    Args:
      records: of a stage's rounds; if there are several, the first is left out.
      shares: of the mask that is alive in the others.
    """
    alone, *later = records
    seen = set(alone["clients"]) if later else set()
    spent, weights = np.zeros(2), np.zeros(2)
    for record, share in zip(later or [alone], shares, strict=True):
        bits = np.add(record["bits_down_by_client"], record["bits_up_by_client"])
        kinds = np.array([client in seen for client in record["clients"]], int)
        np.add.at(spent, kinds, bits / 1e9)
        np.add.at(weights, kinds, share)
        seen |= set(record["clients"])
    known = weights > 0
    if not known.any():
        raise UserError(
            f"fit.pilot={len(records)}: no client was available in the rounds that "
            "predict later ones, expected more rounds"
        )
    each = spent / np.where(known, weights, 1.0)
    first, again = np.where(known, each, each[::-1])  # if one is unknown, use the other
    return float(first), float(again)
