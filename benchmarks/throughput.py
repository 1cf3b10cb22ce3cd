"""Measures client steps per second of the real engine beside the matmul rate.

    python -m benchmarks throughput                       # of published work, 3 minutes
    python -m benchmarks throughput --only networks own cohorts methods
    python -m benchmarks throughput --only lenet5_spafl --beside lenet5_fedavg
    python -m benchmarks throughput --only resnet18_100 --samples 500  # of a client

`--only` takes set-ups and tables of them from `workload.py`: `published`, `bfloat16`,
`networks`, `own` (networks as users of linen and nnx write them), `methods`, `cohorts`
(1 to 10,000 clients a round), `segments` (rounds between two returns to the host, and
three seeds in one program) and `toys`. Each set-up runs in a process of its own.

A step is one client's minibatch: forward pass, both gradients, update. GFLOP/s are six
times the network's multiply-adds per sample, so normalisation, pooling and the
federated work count as lost time. The matmul rate is that of a square matmul on every
device of the set-up at once, timed after its rounds. The peak of memory is that of a
device, or on CPUs that of the process, imports, data and compilation included; the
temporaries are those that XLA plans. With `--beside NAME` rounds of each set-up and of
NAME take turns, so that noise of the machine affects both alike; the ratio of their
rates is the median over the turns.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks import measure, workload
from benchmarks.workload import SETUPS, TABLES
from sparsefl_jax.system import hardware

CHOICES = {"only": (*TABLES, *SETUPS), "beside": SETUPS}


def run(
    only=("published",), beside="", samples=0, chunk="auto", repeats=3
) -> Iterator[dict]:
    """Yields a row for each set-up.

    Args:
      only: set-ups and tables of them.
      beside: a set-up whose rounds take turns with those of each of them.
      samples: of a client; 0 for the set-up's.
      chunk: clients that a device runs at a time.
      repeats: calls to time.
    """
    for name in workload.chosen(only, TABLES):
        count = SETUPS[name].devices
        environment = {"XLA_FLAGS": measure.flags(count)} if count else {}
        yield measure.apart(row, name, beside, samples, chunk, repeats, **environment)


def row(name: str, beside: str, samples: int, chunk, repeats: int) -> dict:
    """Times the rounds of a set-up in this process."""
    setups = {"": SETUPS[name]} | ({"beside": SETUPS[beside]} if beside else {})
    setups = {
        key: setup._replace(samples=samples or setup.samples)
        for key, setup in setups.items()
    }
    built = {key: workload.prepare(setup, chunk) for key, setup in setups.items()}
    calls = {key: workload.going(each) for key, each in built.items()}
    seconds = measure.in_turns(calls, repeats)
    setup, one = setups[""], built[""]
    peak = hardware.peak_memory(setup.on[:1])
    rates = measure.rates("steps/s", one.steps, seconds[""])
    gflops = rates["steps/s: best"] * one.flops / 1e9
    matmul = measure.matmul_rate(setup.on) / 1e9
    found = (
        {"set-up": name, "devices": len(setup.on)}
        | {"clients, cohort, batch": setup.sizes}
        | rates
        | measure.times("ms a round", 1e3 / setup.all_rounds, seconds[""])
        | {"GFLOP/s": gflops, "matmul": matmul, "fraction": gflops / matmul}
        | {"peak, MB": (peak["devices"] or peak["process"] or np.nan) / 1e6}
        | {"temporaries, MB": one.bytes["temporaries"] / 1e6}
        | {"compile s": one.compile_seconds}
    )
    if beside:
        each = {key: built[key].steps / seconds[key] for key in built}
        ratio = float(np.median(each[""] / each["beside"]))
        found[f"rate / {beside}'s"] = ratio
    return found
