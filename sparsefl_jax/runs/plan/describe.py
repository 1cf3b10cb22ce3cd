"""A run before round 1: bits, FLOPs, memory and time of every stage, as estimates.

FLOPs dense and executed are those of the very cohorts. Bits are told from and to, FLOPs
at the masks at most, as they follow from the methods' programs and arguments; time is
the FLOPs executed over a share of the measured matmul rate, unless earlier runs tell.
"""

import math
from typing import NamedTuple

import jax
import numpy as np

from sparsefl_jax.core import keys
from sparsefl_jax.core.types import Key, SparseModel
from sparsefl_jax.data import cohorts
from sparsefl_jax.runs import limits
from sparsefl_jax.runs.plan import checks, timings, traffic_estimate
from sparsefl_jax.runs.plan.memory import Memory
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import placement
from sparsefl_jax.sparsity import trees
from sparsefl_jax.system import provenance
from sparsefl_jax.wire import ledger

# Shares of the matmul rate that networks reached, see docs/performance.md.
SHARES = (0.2, 2.4)
_DRAWS = 5_000_000  # rounds x clients that are drawn to expect the samples of a round


class _Samples(NamedTuple):
    """The samples of a round, averaged over the rounds drawn."""

    ids: np.ndarray  # [R, K] int32
    own: float  # of the clients, in all epochs
    steps: float  # minibatches of these
    executed: float  # with padding to full batches and to the chunk's longest client


def describe(
    setup: Setup,
    *,
    known: dict | None = None,
    key: Key | None = None,
    traced: list[checks.Traced] | None = None,
    memories: list[Memory] | None = None,
) -> dict:
    """Plans a run. Nothing is trained, and nothing expensive is compiled.

    Args:
      setup: the run.
      known: what `timings.recall` gave.
      key: the run's; its very cohorts are drawn then.
      traced: what `checks.run` gave, if the caller has asked it.
      memories: of the compiled stages; otherwise the working sets are not known.

    Returns:
      A dict of plain Python values: `devices`, `model`, `clients`, a list `stages` and
      `total`. Bits and FLOPs are those of a round, all clients, the mean over the
      stage's rounds; bits and time are pairs, from and to. `flops_most` is at the
      masks; `flops`, at the density of the masks that come down, is no bound, and None
      where clients do not send under these. Memory is in bytes of all devices together,
      and `client_store` tells where all clients' rows live.

    Example: `python launch.py --config=configs/flash_cifar10.py:mini --dry_run`.
    """
    _, run_key = keys.of_run(jax.random.key(0) if key is None else key)
    model, data = setup.model, setup.data
    devices = list(setup.devices or jax.devices())
    big = devices[0].platform != "cpu"
    rate = timings.matmul_rate(8192 if big else 1024, 0.3, devices, model.dtype)
    known = (known or {}).get("stages", [])
    traced = checks.run(setup) if traced is None else traced
    sparse = _example_model(model) if setup.initial is None else setup.initial
    planned = []
    start = traffic_estimate.Start(sparse)
    held = placement.client_info(data, setup.budgets).budget
    for index, stage in enumerate(setup.stages):
        memory = memories[index] if memories else traced[index].memory
        plan = placement.make_plan(stage, {}, devices, memory.chunk)
        stage_key = keys.of_stage(run_key, index)
        samples = _samples(stage_key, plan, data)
        traffic = traffic_estimate.expect(
            stage, start, traced[index], stage_key, held[samples.ids]
        )
        each = _stage(setup, plan, sparse, samples, traffic)
        each |= {"memory": memory.parts(), "client_store": memory.client_store}
        measured = known[index] if len(known) == len(setup.stages) else None
        planned.append(each | _time(each, plan, rate, len(devices), measured))
        start = traffic.handed_on
    return {
        "devices": _devices(devices, model.dtype, rate),
        "model": {
            "parameters": sum(p.size for p in jax.tree.leaves(sparse.params)),
            "macs": ledger.macs_per_sample(model.macs),
        },
        "clients": _clients(data),
        "stages": planned,
        "total": _total(planned),
    }


def _devices(devices: list, dtype: str, rate: float) -> dict:
    return {
        "count": len(devices),
        "kind": devices[0].device_kind,
        "dtype": dtype,
        "precision": provenance.precision(),
        "matmul_flops": rate,
    }


def _clients(data) -> dict:
    sizes = np.asarray(data.train.size)
    train = {
        "min": int(sizes.min()),
        "median": float(np.median(sizes)),
        "max": int(sizes.max()),
    }
    return {"number": len(sizes), "train": train, "test": len(data.y_test)}


def _example_model(model) -> SparseModel:
    """Returns random weights of the right scale without compiling `init`."""
    rng = np.random.default_rng(0)

    def draw(leaf):
        scale = 1 / math.sqrt(max(math.prod(leaf.shape[:-1]), 1))
        return (scale * rng.standard_normal(leaf.shape, np.float32)).astype(leaf.dtype)

    params, stats = jax.eval_shape(model.init, jax.random.key(0))
    params, stats = jax.tree.map(draw, (params, stats))
    return SparseModel(
        params, jax.tree.map(lambda p: np.ones(p.shape, bool), params), stats
    )


def _samples(key: Key, plan, data) -> _Samples:
    """Counts the samples of a round; draws the run's own cohorts if it has the key."""
    stage, sizes = plan.stage, np.asarray(data.train.size)
    rounds = min(stage.num_rounds, max(1, _DRAWS // len(sizes)))

    draw = cohorts.drawing(key, stage, len(sizes))
    ids = draw(np.arange(rounds, dtype=np.int32))
    # As in `placement.deal`: the largest first, a block as long as its first.
    ordered = -np.sort(-sizes[ids], axis=1)
    longest = ordered[:, :: plan.chunk]
    steps = -(-longest // stage.batch_size)
    executed = plan.chunk * stage.batch_size * float(steps.sum(1).mean())
    own = float(ordered.sum(1).mean())
    each = float((-(-ordered // stage.batch_size)).sum(1).mean())
    return _Samples(ids, *(stage.epochs * v for v in (own, each, executed)))


def _stage(setup: Setup, plan, sparse, samples, traffic) -> dict:
    """Returns all figures of a stage but memory and time."""
    stage, model = plan.stage, setup.model
    paths, macs = trees.leaf_paths(model.macs), jax.tree.leaves(model.macs)
    at_masks = sum(
        macs * traffic.densities.get(path, 1.0)
        for path, macs in zip(paths, macs, strict=True)
    )
    dense = ledger.macs_per_sample(model.macs)
    weights = sum(p.size for p in jax.tree.leaves(sparse.params))
    evaluations = math.ceil(stage.num_rounds / setup.eval_every)
    models = jax.eval_shape(
        lambda key, s: stage.algorithm.deploy(key, stage.algorithm.init(key, s)),
        jax.random.key(0),
        sparse,
    )
    return {
        "rounds": stage.num_rounds,
        "cohort": stage.cohort_size,
        "epochs": stage.epochs,
        "batch_size": stage.batch_size,
        "chunk": plan.chunk,
        "masked": traffic.masked,
        "density": traffic.alive / max(traffic.masked, 1),
        "bits_down": list(traffic.down),
        "bits_up": list(traffic.up),
        "assumed": traffic.assumed,
        "flops": 6 * at_masks * samples.own if traffic.within else None,
        "flops_most": limits.most_flops(
            model.macs, weights, samples.own, samples.steps
        ),
        "flops_dense": 6 * dense * samples.own,
        "flops_executed": 6 * dense * samples.executed,
        "flops_evaluation": 2.0
        * dense
        * len(setup.data.y_test)
        * len(models)
        * evaluations,
    }


def _time(stage: dict, plan, rate: float, devices: int, measured: dict | None) -> dict:
    """Bounds the seconds of a round: measured before, or from the matmul rate."""
    if measured is not None:
        each = measured["seconds_per_round"]
        seconds, source = (each, each), "measured"
    else:
        training = stage["flops_executed"] / (rate * plan.mesh.size / devices)
        evaluation = stage["flops_evaluation"] / stage["rounds"] / rate
        slow, fast = SHARES
        seconds = ((training + evaluation) / fast, (training + evaluation) / slow)
        source = "matmul rate"
    return {
        "seconds_per_round": list(seconds),
        "time_from": source,
        "compile_seconds": measured and measured["compile_seconds"],
    }


def _total(stages: list[dict]) -> dict:
    def over(value):
        return sum(stage["rounds"] * value(stage) for stage in stages)

    compiling = [stage["compile_seconds"] for stage in stages]
    known = sum(seconds for seconds in compiling if seconds)
    return {
        "rounds": over(lambda s: 1),
        "gbit": [
            over(lambda s, i=i: s["bits_down"][i] + s["bits_up"][i]) / 1e9
            for i in (0, 1)
        ],
        "pflop_most": over(lambda s: s["flops_most"]) / 1e15,
        "pflop_executed": over(lambda s: s["flops_executed"]) / 1e15,
        "memory": max(sum(stage["memory"].values()) for stage in stages),
        "seconds": [
            known + over(lambda s, i=i: s["seconds_per_round"][i]) for i in (0, 1)
        ],
    }
