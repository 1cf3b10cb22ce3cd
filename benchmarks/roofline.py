"""Measures how much of the machine each network uses in training.

    python -m benchmarks.roofline                      # every network, 3 minutes
    python -m benchmarks.roofline --only mlp resnet18 --repeats 9

First, a square float32 matmul and a copy of 256 MB are measured on every device at
once. Then every network trains at its usual batch, by FedAvg with plain SGD in the real
engine. FLOPs are six times the multiply-adds of the direct convolution, so Winograd can
exceed 1. Bytes are those that a step needs besides activations: weights are read by the
forward pass, the backward pass and the update, gradients are written and read, and
weights are written. Small networks stay in the caches and exceed the line of the copy.
"""

from functools import partial

import jax

from benchmarks import measure, workload
from benchmarks.workload import NETWORKS, Workload
from sparsefl_jax import models

PASSES = 6  # over the parameters in a step
HEAD = (
    *("network, batch", "parameters", "FLOP/byte", "steps/s: best", "median"),
    *("GFLOP/s", "of matmul", "GB/s of parameters", "of copy", "compile s"),
)


def run(name: str, minibatches: int, repeats: int, chunk="auto") -> dict:
    """Returns all figures of a network except the machine's rates."""
    batch = NETWORKS[name].batch_size
    one = workload.prepare(Workload(name, 20, minibatches * batch), chunk)
    timed = measure.summary(measure.in_turns({"": workload.going(one)}, repeats)[""])
    shapes, _ = jax.eval_shape(one.model.init, jax.random.key(0))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    best = one.steps / timed["minimum_seconds"]
    moved = PASSES * 4 * parameters
    return timed | {
        "batch": batch,
        "parameters": parameters,
        "intensity": one.flops / moved,
        "steps_per_second": best,
        "steps_per_second_median": one.steps / timed["median_seconds"],
        "flops_per_second": best * one.flops,
        "bytes_per_second": best * moved,
        "compile_seconds": one.compile_seconds,
    }


def row(name: str, r: dict) -> list[str]:
    return [
        f"{name}, {r['batch']}",
        f"{r['parameters']:,}",
        f"{r['intensity']:.1f}",
        f"{r['steps_per_second']:,.1f}",
        f"{r['steps_per_second_median']:,.1f}",
        f"{r['flops_per_second'] / 1e9:.0f}",
        f"{r['of_matmul']:.2f}",
        f"{r['bytes_per_second'] / 1e9:.1f}",
        f"{r['of_copy']:.2f}",
        f"{r['compile_seconds']:.1f}",
    ]


def draw(rates: dict, results: dict, figure) -> None:
    """Plots both limits, and a point for each network."""
    ax = figure.subplots()
    flops, copy = rates["matmul_flops"], rates["copy_bytes"]
    points = [(r["intensity"], r["flops_per_second"]) for r in results.values()]
    ends = min(x for x, _ in points) / 2, 2 * max(*(x for x, _ in points), flops / copy)
    bend = min(max(flops / copy, ends[0]), ends[1])
    roof = [(x, min(x * copy, flops) / 1e9) for x in (ends[0], bend, ends[1])]
    ax.plot(*zip(*roof, strict=True), color="black", label="copy, matmul: measured")
    for name, (x, y) in zip(results, points, strict=True):
        ax.plot(x, y / 1e9, "o", color="#d9541e")
        ax.annotate(name, (x, y / 1e9), (4, 4), textcoords="offset points", fontsize=8)
    ax.set(xscale="log", yscale="log", ylabel="GFLOP/s", title="Training by network")
    ax.set_xlabel("FLOP per byte of parameters moved")
    ax.legend()


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    known = [name for name in models.MODELS if name in NETWORKS]
    parser = measure.parser(__doc__, repeats=3)
    parser.add_argument("--only", nargs="+", choices=known, default=known)
    parser.add_argument("--minibatches", type=int, default=2, help="of a client")
    parser.add_argument("--chunk", default="auto")
    args = parser.parse_args()
    rates = {
        "matmul_flops": measure.matmul_rate(),
        "copy_bytes": measure.copy_rate(),
    }
    results = {}
    for name in args.only:
        result = run(name, args.minibatches, args.repeats, args.chunk)
        result["of_matmul"] = result["flops_per_second"] / rates["matmul_flops"]
        result["of_copy"] = result["bytes_per_second"] / rates["copy_bytes"]
        results[name] = result
        print(*row(name, result), sep="  ", flush=True)
    about = measure.machine(
        repeats=args.repeats,
        matmul=f"{rates['matmul_flops'] / 1e9:.0f} GFLOP/s",
        copy=f"{rates['copy_bytes'] / 1e9:.1f} GB/s",
    )
    table = measure.markdown(HEAD, [row(name, r) for name, r in results.items()])
    figures = {"rates": rates, "networks": results}
    draws = partial(draw, rates, results)
    measure.publish("roofline", args.out, about, figures, table, draws, (8, 5.5))


if __name__ == "__main__":
    main()
