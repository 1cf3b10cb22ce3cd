"""Times `check_algorithm` on methods of the package.

    python -m benchmarks.contract                      # four methods, 4 minutes
    python -m benchmarks.contract --only fedavg --repeats 1

Every check runs in a process of its own without a compilation cache, as the first check
of a new method does. Its seconds leave the start of Python and imports out.
"""

import argparse
import json
import time
from functools import partial

import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure
from benchmarks.methods import arguments

METHODS = ("fedavg", "spdst", "jmwst", "spafl")
HEAD = ("method", "seconds: best", "median", "CPU seconds: median")


def checked(name: str) -> dict:
    """Checks a method in this process and returns the seconds that it took."""
    kwargs = arguments(name, 2)
    begin, cpu = time.perf_counter(), time.process_time()
    sfl.check_algorithm(sfl.ALGORITHMS[name], progress=False, **kwargs)
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - cpu,
    }


def run(name: str, repeats: int) -> dict:
    """Returns the figures of a method, each check in a new process."""
    told = [
        measure.apart("contract", [name], JAX_ENABLE_COMPILATION_CACHE="false")
        for _ in range(repeats)
    ]
    results = [one["result"] for one in told]
    cpu = float(np.median([one["cpu_seconds"] for one in results]))
    return measure.summary([one["seconds"] for one in results]) | {"cpu_seconds": cpu}


def row(name: str, r: dict) -> list[str]:
    keys = ("minimum_seconds", "median_seconds", "cpu_seconds")
    return [name, *(f"{r[key]:.1f}" for key in keys)]


def draw(results: dict, figure) -> None:
    """Plots bars of the median seconds."""
    ax = figure.subplots()
    names = list(results)[::-1]
    bars = ax.barh(names, [results[name]["median_seconds"] for name in names])
    ax.bar_label(bars, fmt="%.1f", padding=3)
    ax.margins(x=0.15)
    ax.set_xlabel("seconds of check_algorithm")


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    known = list(sfl.ALGORITHMS)
    parser = measure.parser(__doc__, repeats=3)
    parser.add_argument("--only", nargs="+", choices=known, default=METHODS)
    parser.add_argument("--inner", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inner is not None:
        return measure.tell(checked(*args.inner))
    about = measure.machine(repeats=args.repeats)
    results = {name: run(name, args.repeats) for name in args.only}
    table = measure.markdown(HEAD, [row(*each) for each in results.items()])
    size = (7.2, 1.5 + 0.4 * len(results))
    measure.publish(
        "contract", args.out, about, results, table, partial(draw, results), size
    )


if __name__ == "__main__":
    main()
