"""Profiles a client's step by layer and pass, and by operation.

    python -m benchmarks.profile                       # pfl's set-up, half a minute
    python -m benchmarks.profile --setup resnet18 --operations 20

Rounds (`--repeats`) run under JAX's profiler. An operation lasts until the next one of
the same device begins, which includes its work in other threads. Its layer comes from
the compiled program. "update" is the optimizer and the loop around it. "rest" is
everything else: gathering and normalising batches, the loss, sums over clients, and
collectives. A round is slower under the profiler, so trust the shares, not the
milliseconds.
"""

import collections
import re
import tempfile
from collections.abc import Container
from functools import partial
from pathlib import Path

import jax

from benchmarks import measure, workload
from benchmarks.throughput import SETUPS

HEAD = ("layer", "pass", "ms a step", "share, %")
NESTED = ("while", "call", "conditional")


def scopes(program: str) -> dict[str, tuple[str, str]]:
    """Returns the layer and pass of every operation of a compiled program.

    Example:
      >>> op = '%dot.1 = f32[2]{0} dot(%a), metadata={op_name="a/jvp(_Net)/fc1/dot"}'
      >>> scopes(op)
      {'dot.1': ('fc1', 'forward')}
    """
    found = {}
    for line in program.splitlines():
        name = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = ", line)
        if not name:
            continue
        metadata = re.search(r'op_name="([^"]*)"', line)
        path = metadata[1] if metadata else ""
        layer = re.search(r"jvp\(_?\w+\)+/(?:[\w.]+/)*?(\w+\d\w*)/", path)
        if layer:
            direction = "backward" if "transpose(jvp(" in path else "forward"
            found[name[1]] = layer[1], direction
        elif "jvp(_" in path:  # pooling and activations have no name
            direction = "backward" if "transpose(jvp(" in path else "forward"
            found[name[1]] = "between layers", direction
        elif path.endswith("/select_n") or not path:
            found[name[1]] = "update", "-"
    return found


def traced(call, folder, program: Container[str]) -> list[tuple[str, float]]:
    """Returns the operations of one device and their seconds while `call` runs.

    The device's thread is the one with the most operations of the `program`.
    """
    with jax.profiler.trace(folder):
        call()
    (file,) = Path(folder).rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(file))
    lines = [line for plane in data.planes for line in plane.lines]
    inner = re.compile(r"[a-z_\-]+[a-z_\-.\d]*")  # not the runtime's own events
    known = [
        sorted(
            (e.start_ns, e.name)
            for e in line.events
            if inner.fullmatch(e.name) and not e.name.startswith(NESTED)
        )
        for line in lines
        if not line.name.startswith("python")
    ]
    events = max(known, key=lambda line: sum(name in program for _, name in line))
    pairs = zip(events, events[1:], strict=False)
    return [(name, (after - start) / 1e9) for (start, name), (after, _) in pairs]


def run(setup: workload.Workload, repeats: int) -> tuple[dict, dict]:
    """Returns seconds per step on one device, by layer and pass, and by operation."""
    one = workload.prepare(setup)
    call = workload.going(one)
    call()
    where = scopes(one.program)
    with tempfile.TemporaryDirectory() as folder:
        operations = traced(lambda: [call() for _ in range(repeats)], folder, where)
    steps = repeats * one.steps / min(jax.device_count(), setup.drawn)
    layers, by_operation = collections.Counter(), collections.Counter()
    for name, seconds in operations:
        layers[where.get(name, ("rest", "-"))] += seconds / steps
        by_operation[name] += seconds / steps
    return layers, by_operation


def draw(layers: dict, figure) -> None:
    """Plots bars of the share of each layer and pass."""
    ax, total = figure.subplots(), sum(layers.values())
    names = [" ".join(key).removesuffix(" -") for key in layers][::-1]
    bars = ax.barh(names, [100 * v / total for v in layers.values()][::-1])
    ax.bar_label(bars, fmt="%.1f", padding=3)
    ax.margins(x=0.12)
    ax.set(title="A client's step", xlabel="share of the time [%]")


def main():
    """Prints Markdown; writes JSON, Markdown and a plot."""
    parser = measure.parser(__doc__, repeats=1)
    parser.add_argument("--setup", choices=SETUPS, default="pfl")
    parser.add_argument("--operations", type=int, default=0, help="listed one by one")
    args = parser.parse_args()
    layers, by_operation = run(SETUPS[args.setup], args.repeats)
    where = dict(layers.most_common())
    total = sum(where.values())
    rows = [
        (*key, f"{1e3 * v:.3f}", f"{100 * v / total:.1f}") for key, v in where.items()
    ]
    for name, seconds in by_operation.most_common(args.operations):
        print(f"{1e3 * seconds:8.3f} ms  {name}")
    about = measure.machine(repeats=args.repeats, setup=args.setup)
    results = [{"layer": k[0], "pass": k[1], "seconds": v} for k, v in where.items()]
    size = (7.2, 1.5 + 0.35 * len(where))
    table = measure.markdown(HEAD, rows)
    draws = partial(draw, where)
    measure.publish("profile", args.out, about, results, table, draws, size)


if __name__ == "__main__":
    main()
