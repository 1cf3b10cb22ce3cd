"""Measures client steps per second of the real engine, and the matmul rate.

    python -m benchmarks.throughput                     # the five set-ups, 3 minutes
    python -m benchmarks.throughput --all               # and every other one
    python -m benchmarks.throughput --only resnet18_100 --samples 500  # of a client
    python -m benchmarks.throughput --compare lenet5_fedavg lenet5_spafl
    python -m benchmarks.throughput --dtype bfloat16    # float32 parameters
    python -m benchmarks.throughput --own               # networks of one's own

FedAvg trains with plain SGD on random images, unless a set-up names another method. A
step is one client's minibatch: forward pass, both gradients, update. GFLOP/s are six
times the network's multiply-adds per sample, so normalisation, pooling and the
federated work count as lost time. The matmul rate is that of a square matmul in the
same dtype on every device at once, timed before and after each set-up. `--compare`
times rounds of two set-ups in turns, so that noise of the machine affects both alike;
`--own` those of the networks in `own/`, in linen and in nnx, and the package's.
"""

from functools import partial

import numpy as np

import sparsefl_jax as sfl
from benchmarks import measure, workload
from benchmarks.workload import Workload
from sparsefl_jax.models.base import DTYPES

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
OWN = {
    "simple_cnn": Workload("simple_cnn", 100, 100, 8),
    "strided_cnn": Workload("strided_cnn", 100, 160, 8),
    "groupnorm_cnn": Workload("groupnorm_cnn", 100, 160, 8),
    "resnet18_groupnorm": Workload("resnet18_groupnorm", 20, 64, 4),
    "separable_cnn": Workload("separable_cnn", 100, 160, 8),
    "gru": Workload("gru", 100, 160, 8),
    "transformer": Workload("transformer", 100, 160, 8),
}
OURS = ("simple_cnn", "resnet18_groupnorm")  # which the package has, too
HEAD = (
    *("set-up", "clients, cohort, batch", "steps/s: best", "median", "GFLOP/s"),
    *("matmul", "fraction", "steps/s per matmul GFLOP/s", "compile s"),
)
OWN_HEAD = (
    *("network", "ours, steps/s", "linen, steps/s", "nnx, steps/s"),
    *("linen / ours", "nnx / ours"),
)


def run(setup: Workload, repeats: int, chunk) -> dict:
    """Times single rounds, and the compilation separately."""
    matmul_rate = partial(measure.matmul_rate, dtype=setup.dtype)
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


def own(repeats: int, chunk, dtype: str) -> dict:
    """Times one's own networks in turns with the package's, where it has the same."""
    results = {}
    for name, setup in OWN.items():
        forms = workload.FORMS if name in OURS else workload.FORMS[1:]
        built = {
            written: workload.prepare(
                setup._replace(written=written, dtype=dtype), chunk
            )
            for written in forms
        }
        calls = {written: workload.going(one) for written, one in built.items()}
        seconds = measure.in_turns(calls, repeats)
        steps = {
            written: one.steps / seconds[written] for written, one in built.items()
        }
        results[name] = {
            written: {
                "steps_per_second": float(np.max(steps[written])),
                "steps_per_second_median": float(np.median(steps[written])),
                "of_ours": float(np.median(steps[written] / steps["ours"]))
                if "ours" in steps
                else None,
                "compile_seconds": one.compile_seconds,
            }
            for written, one in built.items()
        }
        print(*own_row(name, results[name]), sep="  ", flush=True)
    return results


def own_row(name: str, r: dict) -> list[str]:
    def show(written, key, digits):
        value = r.get(written, {}).get(key)
        return "-" if value is None else f"{value:,.{digits}f}"

    return [
        name,
        *(show(w, "steps_per_second_median", 1) for w in workload.FORMS),
        *(show(w, "of_ours", 2) for w in workload.FORMS[1:]),
    ]


def draw_own(results: dict, figure) -> None:
    """Plots bars of the rates, of linen and nnx side by side."""
    ax, names = figure.subplots(), list(results)[::-1]
    at = np.arange(len(names))
    for i, written in enumerate(workload.FORMS[1:]):
        rates = [results[n][written]["steps_per_second_median"] for n in names]
        bars = ax.barh(at - 0.4 * i, rates, 0.4, label=written)
        ax.bar_label(bars, fmt="{:,.0f}", padding=3)
    ax.set_yticks(at - 0.2, names)
    ax.margins(x=0.15)
    ax.legend()
    ax.set(title="Networks of one's own", xlabel="client steps/s")


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__, repeats=3)
    parser.add_argument("--only", nargs="+", choices=SETUPS, default=list(FIVE))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--own", action="store_true", help="networks of one's own")
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
    if args.own:
        results = own(args.repeats, args.chunk, args.dtype)
        table = measure.markdown(OWN_HEAD, [own_row(*one) for one in results.items()])
        return measure.publish(
            "throughput_own",
            args.out,
            about,
            results,
            table,
            partial(draw_own, results),
        )
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
