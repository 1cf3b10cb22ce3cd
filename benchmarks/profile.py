"""Profiles a client's step by layer and pass.

    python -m benchmarks profile                       # pfl's set-up, half a minute
    python -m benchmarks profile --setup resnet18

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
from collections.abc import Container, Iterator
from pathlib import Path

import jax

from benchmarks import workload

CHOICES = {"setup": workload.SETUPS}
NESTED = ("while", "call", "conditional")


def run(setup="pfl", repeats=1) -> Iterator[dict]:
    """Yields a row for each layer and pass."""
    layers = seconds(workload.SETUPS[setup], repeats)
    for (layer, way), each in layers.most_common():
        share = {"share, %": 100 * each / layers.total()}
        yield {"layer": layer, "pass": way, "ms a step": 1e3 * each} | share


def seconds(setup: workload.Workload, repeats: int) -> collections.Counter:
    """Returns seconds per step on one device, by layer and pass."""
    one = workload.prepare(setup)
    call = workload.going(one)
    call()
    where = scopes(one.program)
    with tempfile.TemporaryDirectory() as folder:
        operations = traced(lambda: [call() for _ in range(repeats)], folder, where)
    steps = repeats * one.steps / min(jax.device_count(), setup.drawn)
    layers = collections.Counter()
    for name, each in operations:
        layers[where.get(name, ("rest", "-"))] += each / steps
    return layers


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
        if layer or "jvp(_" in path:  # pooling and activations have no name
            direction = "backward" if "transpose(jvp(" in path else "forward"
            found[name[1]] = layer[1] if layer else "between layers", direction
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
