"""Measures how a round's time changes with the number of devices.

    python -m benchmarks scaling                        # on 1, 2, 4 and 8 devices
    python -m benchmarks scaling --setup conv4 --counts 1 2
    python -m benchmarks scaling --target v5e --setup pfl --counts 1 4 16 64

Weak scaling gives every device the same number of clients a round (`--clients`);
strong scaling shares a cohort of fixed size. Each count runs in a process of its own,
one after another, with that many CPU devices or on the first accelerators. A step is
one client's minibatch. Speed-up and efficiency, the rate per device, are relative to
the first count. More CPU devices than cores share the cores, and cannot be faster.

With `--target` nothing runs: the rounds are compiled for as many chips of a TPU (v4,
v5e, v5p, v6e, tpu7x) or GPUs (h100, h200). Time is the compiler's estimate if it has
one; collectives and the peak of memory are those of one device.
"""

import math
import os
import sys
from collections.abc import Iterator

import jax

from benchmarks import accelerators, measure, targets, workload
from benchmarks.workload import SETUPS

CHOICES = {"setup": SETUPS, "target": accelerators.KINDS}


def run(
    setup="mlp", counts=(1, 2, 4, 8), clients=4, target="", repeats=5
) -> Iterator[dict]:
    """Yields a row for each count, of weak scaling first.

    Args:
      setup: of `SETUPS`.
      counts: of devices.
      clients: of a device and round.
      target: accelerators to compile for.
      repeats: rounds to time.
    """
    for kind in ("weak", "strong"):
        first = {}
        for count in counts:
            cohort = clients * (count if kind == "weak" else max(counts))
            which = count, cohort, setup
            if target:
                row = compiled(target, *which)
            else:
                row = measure.apart(timed, *which, repeats, XLA_FLAGS=flags(count))
            first = first or row
            speed_up = row["steps/s: best"] / first["steps/s: best"]
            share = speed_up * first["devices"] / row["devices"]
            yield {"scaling": kind} | row | {"speed-up": speed_up, "efficiency": share}


def sized(name: str, cohort: int) -> workload.Workload:
    """Returns a set-up with a cohort of this size, and clients for it."""
    setup = SETUPS[name]
    return setup._replace(cohort=cohort, clients=max(setup.clients, cohort))


def timed(count: int, cohort: int, name: str, repeats: int) -> dict:
    """Returns the figures of a cohort on the first `count` devices."""
    devices = jax.devices()[:count]
    if len(devices) < count:
        sys.exit(f"error: counts={count}, expected at most {len(devices)} devices")
    one = workload.prepare(sized(name, cohort), devices=devices)
    seconds = workload.seconds(one, repeats)
    return (
        {"devices": count, "clients a round": cohort}
        | measure.times("ms a round", 1e3, seconds)
        | {"steps/s: best": one.steps / float(seconds.min())}
        | {"compile s": one.compile_seconds}
    )


def compiled(kind: str, count: int, cohort: int, name: str) -> dict:
    """Returns what the compiler estimates for a cohort on `count` chips."""
    setup = sized(name, cohort)
    target = accelerators.make(topology(kind, count))
    data = workload.make_data(setup)
    model = workload.make_model(setup, data)
    stage = workload.make_stage(setup, model, 1)
    (one,) = targets.compile_for(target, [stage], model, data)
    seconds = one.seconds or math.nan
    moved = [f"{kind} {size / 1e6:.3g}" for kind, size in one.collectives.items()]
    return {
        "compiler": targets.compiler(target.devices[0].platform),
        "devices": one.devices,
        "clients a round": cohort,
        "chunk": one.chunk,
        "ms a round, estimated": 1e3 * seconds,
        "steps/s: best": setup.steps / seconds,
        "collectives, MB a round": ", ".join(moved) or "-",
        "peak MB": one.memory["peak"] / 1e6,
    }


def topology(kind: str, count: int) -> str:
    """Returns the target of `count` chips, with sides as equal as powers of 2 allow.

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


def flags(count: int) -> str:
    """Returns the XLA_FLAGS of a process with `count` CPU devices."""
    given = os.environ.get("XLA_FLAGS", "").split()
    given = [flag for flag in given if "host_platform_device_count" not in flag]
    return " ".join([*given, f"--xla_force_host_platform_device_count={count}"])
