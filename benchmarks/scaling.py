"""How a round's time changes with the number of devices.

    python -m benchmarks.scaling                        # on 1, 2, 4 and 8 devices
    python -m benchmarks.scaling --setup conv4 --counts 1 2

Weak scaling gives every device as many clients a round however many devices there are,
strong scaling shares a cohort of fixed size. Each count runs in a process of its own,
one after another: with so many CPU devices, or on the first of the accelerators. A step
is one client's minibatch. Efficiency is the rate per device beside that of the first
count. More CPU devices than cores share these, and can not be faster.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import measure, workload  # makes the cores devices, so it is first

import jax  # isort: skip

from benchmarks.throughput import SETUPS
from benchmarks.workload import Setup

KINDS = ("weak", "strong")
HEAD = ("devices", "clients a round", "ms a round", "steps/s", "speed-up", "efficiency")


def timed(setup: Setup, count: int, repeats: int) -> dict:
    """Times single rounds on the first `count` devices."""
    one = workload.prepare(setup, devices=jax.devices()[:count])
    told = measure.summary(measure.in_turns({"": workload.going(one)}, repeats)[""])
    return {
        "devices": count,
        "clients": setup.cohort,
        "steps": one.steps,
        "seconds": told["median_seconds"],
        "seconds_best": told["minimum_seconds"],
        "seconds_compiling": one.compile_seconds,
    }


def child(args) -> None:
    """Measures one number of devices, and prints JSON."""
    (count,) = args.counts
    if len(jax.devices()) < count:
        found = len(jax.devices())
        sys.exit(f"error: counts={count}, expected at most the {found} devices found")
    setup = SETUPS[args.setup]
    setup = setup._replace(samples=args.samples or setup.samples)
    told = {}
    for name, cohort in (
        ("weak", args.clients * count),
        ("strong", args.clients * args.most),
    ):
        sized = setup._replace(cohort=cohort, clients=max(setup.clients, cohort))
        told[name] = timed(sized, count, args.repeats)
    print(json.dumps({"machine": measure.machine(), **told}))


def on(count: int) -> dict:
    """What a process with so many devices tells; the same flags, for one count."""
    kept = os.environ.get("XLA_FLAGS", "").split()
    kept = [flag for flag in kept if "host_platform_device_count" not in flag]
    flags = [*kept, f"--xla_force_host_platform_device_count={count}"]
    command = [sys.executable, "-m", "benchmarks.scaling", *sys.argv[1:]]
    command += ["--child", "--counts", str(count)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "XLA_FLAGS": " ".join(flags)},
    )
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def table(results: list[dict]) -> str:
    """Markdown rows of what was measured on several counts of devices.

    Example:
      >>> one = {"devices": 1, "clients": 4, "steps": 8, "seconds": 0.5}
      >>> two = {"devices": 2, "clients": 8, "steps": 16, "seconds": 0.625}
      >>> print(table([one, two]).splitlines()[-1])
      | 2 | 8 | 625.0 | 25.6 | 1.60 | 0.80 |
    """
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    first = results[0]
    for each in results:
        rates = [one["steps"] / one["seconds"] for one in (first, each)]
        faster = rates[1] / rates[0]
        per_device = faster * first["devices"] / each["devices"]
        lines.append(
            f"| {each['devices']} | {each['clients']} | {1e3 * each['seconds']:.1f}"
            f" | {rates[1]:.1f} | {faster:.2f} | {per_device:.2f} |"
        )
    return "\n".join(lines)


def draw(figure, told: list[dict]) -> None:
    """Steps per second by devices, and the line of as many times as there are."""
    ax = figure.subplots()
    ax.set(xlabel="devices", ylabel="client steps/s", title="Scaling")
    for name in KINDS:
        each = [one[name] for one in told]
        rates = [one["steps"] / one["seconds"] for one in each]
        ax.plot([one["devices"] for one in each], rates, marker="o", label=name)
    ax.set_ylim(bottom=0)
    ax.legend()


def main():
    """Prints two tables in Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__)
    parser.add_argument("--setup", choices=SETUPS, default="mlp")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--clients", type=int, default=4, help="a device and round")
    parser.add_argument("--samples", type=int, help="a client's, default the set-up's")
    parser.add_argument("--most", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in ("clients", "repeats", "samples"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"{name}={value}, expected at least 1")
    if min(args.counts) < 1:
        parser.error(f"counts={min(args.counts)}, expected at least 1")
    if args.child:
        return child(args)
    sys.argv += ["--most", str(max(args.counts))]
    told = [on(count) for count in args.counts]
    text = "\n\n".join(
        f"{name.capitalize()} scaling:\n\n{table([one[name] for one in told])}"
        for name in KINDS
    )
    about = told[0]["machine"] | {"setup": args.setup, "counts": args.counts}
    measure.publish("scaling", args.out, about, told, text, lambda f: draw(f, told))


if __name__ == "__main__":
    main()
