"""Measures client steps per second of the real engine, and the matmul rate.

    python -m benchmarks throughput                     # the five set-ups, 3 minutes
    python -m benchmarks throughput --all               # and every other one
    python -m benchmarks throughput --only resnet18_100 --samples 500  # of a client
    python -m benchmarks throughput --compare lenet5_fedavg lenet5_spafl
    python -m benchmarks throughput --own               # networks of one's own

FedAvg trains with plain SGD on random images, unless a set-up names another method. A
step is one client's minibatch: forward pass, both gradients, update. GFLOP/s are six
times the network's multiply-adds per sample, so normalisation, pooling and the
federated work count as lost time. The matmul rate is that of a square matmul on every
device at once, timed before and after each set-up. `--compare`
times rounds of some set-ups in turns, so that noise of the machine affects all alike;
`--own` those of the networks in `own/`, in linen and in nnx, and the package's.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks import measure, workload
from benchmarks.workload import FIVE, FORMS, OWN, SETUPS, Workload

CHOICES = {"only": SETUPS, "compare": SETUPS}
OURS = ("simple_cnn", "resnet18_groupnorm")  # of `OWN`, which the package has, too


def run(
    only=tuple(FIVE),
    all=False,
    own=False,
    compare=(),
    samples=0,
    chunk="auto",
    repeats=3,
) -> Iterator[dict]:
    """Yields a row for each set-up; `samples` of a client, 0 for the set-up's."""
    of = OWN if own else SETUPS
    chosen = {
        name: of[name]._replace(samples=samples or of[name].samples)
        for name in (of if own or all else compare or only)
    }
    if compare:
        yield from compared(chosen, chunk, repeats)
        return
    for name, setup in chosen.items():
        if own:
            forms = FORMS if name in OURS else FORMS[1:]
            written = {
                f"{name}, {form}": setup._replace(written=form) for form in forms
            }
            yield from compared(written, chunk, repeats)
        else:
            yield row(name, setup, chunk, repeats)


def row(name: str, setup: Workload, chunk, repeats: int) -> dict:
    """Times single rounds, and the compilation separately."""
    before = measure.matmul_rate()
    one = workload.prepare(setup, chunk)
    rates = measure.rates("steps/s", one.steps, workload.seconds(one, repeats))
    matmul = max(before, measure.matmul_rate()) / 1e9
    best = rates["steps/s: best"]
    gflops = best * one.flops / 1e9
    figures = {"GFLOP/s": gflops, "matmul": matmul, "fraction": gflops / matmul}
    figures["steps/s per matmul GFLOP/s"] = best / matmul
    head = {"set-up": name, "clients, cohort, batch": setup.sizes}
    return head | rates | figures | {"compile s": one.compile_seconds}


def compared(setups: dict[str, Workload], chunk, repeats: int) -> Iterator[dict]:
    """Yields the rate of set-ups whose rounds take turns, and its ratio to the first's.

    A ratio is the median over the turns.
    """
    built = {name: workload.prepare(setup, chunk) for name, setup in setups.items()}
    calls = {name: workload.going(one) for name, one in built.items()}
    seconds = measure.in_turns(calls, repeats)
    rates = {name: one.steps / seconds[name] for name, one in built.items()}
    first = next(iter(rates.values()))
    for name, rate in rates.items():
        ratio = float(np.median(rate / first))
        median = {"steps/s: median": float(np.median(rate))}
        yield {"set-up": name} | median | {"of the first's rate": ratio}
