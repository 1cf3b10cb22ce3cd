"""Times `check_algorithm` on methods of the package.

    python -m benchmarks contract                      # four methods, 4 minutes
    python -m benchmarks contract --only fedavg --repeats 1

Every check runs in a process of its own without a compilation cache, as the first check
of a new method does. The seconds leave out the start of Python and imports.
"""

import time
from collections.abc import Iterator

import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure
from benchmarks.methods import PLAIN, arguments

CHOICES = {"only": sfl.ALGORITHMS}


def run(only=("fedavg", "spdst", "jmwst", "spafl"), repeats=3) -> Iterator[dict]:
    """Yields a row for each method."""
    for name in only:
        pairs = [
            measure.apart(checked, name, JAX_ENABLE_COMPILATION_CACHE="false")
            for _ in range(repeats)
        ]
        seconds, cpu = np.transpose(pairs)
        times = measure.times("seconds", 1, seconds)
        yield {"method": name} | times | {"CPU seconds: median": float(np.median(cpu))}


def checked(name: str) -> tuple[float, float]:
    """Checks a method in this process; returns the seconds and CPU seconds."""
    kwargs = arguments(name, 2)
    if "clients" in kwargs:
        kwargs["clients"] = 5  # of the laws' world
    if name in PLAIN:
        kwargs["optimizer"] = sfl.training.make_optimizer()
    begin, cpu = time.perf_counter(), time.process_time()
    sfl.check_algorithm(sfl.ALGORITHMS[name], progress=False, **kwargs)
    return time.perf_counter() - begin, time.process_time() - cpu
