"""Measures how a round's time changes with the number of devices.

    python -m benchmarks.scaling                        # on 1, 2, 4 and 8 devices
    python -m benchmarks.scaling --setup conv4 --counts 1 2
    python -m benchmarks.scaling --target v5e --setup pfl --counts 1 4 16 64

Weak scaling gives every device the same number of clients a round; strong scaling
shares a cohort of fixed size. Each count runs in a process of its own, one after
another, with that many CPU devices or on the first accelerators. A step is one client's
minibatch. Speed-up and efficiency, the rate per device, are relative to the first
count. More CPU devices than cores share the cores, and cannot be faster.

With `--target` nothing runs: the rounds compile for as many chips of a TPU (v4, v5e,
v5p, v6e, tpu7x) or GPUs (h100, h200) that are not there. Time is the compiler's
estimate where it has one; collectives and the peak of memory are those of one device.
"""

import json
import math
import os
import sys
from functools import partial

import jax

from benchmarks import accelerators, measure, targets, workload
from benchmarks.throughput import SETUPS

HEAD = (
    *("scaling", "devices", "clients a round", "ms a round: best", "median"),
    *("steps/s: best", "speed-up", "efficiency", "compile s"),
)

ESTIMATED = (
    *("scaling", "devices", "clients a round", "chunk", "ms a round, estimated"),
    *("speed-up", "efficiency", "collectives, MB a round", "peak MB"),
)


def sized(name: str, cohort: int, samples: int | None) -> workload.Workload:
    """Returns a set-up with a cohort of this size, and clients for it."""
    setup = SETUPS[name]
    clients, samples = max(setup.clients, cohort), samples or setup.samples
    return setup._replace(cohort=cohort, clients=clients, samples=samples)


def run(count: int, cohorts: dict, name: str, samples: int | None, repeats: int):
    """Returns the figures of every cohort on the first `count` devices."""
    devices, results = jax.devices()[:count], []
    if len(devices) < count:
        sys.exit(f"error: counts={count}, expected at most {len(devices)} devices")
    for kind, cohort in cohorts.items():
        one = workload.prepare(sized(name, cohort, samples), devices=devices)
        timed = measure.in_turns({"": workload.going(one)}, repeats)[""]
        results.append(
            measure.summary(timed)
            | {
                "kind": kind,
                "devices": count,
                "cohort": cohort,
                "steps": one.steps,
                "compile_seconds": one.compile_seconds,
            }
        )
    return results


def topology(kind: str, count: int) -> str:
    """Returns the target of so many chips, with sides as equal as powers of 2 allow.

    Example:
      >>> topology("v5e", 8), topology("v4", 4), topology("h100", 8)
      ('v5e:2x4', 'v4:2x2x1', 'h100:8')
    """
    sides = [1] * accelerators.axes(kind)
    while math.prod(sides) < count:
        sides[sides.index(min(sides))] *= 2
    if len(sides) == 1:
        sides = [count]
    return f"{kind}:{'x'.join(map(str, sorted(sides, key=lambda n: (n == 1, n))))}"


def compiled(kind: str, count: int, cohorts: dict, name: str, samples: int | None):
    """Returns what the compiler says of every cohort on so many chips."""
    target, results = accelerators.make(topology(kind, count)), []
    for scaling, cohort in cohorts.items():
        setup = sized(name, cohort, samples)
        data = workload.make_data(setup)
        model = workload.make_model(setup, data)
        stage = workload.make_stage(setup, model, 1)
        (one,) = targets.compile_for(target, [stage], model, data)
        seconds = {"minimum_seconds": one.seconds or math.nan}
        told = {"kind": scaling, "cohort": cohort, "collectives": one.collectives}
        told |= {"chunk": one.chunk, "peak_bytes": one.memory["peak"]}
        steps = cohort * -(-setup.samples // setup.batch)
        results.append(seconds | told | {"devices": one.devices, "steps": steps})
        print(results[-1], file=sys.stderr, flush=True)
    return results


def estimated_rows(results: list[dict]) -> list[list[str]]:
    """Returns the rows of a table of compiled rounds.

    Example:
      >>> one = {"kind": "weak", "devices": 1, "cohort": 4, "steps": 8, "chunk": 1,
      ...     "minimum_seconds": 0.5, "collectives": {}, "peak_bytes": 2_000_000}
      >>> four = one | {"devices": 4, "cohort": 16, "steps": 32, "minimum_seconds": 1}
      >>> estimated_rows([one, four | {"collectives": {"all-reduce": 3_500_000}}])[1]
      ['weak', '4', '16', '1', '1000', '2.00', '0.50', 'all-reduce 3.5', '2']
    """
    first, table = {}, []
    for r in results:
        rate = r["steps"] / r["minimum_seconds"]
        devices, before = first.setdefault(r["kind"], (r["devices"], rate))
        moved = [f"{kind} {n / 1e6:.3g}" for kind, n in r["collectives"].items()]
        table.append(
            [
                *(r["kind"], str(r["devices"]), str(r["cohort"]), str(r["chunk"])),
                f"{1e3 * r['minimum_seconds']:.3g}",
                f"{rate / before:.2f}",
                f"{rate / before * devices / r['devices']:.2f}",
                ", ".join(moved) or "-",
                f"{r['peak_bytes'] / 1e6:.0f}",
            ]
        )
    return table


def flags(count: int) -> str:
    """Returns the XLA_FLAGS of a process with `count` CPU devices."""
    given = os.environ.get("XLA_FLAGS", "").split()
    given = [flag for flag in given if "host_platform_device_count" not in flag]
    return " ".join([*given, f"--xla_force_host_platform_device_count={count}"])


def rows(results: list[dict]) -> list[list[str]]:
    """Returns a table's rows; each kind is compared with its own first count.

    Example:
      >>> one = {"kind": "weak", "devices": 1, "cohort": 4, "steps": 8,
      ...     "minimum_seconds": 0.5, "median_seconds": 0.5, "compile_seconds": 1.0}
      >>> two = one | {"devices": 2, "cohort": 8, "steps": 16, "minimum_seconds": 0.625}
      >>> rows([one, two])[1][5:8]
      ['25.6', '1.60', '0.80']
    """
    first, table = {}, []
    for r in results:
        rate = r["steps"] / r["minimum_seconds"]
        devices, before = first.setdefault(r["kind"], (r["devices"], rate))
        table.append(
            [
                r["kind"],
                str(r["devices"]),
                str(r["cohort"]),
                f"{1e3 * r['minimum_seconds']:.1f}",
                f"{1e3 * r['median_seconds']:.1f}",
                f"{rate:.1f}",
                f"{rate / before:.2f}",
                f"{rate / before * devices / r['devices']:.2f}",
                f"{r['compile_seconds']:.1f}",
            ]
        )
    return table


def draw(results: list[dict], figure) -> None:
    """Plots steps per second by devices."""
    ax = figure.subplots()
    ax.set(xlabel="devices", title="Client steps a second")
    for kind in dict.fromkeys(r["kind"] for r in results):
        of_kind = [r for r in results if r["kind"] == kind]
        rates = [r["steps"] / r["minimum_seconds"] for r in of_kind]
        ax.plot([r["devices"] for r in of_kind], rates, "o-", label=kind)
    ax.set_ylim(bottom=0)
    ax.legend()


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__)
    parser.add_argument("--setup", choices=SETUPS, default="mlp")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--clients", type=int, default=4, help="a device and round")
    parser.add_argument("--samples", type=int, help="a client's, default the set-up's")
    kinds = accelerators.KINDS
    parser.add_argument("--target", choices=kinds, help="accelerators not there")
    parser.add_argument("--inner", type=json.loads, help="used by itself")
    args = parser.parse_args()
    if args.inner:
        return measure.tell(run(*args.inner))
    for name in ("counts", "clients", "samples", "repeats"):
        value = getattr(args, name)
        if value is not None and min(value if name == "counts" else [value]) < 1:
            parser.error(f"{name}={value}, expected at least 1")
    results = []
    for count in args.counts:
        cohorts = {"weak": count, "strong": max(args.counts)}
        cohorts = {kind: args.clients * devices for kind, devices in cohorts.items()}
        if args.target:
            which = cohorts, args.setup, args.samples
            results += compiled(args.target, count, *which)
            continue
        inner = count, cohorts, args.setup, args.samples, args.repeats
        output = measure.apart("scaling", inner, XLA_FLAGS=flags(count))
        results += output["result"]
    results.sort(key=lambda r: r["kind"], reverse=True)  # weak first, counts in order
    about = {"repeats": args.repeats, "setup": args.setup}
    if args.target:
        about |= measure.machine(target=args.target)
        about["compiler"] = targets.compiler(accelerators.platform(args.target))
        table = measure.markdown(ESTIMATED, estimated_rows(results))
    else:
        about |= output["machine"]
        table = measure.markdown(HEAD, rows(results))
    measure.publish("scaling", args.out, about, results, table, partial(draw, results))


if __name__ == "__main__":
    main()
