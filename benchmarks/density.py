"""Measures bits, FLOPs and time of a round by the density of a frozen random mask.

    python -m benchmarks.density                       # LeNet-5-Caffe, 2 minutes
    python -m benchmarks.density --model resnet18 --densities 1 0.1 --index csr

Masks are drawn as in PDST and trained as in SPDST, by one program in which masks are
data. So bits and FLOPs at the masks fall with the density, but the time does not,
because dense arithmetic multiplies the zeros; `compaction` removes pruned filters. Bits
are those of all clients of a round; clients that take part for the first time receive
positions.
"""

from functools import partial

import jax
import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, workload
from benchmarks.workload import Workload
from sparsefl_jax.runs.plan import checks
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import initial_state
from sparsefl_jax.sparsity import trees
from sparsefl_jax.wire import ledger
from sparsefl_jax.wire.positions import POSITIONS

DENSITIES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
HEAD = (
    *("density", "Mbit down: first", "later", "Mbit up", "of dense, down + up"),
    *("GFLOP at the masks", "of dense", "ms a round: best", "median", "times dense"),
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
    (traced,) = checks.run(Setup([one.stage], one.model, one.data))
    names = trees.layer_paths(jax.tree.map(lambda m: m > 0, one.model.macs))
    log = jax.tree.map(lambda v: v[0], jax.device_get(log._replace(masks=())))
    return ledger.round_record(
        log, traced.layouts, one.model.macs, names, one.stage.batch_size
    )


def run(setup: Workload, densities, index: str, repeats: int, chunk="auto") -> dict:
    """Returns all figures by density, and the seconds of compilation."""
    setup = setup._replace(method=partial(sfl.spdst, index=index))
    one = workload.prepare(setup, chunk)
    calls, results = {}, []
    for density in densities:
        calls[density] = workload.going(one, masked(one.model, density))
        first, later = (record(one, calls[density]()) for _ in range(2))
        results.append(
            {
                "density": first["density"],
                "bits_down_first": first["bits_down"],
                "bits_down": later["bits_down"],
                "bits_up": later["bits_up"],
                "flops": later["flops"],
                "flops_dense": later["flops_dense"],
                "flops_executed": later["flops_executed"],
            }
        )
    seconds = measure.in_turns(calls, repeats)
    for density, result in zip(densities, results, strict=True):
        result |= measure.summary(seconds[density])
        ratio = np.median(seconds[density] / seconds[densities[0]])
        result["times_dense"] = float(ratio)
        bits, dense = (r["bits_down"] + r["bits_up"] for r in (result, results[0]))
        result["bits_of_dense"] = bits / dense
    return {"by_density": results, "compile_seconds": one.compile_seconds}


def row(r: dict) -> list[str]:
    return [
        f"{r['density']:.3g}",
        *(f"{r[k] / 1e6:,.2f}" for k in ("bits_down_first", "bits_down", "bits_up")),
        f"{r['bits_of_dense']:.3f}",
        f"{r['flops'] / 1e9:,.2f}",
        f"{r['flops'] / r['flops_dense']:.3f}",
        f"{1e3 * r['minimum_seconds']:.1f}",
        f"{1e3 * r['median_seconds']:.1f}",
        f"{r['times_dense']:.2f}",
    ]


def draw(results: list[dict], figure) -> None:
    """Plots the shares of the dense model's bits, FLOPs and time."""
    ax = figure.subplots()
    density = [r["density"] for r in results]
    lines = {
        "bits, down + up": [r["bits_of_dense"] for r in results],
        "FLOPs at the masks": [r["flops"] / r["flops_dense"] for r in results],
        "wall time": [r["times_dense"] for r in results],
    }
    for label, values in lines.items():
        ax.plot(density, values, "o-", label=label)
    ax.set(xscale="log", yscale="log", xlabel="density", ylabel="share of dense")
    ax.set_title("What a mask saves")
    ax.legend()


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__)
    models = list(workload.NETWORKS)
    parser.add_argument("--model", choices=models, default="lenet5_caffe")
    parser.add_argument("--densities", nargs="+", type=float, default=DENSITIES)
    parser.add_argument("--index", default="bitmap", choices=list(POSITIONS))
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--samples", type=int, default=128, help="of a client")
    parser.add_argument("--chunk", default="auto")
    args = parser.parse_args()
    if not all(0 < d <= 1 for d in args.densities):
        parser.error(f"densities={args.densities}, expected each in (0, 1]")
    densities = sorted({1.0, *args.densities}, reverse=True)
    setup = Workload(args.model, 2 * args.cohort, args.samples, args.cohort)
    measured = run(setup, densities, args.index, args.repeats, args.chunk)
    compiling = round(measured["compile_seconds"], 1)
    about = measure.machine(
        repeats=args.repeats,
        model=args.model,
        cohort=args.cohort,
        samples=args.samples,
        index=args.index,
        compile_seconds=compiling,
    )
    results = measured["by_density"]
    table = measure.markdown(HEAD, map(row, results))
    draws = partial(draw, results)
    measure.publish("density", args.out, about, measured, table, draws)


if __name__ == "__main__":
    main()
