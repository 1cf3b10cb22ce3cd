"""Measures client steps per second of the real engine, and the matmul rate.

    python -m benchmarks.throughput                     # the five set-ups, 3 minutes
    python -m benchmarks.throughput --all               # and every other one
    python -m benchmarks.throughput --only resnet18_100 --samples 500  # of a client
    python -m benchmarks.throughput --compare lenet5_fedavg lenet5_spafl
    python -m benchmarks.throughput --dtype bfloat16    # float32 parameters

FedAvg trains with plain SGD on random images, unless a set-up names another method. A
step is one client's minibatch: forward pass, both gradients, update. GFLOP/s are six
times the network's multiply-adds per sample, so normalisation, pooling and the
federated work count as lost time. The matmul rate is that of a square matmul in the
same dtype on every device at once, timed before and after each set-up. `--compare`
times rounds of two set-ups in turns, so that noise of the machine affects both alike.
"""

from functools import partial

import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, workload
from benchmarks.workload import Workload
from sparsefl_jax.models.base import DTYPES
from sparsefl_jax.runs.plan import timings

SPAFL = Workload("lenet5_caffe", 100, 640, cohort=10, momentum=0.9)
FEDSPARSIFY = partial(sfl.fedsparsify_global, density=0.1, rounds=200)
FIVE = {
    "pfl": Workload("simple_cnn", 1000, 50, cohort=50),
    "femnist": Workload("femnist_cnn", 3400, 198, cohort=10),
    "resnet18_100": Workload("resnet18", 100, 64, cohort=10),
    "lenet5_spafl": SPAFL._replace(method=sfl.spafl),
    "mlp_fedsparsify": Workload("mlp", 100, 600, cohort=10, method=FEDSPARSIFY),
}
SETUPS = FIVE | {
    "lenet5_fedavg": SPAFL,
    "mlp": Workload("mlp", 100, 600),
    "lenet5_caffe": Workload("lenet5_caffe", 100, 640),
    "mnistnet": Workload("mnistnet", 100, 600),
    "ic": Workload("ic", 100, 640),
    "conv4": Workload("conv4", 20, 160),
    "fedsparsify_cnn": Workload("fedsparsify_cnn", 20, 128),
    "resnet18": Workload("resnet18", 20, 128),
    "vgg16": Workload("vgg16", 20, 64),
}
HEAD = (
    *("set-up", "clients, cohort, batch", "steps/s: best", "median", "GFLOP/s"),
    *("matmul", "fraction", "steps/s per matmul GFLOP/s", "compile s"),
)


def run(setup: Workload, repeats: int, chunk) -> dict:
    """Times single rounds, and the compilation separately."""
    matmul_rate = partial(timings.matmul_rate, dtype=setup.dtype)
    before = matmul_rate() / 1e9
    one = workload.prepare(setup, chunk)
    timed = measure.summary(measure.in_turns({"": workload.going(one)}, repeats)[""])
    rate = max(before, matmul_rate() / 1e9)
    best = one.steps / timed["minimum_seconds"]
    return timed | {
        "steps": one.steps,
        "steps_per_second": best,
        "steps_per_second_median": one.steps / timed["median_seconds"],
        "gflops": best * one.flops / 1e9,
        "matmul_gflops": rate,
        "fraction": best * one.flops / 1e9 / rate,
        "steps_per_second_per_gflops": best / rate,
        "compile_seconds": one.compile_seconds,
    }


def row(name: str, setup: Workload, r: dict) -> list[str]:
    return [
        name,
        f"{setup.clients}, {setup.drawn}, {setup.batch}",
        f"{r['steps_per_second']:.1f}",
        f"{r['steps_per_second_median']:.1f}",
        f"{r['gflops']:.0f}",
        f"{r['matmul_gflops']:.0f}",
        f"{r['fraction']:.2f}",
        f"{r['steps_per_second_per_gflops']:.3f}",
        f"{r['compile_seconds']:.1f}",
    ]


def draw(results: dict, figure) -> None:
    """Plots bars of the fraction of the matmul rate."""
    ax, names = figure.subplots(), list(results)[::-1]
    bars = ax.barh(names, [results[name]["fraction"] for name in names])
    rates = [f"{results[name]['steps_per_second']:,.1f} steps/s" for name in names]
    ax.bar_label(bars, rates, padding=4)
    ax.margins(x=0.25)
    ax.set(title="Training through the engine", xlabel="fraction of the matmul rate")


def compare(setups: dict[str, Workload], repeats: int, chunk) -> None:
    """Times two set-ups in turns, and prints both rates and their median ratio."""
    built = {name: workload.prepare(setup, chunk) for name, setup in setups.items()}
    calls = {name: workload.going(one) for name, one in built.items()}
    seconds = measure.in_turns(calls, repeats)
    per_step = {name: seconds[name] / one.steps for name, one in built.items()}
    for name, values in per_step.items():
        rate = 1 / np.median(values)
        print(f"{name:14} {rate:7.1f} client steps/s (median of {repeats})")
    (first, a), (second, b) = per_step.items()
    print(f"{second} runs at {np.median(a / b):.3f} of the rate of {first}")


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__, repeats=3)
    parser.add_argument("--only", nargs="+", choices=SETUPS, default=list(FIVE))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--compare", nargs=2, choices=SETUPS)
    parser.add_argument("--samples", type=int, help="of a client")
    parser.add_argument("--chunk", default="auto")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    args = parser.parse_args()
    names = args.compare or (list(SETUPS) if args.all else args.only)
    chosen = {name: SETUPS[name]._replace(dtype=args.dtype) for name in names}
    if args.samples:
        chosen = {k: v._replace(samples=args.samples) for k, v in chosen.items()}
    about = measure.machine(repeats=args.repeats, dtype=args.dtype)
    if args.compare:
        print(about)
        return compare(chosen, args.repeats, args.chunk)
    results = {}
    for name, setup in chosen.items():
        results[name] = run(setup, args.repeats, args.chunk)
        print(*row(name, setup, results[name]), sep="  ", flush=True)
    table = measure.markdown(HEAD, [row(k, v, results[k]) for k, v in chosen.items()])
    size = (7.2, 1.5 + 0.4 * len(chosen))
    measure.publish(
        "throughput", args.out, about, results, table, partial(draw, results), size
    )


if __name__ == "__main__":
    main()
