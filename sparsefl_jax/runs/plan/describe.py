"""A run before round 1: bits, FLOPs, memory and time of every stage, as estimates.

FLOPs dense and executed are those of the very cohorts. Bits are told from and to, FLOPs
at the masks at most, as they follow from the methods' programs and arguments; time is
the FLOPs executed over a share of the measured matmul rate.
"""

import math
from typing import NamedTuple

import jax
import numpy as np

from sparsefl_jax.core import keys
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import Key
from sparsefl_jax.data import cohorts
from sparsefl_jax.data.federated import partition_counts
from sparsefl_jax.data.statistics import partition_statistics
from sparsefl_jax.runs import limits
from sparsefl_jax.runs.plan import checks, timings, traffic_estimate
from sparsefl_jax.runs.plan.memory import Memory
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import clock, placement
from sparsefl_jax.system import provenance
from sparsefl_jax.wire import ledger

# Shares of the matmul rate that networks reached, see docs/performance.md.
SHARES = (0.2, 2.4)
_DRAWS = 5_000_000  # rounds x clients that are drawn to expect the samples of a round


class _Samples(NamedTuple):
    """The samples of a round, averaged over the rounds drawn."""

    own: float  # of the clients, in all epochs
    steps: float  # minibatches of these
    executed: float  # with padding to full batches and to the chunk's longest client
    filled: float  # share of the cohort's places that have a client
    new: float  # clients that take part for the first time


def describe(
    setup: Setup,
    traced: list[checks.Traced],
    key: Key | None = None,
    memories: list[Memory] | None = None,
    timed: bool = True,
) -> dict:
    """Plans a run. Nothing is trained, and nothing expensive is compiled.

    Args:
      setup: the run.
      traced: what `checks.run` gave for it.
      key: the run's; its very cohorts are drawn then.
      memories: of the compiled stages; otherwise the working sets are not known.
      timed: whether to measure the devices' matmul rate, from which time follows;
        without it both are None.

    Returns:
      A dict of plain Python values: `devices`, `model`, `clients` with the statistics
      of the partition, a list `stages` and `total`. Bits and FLOPs are those of a
      round, all clients, the mean over the stage's rounds; bits and time are pairs,
      from and to. `flops_most` is at the masks. `system` is None without one; its
      `seconds` are those of a round of the dense network on the clients' devices.
      Memory is in bytes of all devices together, and `client_store` tells where all
      clients' rows live.

    Example: `python launch.py --config=configs/flash_cifar10.py:mini --dry_run`.
    """
    _, run_key = keys.of_run(jax.random.key(0) if key is None else key)
    model, data = setup.model, setup.data
    devices = list(setup.devices or jax.devices())
    big = devices[0].platform != "cpu"
    size = 8192 if big else 1024
    rate = timings.matmul_rate(size, 0.3, devices, model.dtype) if timed else None
    planned, share = [], traffic_estimate.share_alive(setup.initial, traced[0])
    weights = sum(p.size for p in jax.tree.leaves(traced[0].model.params))
    for index, stage in enumerate(setup.stages):
        memory = memories[index] if memories else traced[index].memory
        samples = _samples(setup, run_key, index, memory.chunk)
        traffic = traffic_estimate.expect(stage, share, traced[index])
        share = traffic.share
        each = _stage(setup, stage, weights, samples, traffic)
        each |= {"memory": memory.parts(), "client_store": memory.client_store}
        each["chunk"] = memory.chunk
        part = len(placement.stage_devices(stage, devices)) / len(devices)
        each["seconds_per_round"] = rate and _seconds(each, rate * part, rate)
        planned.append(each)
    return {
        "devices": {
            "count": len(devices),
            "kind": devices[0].device_kind,
            "dtype": model.dtype,
            "precision": provenance.precision(),
            "matmul_flops": rate,
        },
        "model": {"parameters": weights, "macs": ledger.macs_per_sample(model.macs)},
        "clients": partition_statistics(partition_counts(data))
        | {"test": len(data.y_test)},
        "stages": planned,
        "total": _total(planned),
        "system": _system(setup, traced[-1]),
    }


def _system(setup: Setup, traced: checks.Traced) -> dict | None:
    """Returns the tiers' clients and the last stage's times; None without a system."""
    if setup.system is None:
        return None
    weights = sum(
        v.size for v in jax.tree.leaves((traced.model.params, traced.model.stats))
    )
    facts = setup.model.macs, setup.data.train.size, weights
    seconds = clock.dense_seconds(setup.system, setup.stages[-1], *facts)
    closes = float(traced.clock.deadline)
    return {
        "tiers": {k: len(ids) for k, ids in clock.members(setup.system).items()},
        "seconds": [float(seconds.min()), float(seconds.max())],
        "closes": closes if math.isfinite(closes) else None,
    }


def _samples(setup: Setup, run_key: Key, index: int, chunk: int) -> _Samples:
    """Counts the samples of a round; draws the run's own cohorts if it has the key."""
    stage, key = setup.stages[index], keys.of_stage(run_key, index)
    sizes = np.asarray(setup.data.train.size)
    rounds = min(stage.num_rounds, max(1, _DRAWS // len(sizes)))

    draw = cohorts.drawing(key, stage, len(sizes), clock.presence(setup.system))
    ids = draw(np.arange(rounds, dtype=np.int32))
    # As in `placement.deal`: the largest first, a block as long as its first.
    ordered = -np.sort(-np.append(sizes, 0)[ids], axis=1)  # 0 for a place without one
    longest = ordered[:, ::chunk]
    steps = -(-longest // stage.batch_size)
    executed = chunk * stage.batch_size * float(steps.sum(1).mean())
    own = float(ordered.sum(1).mean())
    each = float((-(-ordered // stage.batch_size)).sum(1).mean())
    filled = float(np.mean(ids < len(sizes)))
    new = np.unique(ids[ids < len(sizes)]).size / stage.num_rounds
    return _Samples(*(stage.epochs * v for v in (own, each, executed)), filled, new)


def _stage(
    setup: Setup, stage: Stage, weights: int, samples: _Samples, traffic
) -> dict:
    """Returns all figures of a stage but memory and time."""
    macs = setup.model.macs
    dense = ledger.macs_per_sample(macs)
    return {
        "rounds": stage.num_rounds,
        "cohort": stage.cohort_size,
        "epochs": stage.epochs,
        "batch_size": stage.batch_size,
        "masked": traffic.masked,
        "density": traffic.density,
        "bits_down": [
            samples.filled * bits + samples.new * handed
            for bits, handed in zip(traffic.down, traffic.handed, strict=True)
        ],
        "bits_handed": traffic.handed,
        "bits_up": [samples.filled * bits for bits in traffic.up],
        "assumed": traffic.assumed,
        "flops_most": limits.most_flops(macs, weights, samples.own, samples.steps),
        "flops_dense": 6 * dense * samples.own,
        "flops_executed": 6 * dense * samples.executed,
        "flops_evaluation": 2.0 * dense * len(setup.data.y_test),
        "evaluations": math.ceil(stage.num_rounds / setup.eval_every),
    }


def _seconds(stage: dict, training_rate: float, rate: float) -> list[float]:
    """Bounds the seconds of a round and its share of evaluations by matmul rates."""
    evaluations = stage["evaluations"] / stage["rounds"]
    seconds = stage["flops_executed"] / training_rate
    seconds += stage["flops_evaluation"] * evaluations / rate
    slow, fast = SHARES
    return [seconds / fast, seconds / slow]


def _total(stages: list[dict]) -> dict:
    def over(value):
        return sum(stage["rounds"] * value(stage) for stage in stages)

    return {
        "rounds": over(lambda s: 1),
        "gbit": [
            over(lambda s, i=i: s["bits_down"][i] + s["bits_up"][i]) / 1e9
            for i in (0, 1)
        ],
        "pflop_most": over(lambda s: s["flops_most"]) / 1e15,
        "pflop_executed": over(lambda s: s["flops_executed"]) / 1e15,
        "memory": max(sum(stage["memory"].values()) for stage in stages),
        "seconds": [over(lambda s, i=i: s["seconds_per_round"][i]) for i in (0, 1)]
        if stages[0]["seconds_per_round"]
        else None,
    }
