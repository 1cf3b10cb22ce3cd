"""Limits that end a run early, and how many rounds may run until one is reached.

The cost of a round is known only after it has run. To end a run in the very round that
reaches a limit, a segment has only as many rounds as fit even if each one costs the
maximum. For bits this maximum is certain. For FLOPs it is the cost of the dense network
and of work on masks, times the largest factor by which a round exceeded that so far.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.runs.checkpoint import Snapshot
from sparsefl_jax.runs.setup import Limits, Setup
from sparsefl_jax.simulation import clock
from sparsefl_jax.wire import charges, ledger

_SLACK = 1e-6  # largest relative rounding error of a cost


class Most(NamedTuple):
    """Upper bounds on the cost of a round of a stage, all clients together."""

    bits: int  # both ways, every packet whole and with its positions
    flops: float  # of the largest clients, see `most_flops`
    factor: float | None = None  # largest so far, of FLOPs over dense FLOPs
    hours: float = 0.0  # of its slowest client, see `most_seconds`
    closes: float = math.inf  # hours after which a round closes


def reached(until: Limits, at: Snapshot) -> dict[str, bool]:
    """Returns which cost limits are reached.

    Example:
      >>> at = Snapshot(bits=2 * 10**9, flops=1e14)
      >>> reached(Limits(gbit=2.0, pflop=0.5), at)
      {'gbit': True, 'pflop': False, 'hours': False}
    """
    return {
        "gbit": at.bits / 1e9 >= (until.gbit or math.inf),
        "pflop": at.flops / 1e15 >= (until.pflop or math.inf),
        "hours": (at.hours or 0.0) >= (until.hours or math.inf),
    }


def most(setup: Setup, stage: int, traced) -> Most:
    """Bounds the cost of a round of a stage before any has run.

    Args:
      setup: the run.
      stage: which of its stages.
      traced: one round of it by shape, as `setup.traced` returns it.
    """
    one, model, data = setup.stages[stage], setup.model, setup.data
    bits = sum(map(charges.most_bits, traced.layouts.values()))
    sizes = np.sort(np.asarray(data.train.size, np.int64))[-one.cohort_size :]
    steps = int(np.sum(-(-sizes // one.batch_size)))
    weights = sum(leaf.size for leaf in jax.tree.leaves(traced.model.params))
    flops = most_flops(model.macs, weights, int(sizes.sum()), steps)
    each = Most(one.cohort_size * bits, one.epochs * flops)
    if traced.clock is None:
        return each
    slowest = float(np.max(most_seconds(setup, one, traced, weights)))
    closes = float(traced.clock.deadline) / 3600
    slowest *= 1 + clock.ROUNDING
    return each._replace(hours=slowest / 3600, closes=closes)


def most_seconds(setup: Setup, stage: Stage, traced, weights: int) -> np.ndarray:
    """Bounds the time of every client in a round, [N]."""
    sizes = np.asarray(setup.data.train.size, np.int64)
    steps = -(-sizes // stage.batch_size)
    flops = stage.epochs * most_flops(setup.model.macs, weights, sizes, steps)
    down, up = (float(charges.most_bits(traced.layouts[w])) for w in ("down", "up"))
    return clock.seconds(traced.clock.device, flops, down, up)


def most_flops(macs, weights: int, samples: Any, steps: Any) -> Any:
    """Bounds the FLOPs of training: all dense, and one sort at every step.

    Work on masks is charged like a sort, n log2(n) for n weights, at most once in every
    step. A method may still train for more steps than its epochs have.

    Args:
      macs: as `Model.macs`.
      weights: n, parameters of the network.
      samples, steps: numbers of samples and of minibatches, for all clients together or
        as arrays with one entry for each client.

    Example:
      >>> most_flops({'w': 100}, weights=7, samples=2, steps=1)
      1221.0
    """
    dense = 6.0 * ledger.macs_per_sample(macs) * samples
    return dense + steps * weights * math.log2(weights + 1)


def updated(each: Most, records: list[dict]) -> Most:
    """Updates a bound with the largest factor and the longest round seen so far.

    Example:
      >>> record = {'flops': 6.0, 'flops_dense': 4.0}
      >>> updated(Most(bits=8, flops=5.0), [record]).factor
      1.5
    """
    factors = [r["flops"] / r["flops_dense"] for r in records if r["flops_dense"]]
    factors += [] if each.factor is None else [each.factor]
    hours = max([each.hours, *(r.get("hours", 0.0) for r in records)])
    factor = max(factors, default=0.0 if records else None)
    return each._replace(factor=factor, hours=hours)


def fitting(until: Limits, at: Snapshot, each: Most, wanted: int) -> int:
    """Returns how many rounds may run so that only the last can reach a limit.

    Args:
      until: the run's limits.
      at: the progress of the run.
      each: bounds on the cost of each of the next rounds.
      wanted: number of rounds, at least 1.

    Returns:
      From 1 to `wanted`.

    Example:
      >>> until, each = Limits(gbit=1.0), Most(bits=3 * 10**8, flops=0.0)
      >>> spent = [Snapshot(bits=b * 10**8) for b in (0, 1, 4, 8)]
      >>> [fitting(until, at, each, wanted=9) for at in spent]
      [4, 3, 2, 1]
    """
    rounds = float(wanted)
    if until.gbit:
        rounds = min(rounds, (until.gbit * 1e9 - at.bits) / max(each.bits, 1))
    factor = math.inf if each.factor is None else max(each.factor, 1.0)
    if until.pflop:
        flops = max(each.flops, 1.0) * factor
        rounds = min(rounds, (until.pflop * 1e15 - at.flops) / flops)
    if until.hours:
        hours = min(each.hours * factor, each.closes)
        rounds = min(rounds, (until.hours - (at.hours or 0.0)) / hours)
    return max(1, math.ceil((1 - _SLACK) * rounds))
