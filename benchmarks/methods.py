"""Compares every method's round and compilation with FedAvg's on the same network.

    python -m benchmarks methods                        # LeNet-5-Caffe, 3 minutes
    python -m benchmarks methods --model mlp --only spafl fedpm --repeats 9

Rounds of a method and of FedAvg are timed in turns; a ratio is the median of the turns.
FedAvg is compiled once, before all others; its own row, compiled a second time, shows
the noise of the machine. All methods but `PLAIN` train by SGD with momentum. Methods of
the first stage are timed as rounds, too; PruneFL's first client makes one pass over its
samples.
"""

import inspect
from collections.abc import Iterator
from functools import partial

import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, workload
from benchmarks.workload import Workload

# Arguments without a default in some factories.
NEEDED = {"clients": 40, "density": 0.5, "rounds": 100, "adjust_until": 50}
PLAIN = ("scaffold",)  # train by SGD without momentum
TIERS = (0.1, 0.15, 0.2)
SLICES = (0.2, 0.4, 0.6, 0.8, 1.0)
BUDGETS = {
    "hetero_spdst": TIERS,
    "hetero_jmwst": TIERS,
    "heterofl": SLICES,
    "fjord": SLICES,
    "fedrolex": SLICES,
    "fiarse": SLICES,
}
CHOICES = {"model": workload.NETWORKS, "only": sfl.ALGORITHMS}


def run(
    model="lenet5_caffe",
    only=tuple(sfl.ALGORITHMS),
    cohort=4,
    samples=128,
    chunk="auto",
    repeats=5,
) -> Iterator[dict]:
    """Yields a row for each method; `samples` are those of a client."""
    setup = Workload(model, 10 * cohort, samples, cohort, momentum=0.9)
    fedavg = workload.prepare(setup, chunk)
    for name in only:
        method = partial(sfl.ALGORITHMS[name], **arguments(name, setup.steps // cohort))
        of_method = setup._replace(method=method, budgets=BUDGETS.get(name, (1.0,)))
        if name in PLAIN:
            of_method = of_method._replace(momentum=None)
        one = workload.prepare(of_method, chunk)
        calls = {"fedavg": workload.going(fedavg), "method": workload.going(one)}
        seconds = measure.in_turns(calls, repeats)
        ratio = float(np.median(seconds["method"] / seconds["fedavg"]))
        compiling = one.compile_seconds
        yield (
            {"method": name}
            | measure.times("ms a round", 1e3, seconds["method"])
            | {"times FedAvg": ratio, "compile s": compiling}
            | {"compile: times FedAvg's": compiling / fedavg.compile_seconds}
        )


def arguments(name: str, steps: int) -> dict:
    """Returns the keyword arguments of a method's factory.

    Args:
      name: the name of the method.
      steps: the minibatches of a client.
    """
    parameters = inspect.signature(sfl.ALGORITHMS[name]).parameters
    bare = {name for name, p in parameters.items() if p.default is p.empty}
    chosen = {key: value for key, value in NEEDED.items() if key in bare}
    if name == "prunefl_initial":
        chosen |= {"num_batches": steps, "max_iterations": 1}
    return chosen
