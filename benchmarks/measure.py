"""Shared by all benchmarks: facts of the machine, timing in turns, tables and files.

Importing it makes every CPU core a device, so import it before anything uses JAX.
"""

import datetime
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sparsefl_jax.system import hardware, provenance

hardware.use_cpu_cores()


def machine() -> dict:
    """Returns the hardware and the versions behind a figure."""
    kind = jax.devices()[0].device_kind
    return {
        "devices": f"{jax.device_count()} x {kind}",
        "processor": f"{len(hardware.cores())} x {hardware.processor()}",
        "load": round(os.getloadavg()[0], 2),
        "precision": provenance.precision(),
        "compilation_cache": jax.config.jax_compilation_cache_dir or "off",
        **provenance.versions(),
        "commit": provenance.commit(),
        "date": datetime.date.today().isoformat(),
    }


def apart(function: Callable, *arguments, **environment) -> Any:
    """Calls a function in a process of its own.

    Args:
      function: of a module.
      *arguments: JSON values.
      **environment: additional environment variables of the process.

    Returns:
      What the function returns, a JSON value.

    Raises:
      SystemExit: the process failed and has printed the reason.
    """
    module, name = function.__module__, function.__name__
    call = f"import json, sys; from {module} import {name} as call; "
    call += "print(json.dumps(call(*json.loads(sys.argv[1]))))"
    command = [sys.executable, "-c", call, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def flags(count: int) -> str:
    """Returns the XLA_FLAGS of a process with `count` CPU devices."""
    given = os.environ.get("XLA_FLAGS", "").split()
    given = [flag for flag in given if "host_platform_device_count" not in flag]
    return " ".join([*given, f"--xla_force_host_platform_device_count={count}"])


def in_turns(calls: dict[str, Callable], repeats: int) -> dict[str, np.ndarray]:
    """Returns seconds [repeats] of each call, alternating the order of the calls.

    Each is called once before, without timing.
    """
    for call in calls.values():
        call()
    seconds = {name: np.zeros(repeats) for name in calls}
    for turn in range(repeats):
        for name in calls if turn % 2 else reversed(calls):
            start = time.perf_counter()
            calls[name]()
            seconds[name][turn] = time.perf_counter() - start
    return seconds


def rates(what: str, amount: float, seconds: np.ndarray) -> dict[str, float]:
    """Returns two columns, the best and the median of `amount` a second.

    Example:
      >>> rates("steps/s", 4, np.array([1.0, 2.0, 4.0]))
      {'steps/s: best': 4.0, 'steps/s: median': 2.0}
    """
    best, median = amount / np.min(seconds), amount / np.median(seconds)
    return {f"{what}: best": float(best), f"{what}: median": float(median)}


def times(what: str, scale: float, seconds: np.ndarray) -> dict[str, float]:
    """Returns two columns, the best and the median of `scale * seconds`.

    Example:
      >>> times("ms", 1e3, np.array([1.0, 2.0, 4.0]))
      {'ms: best': 1000.0, 'ms: median': 2000.0}
    """
    best, median = scale * np.min(seconds), scale * np.median(seconds)
    return {f"{what}: best": float(best), f"{what}: median": float(median)}


def matmul_rate(devices=None, size: int = 3072, seconds: float = 1.0) -> float:
    """Measures the FLOP/s of square matmuls that run on several devices at once.

    Args:
      devices: by default all.
      size: rows of the matrices.
      seconds: how long to measure, beside the compilation.

    Returns:
      The rate of all devices together, of the best repetition.

    Example:
      >>> matmul_rate(size=64, seconds=0.01) > 0
      True
    """
    devices = np.array(devices or jax.devices())
    mesh, spec = jax.sharding.Mesh(devices, ("clients",)), jax.P("clients")

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def run(a):
        return jax.lax.fori_loop(0, 4, lambda _, b: (a @ b) * 1e-3, a)

    a = np.ones((devices.size, size, size), np.float32)
    a = jax.device_put(a, jax.sharding.NamedSharding(mesh, spec))
    jax.block_until_ready(run(a))
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        jax.block_until_ready(run(a))
        best = min(best, time.perf_counter() - start)
    return 4 * 2 * size**3 * devices.size / best


def shown(value: Any) -> str:
    """Formats a cell; numbers have three digits, whole numbers all of theirs.

    Example:
      >>> [shown(value) for value in (1234567, 8204.3, 0.0997, 2.6, None, ("a", "b"))]
      ['1,234,567', '8,204', '0.0997', '2.60', '-', 'a b']
    """
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    if isinstance(value, float) and math.isfinite(value):
        digits = 2 - math.floor(math.log10(abs(value))) if value else 0
        return f"{value:,.{max(0, digits)}f}"
    if value is None or isinstance(value, float):
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown(head: Sequence[str], rows: Sequence[Sequence]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def publish(name: str, out: Path, about: dict, rows: Sequence[dict]) -> None:
    """Prints a table; writes it to `name`.md and its figures to `name`.json.

    Args:
      name: the name of the benchmark.
      out: the folder of the files.
      about: facts behind the figures.
      rows: by column, JSON values.
    """
    facts = ", ".join(f"{key} {shown(value)}" for key, value in about.items())
    head = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[shown(row.get(column)) for column in head] for row in rows]
    text = f"{facts}\n\n{markdown(head, cells)}\n"
    content = {"machine": about, "results": rows}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / f"{name}.md").write_text(text)
    print(f"{text}\n{out / name}.json, .md")
