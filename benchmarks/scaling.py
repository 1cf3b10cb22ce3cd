"""How a round's time changes with the number of devices.

    python -m benchmarks.scaling                        # on 1, 2, 4 and 8 devices
    python -m benchmarks.scaling --setup conv4 --counts 1 2 --out scaling.json

Weak scaling gives every device as many clients a round however many devices there are,
strong scaling shares a cohort of fixed size. Each count runs in a process of its own,
one after another: with so many CPU devices, or on the first of the accelerators. A step
is one client's minibatch. Efficiency is the rate per device beside that of the first
count. More CPU devices than cores share these, and can not be faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import throughput  # makes the cores devices, so it comes first

import jax  # isort: skip

HEAD = ("devices", "clients a round", "ms a round", "steps/s", "speed-up", "efficiency")


def measure(setup: throughput.Setup, count: int, repeats: int) -> dict:
    """Times single rounds on the first `count` devices; the first one compiles."""
    devices = jax.devices()[:count]
    built = throughput.build(setup, "auto", devices)
    segment, key, population, state, rounds, ids, steps, _ = built
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        state, log = segment(key, population, state, rounds, ids)
        jax.block_until_ready((state, log))
        seconds.append(time.perf_counter() - start)
    return {
        "devices": len(devices),
        "clients": setup.cohort,
        "steps": steps,
        "seconds": statistics.median(seconds[1:]),
        "seconds_best": min(seconds[1:]),
        "seconds_compiling": seconds[0] - statistics.median(seconds[1:]),
    }


def child(args) -> None:
    """Measures one number of devices, and prints JSON."""
    (count,) = args.counts
    if len(jax.devices()) < count:
        found = len(jax.devices())
        sys.exit(f"error: counts={count}, expected at most the {found} devices found")
    setup = throughput.SETUPS[args.setup]
    setup = setup._replace(samples=args.samples or setup.samples)
    told = {}
    for name, cohort in (
        ("weak", args.clients * count),
        ("strong", args.clients * args.most),
    ):
        sized = setup._replace(cohort=cohort, clients=max(setup.clients, cohort))
        told[name] = measure(sized, count, args.repeats)
    print(json.dumps({"machine": throughput.machine(), **told}))


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


def main():
    """Prints two tables in Markdown, and writes JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setup", choices=throughput.SETUPS, default="mlp")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--clients", type=int, default=4, help="a device and round")
    parser.add_argument("--samples", type=int, help="a client's, default the set-up's")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
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
    about = told[0]["machine"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    print(
        f"`{args.setup}`, `--repeats {args.repeats}`, medians; {about['cpu']}, {cores}"
        f" of them usable, {about['devices'].partition(' x ')[2]} devices, jax"
        f" {about['jax']}, Python {about['python']}, commit {about['commit']},"
        f" {about['date']}."
    )
    cpu = about["devices"].endswith(" cpu")
    if cpu and max(args.counts) > cores:
        print(
            f"With {cores} cores more than {cores} devices can not be faster than {cores}."
        )
    for name in ("weak", "strong"):
        print(f"\n{name.capitalize()} scaling:\n\n{table([t[name] for t in told])}")
    if args.out:
        results = {name: [t[name] for t in told] for name in ("weak", "strong")}
        kept = {"machine": about | {"cores": cores}, "setup": args.setup, **results}
        args.out.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
