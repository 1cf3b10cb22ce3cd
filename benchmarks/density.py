"""Measures bits, FLOPs and time of a round by the density of a frozen random mask.

    python -m benchmarks density                       # LeNet-5-Caffe, 2 minutes
    python -m benchmarks density --model resnet18 --densities 1 0.1 --index csr

Masks are drawn as in PDST and trained as in SPDST, by one program in which masks are
data. So bits and FLOPs at the masks fall with the density, but the time does not,
because dense arithmetic multiplies the zeros; `compaction` removes pruned filters. Bits
are those of all clients of a round; clients that take part for the first time receive
positions. The column "of dense" is relative to the first density.
"""

from collections.abc import Iterator
from functools import partial

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, workload
from benchmarks.workload import Workload
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.runs.setup import traced as traced_of
from sparsefl_jax.simulation import initial_state
from sparsefl_jax.sparsity import trees
from sparsefl_jax.wire import ledger
from sparsefl_jax.wire.positions import POSITIONS

CHOICES = {"model": workload.NETWORKS, "index": POSITIONS}


def run(
    model="lenet5_caffe",
    densities=(1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01),
    index="bitmap",
    cohort=10,
    samples=128,
    chunk="auto",
    repeats=5,
) -> Iterator[dict]:
    """Yields a row for each density; `samples` are those of a client."""
    method = partial(sfl.spdst, index=index)
    one = workload.prepare(Workload(model, 2 * cohort, samples, cohort, method), chunk)
    calls, records = {}, {}
    for density in densities:
        calls[density] = workload.going(one, masked(one.model, density))
        records[density] = [record(one, calls[density]()) for _ in range(2)]
    seconds = measure.in_turns(calls, repeats)
    _, dense = records[densities[0]]
    for density, (first, later) in records.items():
        both, of = (r["bits_down"] + r["bits_up"] for r in (later, dense))
        ratio = np.median(seconds[density] / seconds[densities[0]])
        yield (
            {
                "density": first["density"],
                "Mbit down: first": first["bits_down"] / 1e6,
                "Mbit down: later": later["bits_down"] / 1e6,
                "Mbit up": later["bits_up"] / 1e6,
                "of dense, down + up": both / of,
                "GFLOP at the masks": later["flops"] / 1e9,
                "of dense": later["flops"] / later["flops_dense"],
            }
            | measure.times("ms a round", 1e3, seconds[density])
            | {"times dense": float(ratio), "compile s": one.compile_seconds}
        )


def masked(model, density: float) -> sfl.SparseModel:
    """Returns a new network with a random mask that keeps `density` of every kernel."""
    key = jax.random.key(1)
    method = sfl.pdst(model, None, density=density)
    server = method.init(key, initial_state.initial_model(key, model))
    (sparse,) = method.deploy(key, server).values()
    return sparse


def record(one: workload.Round, log) -> dict:
    """Returns the ledger's record of a round."""
    (traced,) = traced_of(Setup([one.stage], one.model, one.data))
    names = trees.layer_paths(jax.tree.map(lambda m: m > 0, one.model.macs))
    log = jax.tree.map(lambda v: v[0], jax.device_get(log._replace(masks=())))
    return ledger.round_record(
        log, traced.layouts, one.model.macs, names, one.stage.batch_size
    )
