"""A pilot: a few rounds that measure what a run costs where the plan only bounds it.

Two things keep a pilot's rounds from being like later ones. The first round of a stage
may send a dense model, and so it counts for itself. A client's first exchange brings
it positions that it holds afterwards while the mask stands, and a pilot has many first
exchanges. Both kinds are therefore measured apart, as shares of the most that the plan
allows in their rounds; how many of either kind a run has follows from its cohorts.
"""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.formats import format_percent, format_si
from sparsefl_jax.core.types import Key
from sparsefl_jax.data import cohorts
from sparsefl_jax.runs import simulate
from sparsefl_jax.runs.plan import traffic_estimate
from sparsefl_jax.runs.programs import Parts
from sparsefl_jax.runs.progress import Progress
from sparsefl_jax.simulation import clock
from sparsefl_jax.sparsity import trees

_DRAWS = 5_000_000  # rounds x clients that are drawn; later exchanges are no first ones


class Measured(NamedTuple):
    """What a pilot has measured; shares are of the most that the plan allows."""

    before: dict[str, float]  # Gbit and PFLOP of all stages but the last
    begin: dict[str, float]  # of the first round of the last stage
    first: float  # share of the bits of clients' first exchanges after that round
    again: float  # share of the bits of their later exchanges
    flops: float  # share of the FLOPs after that round, of those at the masks' bound


def measure(
    parts: Parts, flops: float, rounds: int, seed: int, *, progress: bool = False
) -> Measured:
    """Runs all stages but the last, and the first rounds of that.

    Args:
      parts: of the run.
      flops: the most that a round of the last stage takes.
      rounds: of the last stage, at most those that it has.
      seed: of the run.
      progress: whether to say that rounds run, and to show them.
    """
    *before, last = parts.setup.stages
    rounds = min(rounds, last.num_rounds)
    stages = [*before, last._replace(num_rounds=rounds)]
    setup = parts.setup._replace(stages=stages, eval_every=rounds)
    total = sum(stage.num_rounds for stage in stages)
    if progress:
        print(f"pilot: trains {total} rounds to measure their cost", file=sys.stderr)
    with Progress(total, show=progress, title="pilot, ") as bar:
        key = jax.random.key(seed)
        run = simulate.run_setup(key, setup, bar.update)
    records = [r for r in run.metrics if r["phase"] == "train"]
    main = [r for r in records if r["stage"] == len(before)]
    most = most_bits(parts)
    first, again = _shares(main, most)
    later = slice(1 if len(main) > 1 else 0, len(main))
    after = sum(r["flops"] for r in main[later])
    return Measured(
        _spent(r for r in records if r["stage"] < len(before)),
        _spent(main[:1]),
        first,
        again,
        after / max(float(most_flops(parts, flops)[later].sum()), 1.0),
    )


def sentence(measured: Measured) -> str:
    """Returns what a pilot has measured, in words.

    Example:
      >>> begin = {"gbit": 0.012}
      >>> print(sentence(Measured({}, begin, first=0.61, again=0.4, flops=0.1)))
      first round 12.0 Mbit; then of the most bits 61 % in a client's first exchange and
      40 % in later ones, and of the most FLOPs 10 %
    """
    first, again, flops = (
        format_percent(share, 0)
        for share in (measured.first, measured.again, measured.flops)
    )
    return (
        f"first round {format_si(1e9 * measured.begin['gbit'], 'bit')}; then of the "
        f"most bits {first} in a client's first exchange and {again} in later ones, "
        f"and of the most FLOPs {flops}"
    )


def cost(measured: Measured, parts: Parts, flops: float, seed: int) -> dict:
    """Estimates the cost of a run by a pilot.

    Args:
      measured: by the pilot.
      parts: of the run, with any number of rounds in its last stage.
      flops: the most that a round of the last stage takes.
      seed: of the run, whose very cohorts are counted.

    Returns:
      By 'gbit' and 'pflop', that of all stages but the last, and of the last one.
    """
    setup, last = parts.setup, parts.setup.stages[-1]
    root = keys.of_stage(keys.of_run(jax.random.key(seed))[1], len(setup.stages) - 1)
    present = clock.presence(setup.system)
    new, later = exchanges(root, last, len(setup.data.train.size), present)
    most = most_bits(parts)
    each = new * measured.first + later * measured.again
    gbit = measured.begin["gbit"] + float(np.sum((most * each)[1:])) / 1e9
    later = float(most_flops(parts, flops)[1:].sum()) * measured.flops / 1e15
    return {
        "gbit": (measured.before["gbit"], gbit),
        "pflop": (measured.before["pflop"], measured.begin["pflop"] + later),
    }


def most_bits(parts: Parts) -> np.ndarray:
    """Returns the most bits of one exchange in each round of the last stage, [T]."""
    last, share, traced = _last(parts)
    bits = traffic_estimate.by_round(last, share, traced)
    return bits["down"][:, 1] + bits["up"][:, 1]


def most_flops(parts: Parts, flops: float) -> np.ndarray:
    """Returns the most FLOPs of each round of the last stage by its mask, [T].

    Args:
      parts: of the run.
      flops: the most that a round takes whose mask keeps everything.
    """
    last, share, traced = _last(parts)
    macs, sent = trees.by_path(parts.setup.model.macs), traced.layouts["down"].values()
    under = {path for packet in sent if packet.masked for path in packet.paths}
    masked = sum(macs.get(path, 0) for path in under) / max(sum(macs.values()), 1)
    alive = np.array(traffic_estimate.alive(last, share)[:-1])
    return flops * (1 - masked * (1 - alive))  # layers without a mask stay dense


def _last(parts: Parts) -> tuple:
    """Returns the last stage, the share alive where it starts, and its trace."""
    *before, last = parts.setup.stages
    *others, traced = parts.traced
    share = traffic_estimate.share_alive(parts.setup.initial, parts.traced[0])
    for stage, one in zip(before, others, strict=True):
        share = traffic_estimate.expect(stage, share, one).share
    return last, share, traced


def exchanges(
    root: Key, stage: Stage, num_clients: int, present: Callable | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Counts the clients of each round by whether they take part for the first time.

    Beyond the rounds that are drawn, all are expected to have taken part, and as many
    to be there as in these rounds.

    Args:
      root: the root key of the stage.
      stage: the stage.
      num_clients: of the population.
      present: who can be drawn, as `clock.presence` returns it; None: everyone.

    Returns:
      Those that take part for the first time, [T] int, and the others, [T] float.
    """
    drawn = min(stage.num_rounds, max(1, _DRAWS // stage.cohort_size))
    draw = cohorts.drawing(root, stage, num_clients, present)
    ids = draw(np.arange(drawn, dtype=np.int32))
    found, places = np.unique(ids, return_index=True)
    places = places[found < num_clients] // stage.cohort_size
    new = np.bincount(places, minlength=stage.num_rounds)
    there = np.sum(ids < num_clients, axis=1)
    beyond = np.full(stage.num_rounds - drawn, there.mean())
    return new, np.concatenate([there, beyond]) - new


def _shares(records: Sequence[dict], most: np.ndarray) -> tuple[float, float]:
    """Returns the shares of `Measured`; one kind stands for another that is absent."""
    spent, allowed, seen = np.zeros(2), np.zeros(2), set()
    for round, record in enumerate(records):
        bits = np.add(record["bits_down_by_client"], record["bits_up_by_client"])
        if round or len(records) == 1:
            kinds = [client in seen for client in record["clients"]]
            np.add.at(spent, np.array(kinds, int), bits)
            np.add.at(allowed, np.array(kinds, int), most[round])
        seen |= set(record["clients"])
    known = allowed > 0
    if not known.any():
        raise ValueError(
            f"fit.pilot={len(records)}: no client was there in rounds that tell of "
            "later ones, expected more rounds"
        )
    first, again = np.where(known, spent / np.where(known, allowed, 1.0), np.nan)
    first, again = np.where(known, (first, again), (again, first))
    return float(first), float(again)


def _spent(records) -> dict[str, float]:
    """Returns the Gbit and PFLOP of some rounds."""
    pairs = [(r["bits_down"] + r["bits_up"], r["flops"]) for r in records]
    bits, flops = map(sum, zip(*pairs, strict=True)) if pairs else (0, 0.0)
    return {"gbit": bits / 1e9, "pflop": flops / 1e15}
