"""Compares every method's round and compilation with FedAvg's on the same network.

    python -m benchmarks.methods                        # LeNet-5-Caffe, 3 minutes
    python -m benchmarks.methods --model mlp --only spafl fedpm --repeats 9

Rounds of a method and of FedAvg are timed in turns; a ratio is the median of the turns.
FedAvg is compiled once, before all others; its own row, compiled a second time, shows
the noise of the machine. All methods train by SGD with momentum. Methods of the first
stage are timed as rounds, too; PruneFL's first client makes one pass over its samples.
"""

import inspect
from functools import partial

import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, workload
from benchmarks.workload import Workload

# Arguments without a default in some factories.
NEEDED = {"density": 0.5, "rounds": 100, "adjust_until": 50}
TIERS = (0.1, 0.15, 0.2)
SLICES = (0.2, 0.4, 0.6, 0.8, 1.0)
BUDGETS = {
    "hetero_spdst": TIERS,
    "hetero_jmwst": TIERS,
    "heterofl": SLICES,
    "fjord": SLICES,
}
HEAD = (
    *("method", "ms a round: best", "median", "times FedAvg"),
    *("compile s", "times FedAvg's"),
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


def run(names, setup: Workload, repeats: int, chunk="auto"):
    """Yields the name and the figures of each method."""
    steps = -(-setup.samples // setup.batch)
    fedavg = workload.prepare(setup, chunk)
    for name in names:
        method = partial(sfl.ALGORITHMS[name], **arguments(name, steps))
        of_method = setup._replace(method=method, budgets=BUDGETS.get(name, (1.0,)))
        pair = {"fedavg": fedavg, "method": workload.prepare(of_method, chunk)}
        calls = {key: workload.going(one) for key, one in pair.items()}
        seconds = measure.in_turns(calls, repeats)
        compiling = {key: one.compile_seconds for key, one in pair.items()}
        yield (
            name,
            measure.summary(seconds["method"])
            | {
                "fedavg": measure.summary(seconds["fedavg"]),
                "times_fedavg": float(np.median(seconds["method"] / seconds["fedavg"])),
                "compile_seconds": compiling["method"],
                "fedavg_compile_seconds": compiling["fedavg"],
                "compile_times_fedavg": compiling["method"] / compiling["fedavg"],
            },
        )


def row(name: str, r: dict) -> list[str]:
    return [
        name,
        f"{1e3 * r['minimum_seconds']:.1f}",
        f"{1e3 * r['median_seconds']:.1f}",
        f"{r['times_fedavg']:.2f}",
        f"{r['compile_seconds']:.1f}",
        f"{r['compile_times_fedavg']:.2f}",
    ]


def draw(results: dict, figure) -> None:
    """Plots bars of the ratios to FedAvg."""
    names = list(results)[::-1]
    panels = figure.subplots(1, 2, sharey=True)
    for ax, key in zip(panels, ("times_fedavg", "compile_times_fedavg"), strict=True):
        bars = ax.barh(names, [results[name][key] for name in names])
        ax.bar_label(bars, fmt="%.2f", padding=3)
        ax.axvline(1, color="black", linewidth=1)
        ax.margins(x=0.15)
        ax.set_xlabel("times FedAvg's")
    panels[0].set_title("A round")
    panels[1].set_title("Compiling")


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    known = list(sfl.ALGORITHMS)
    parser = measure.parser(__doc__)
    models = list(workload.NETWORKS)
    parser.add_argument("--model", choices=models, default="lenet5_caffe")
    parser.add_argument("--only", nargs="+", choices=known, default=known)
    parser.add_argument("--cohort", type=int, default=4)
    parser.add_argument("--samples", type=int, default=128, help="of a client")
    parser.add_argument("--chunk", default="auto")
    args = parser.parse_args()
    clients = 10 * args.cohort
    setup = Workload(args.model, clients, args.samples, args.cohort, momentum=0.9)
    about = measure.machine(
        repeats=args.repeats,
        model=args.model,
        cohort=args.cohort,
        samples=args.samples,
    )
    results = {}
    for name, result in run(args.only, setup, args.repeats, args.chunk):
        results[name] = result
        print(*row(name, result), sep="  ", flush=True)
    table = measure.markdown(HEAD, [row(*each) for each in results.items()])
    size = (9, 1.5 + 0.3 * len(results))
    draws = partial(draw, results)
    measure.publish("methods", args.out, about, results, table, draws, size)


if __name__ == "__main__":
    main()
