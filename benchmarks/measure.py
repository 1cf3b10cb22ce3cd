"""Shared by all benchmarks: facts of the machine, timing in turns, tables and files.

Importing it makes every CPU core a device, so import it before anything else of JAX.
"""

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.report.figure import canvas
from sparsefl_jax.system import hardware, provenance

hardware.use_cpu_cores()


def machine(**settings) -> dict:
    """Returns the settings, the hardware and the versions behind a figure."""
    kind = jax.devices()[0].device_kind
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        **settings,
        "devices": f"{jax.device_count()} x {kind}",
        "processor": f"{cores or os.cpu_count()} x {hardware.processor()}",
        "load": round(os.getloadavg()[0], 2),
        "precision": provenance.precision(),
        "compilation_cache": jax.config.jax_compilation_cache_dir or "off",
        **provenance.versions(),
        "commit": provenance.commit(),
        "date": datetime.date.today().isoformat(),
    }


def tell(result) -> None:
    """Prints a result and its machine for the process that called `apart`."""
    print(json.dumps({"result": result, "machine": machine()}))


def apart(benchmark: str, arguments: Sequence, **environment) -> dict:
    """Runs a benchmark with `--inner` in a separate process.

    Args:
      benchmark: the name of its module.
      arguments: JSON values.
      **environment: additional environment variables of the process.

    Returns:
      The output of `tell` in that process.

    Raises:
      SystemExit: the process failed and has printed the reason.
    """
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--inner"]
    command.append(json.dumps(arguments))
    env = os.environ | environment
    done = subprocess.run(command, stdout=subprocess.PIPE, env=env)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


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


def summary(seconds: Sequence[float]) -> dict:
    """Returns the median and the minimum of repeats."""
    return {
        "median_seconds": statistics.median(map(float, seconds)),
        "minimum_seconds": float(min(seconds)),
        "repeats": len(seconds),
    }


def matmul_rate(
    size: int = 3072, seconds: float = 1.0, dtype: str = "float32"
) -> float:
    """Measures the FLOP/s of square matmuls that run on every device at once.

    Args:
      size: rows of the matrices.
      seconds: how long to measure, beside the compilation.
      dtype: of the matrices.

    Returns:
      The rate of all devices together, of the best repetition.

    Example:
      >>> matmul_rate(64, 0.01) > 0
      True
    """

    def chain(a):
        return jax.lax.fori_loop(0, 4, lambda _, b: (a @ b) * 1e-3, a)

    devices = jax.devices()
    best = best_seconds(chain, (size, size), devices, seconds, dtype)
    return 4 * 2 * size**3 * len(devices) / best


def best_seconds(
    function: Callable, shape: tuple[int, ...], devices, seconds: float, dtype="float32"
) -> float:
    """Measures the shortest time of a function that runs on all devices at once.

    Args:
      function: of ones of `shape` and `dtype`, one array for each device.
      shape, dtype: of that array.
      devices: the devices.
      seconds: how long to measure, beside the compilation.

    Returns:
      Seconds.

    Example:
      >>> best_seconds(jnp.negative, (8,), jax.devices(), 0.01) > 0
      True
    """
    mesh = jax.sharding.Mesh(np.array(devices), ("clients",))
    spec = jax.sharding.PartitionSpec("clients")
    each = jax.shard_map(
        lambda a: function(a[0])[None], mesh=mesh, in_specs=spec, out_specs=spec
    )
    run = jax.jit(each)
    a = np.ones((mesh.size, *shape), jnp.dtype(dtype))
    a = jax.device_put(a, jax.sharding.NamedSharding(mesh, spec))
    jax.block_until_ready(run(a))
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        jax.block_until_ready(run(a))
        best = min(best, time.perf_counter() - start)
    return best


def copy_rate(size: int = 2**28, seconds: float = 1.0) -> float:
    """Returns the bytes per second that all devices read and write in a copy.

    Args:
      size: the bytes that a device copies, which must exceed its caches.
      seconds: the duration of the measurement.
    """
    devices, numbers = jax.devices(), size // 4
    best = best_seconds(jnp.negative, (numbers,), devices, seconds)
    return 2 * 4 * numbers * len(devices) / best


def peak_memory() -> int:
    """Returns the peak memory in bytes of the device, or of this process on CPU."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the parent's memory before exec
        lines = status.read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def parser(doc: str, repeats: int = 5) -> argparse.ArgumentParser:
    """Returns a parser with the arguments that all benchmarks have."""
    shared = argparse.ArgumentParser(description=doc.splitlines()[0])
    shared.add_argument("--repeats", type=int, default=repeats)
    shared.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    return shared


def markdown(head: Sequence[str], rows: Sequence[Sequence]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def publish(
    name: str,
    out: Path,
    about: dict,
    results,
    table: str,
    draw: Callable,
    size: tuple[float, float] = (7.2, 4.3),
) -> None:
    """Prints the table; writes `name`.json, `name`.md and `name`.png.

    Args:
      name: the name of the benchmark.
      out: the folder of the files.
      about: the result of `machine`.
      results: all figures, as JSON values.
      table: the table as Markdown.
      draw: `(figure) -> None`.
      size: the size of the plot in inches.
    """
    facts = ", ".join(f"{key} {value}" for key, value in about.items())
    text = f"{facts}\n\n{table}"
    out.mkdir(parents=True, exist_ok=True)
    content = {"machine": about, "results": results}
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / f"{name}.md").write_text(f"{text}\n")
    with canvas(out / f"{name}.png", size) as figure:
        draw(figure)
    print(f"{text}\n\n{out / name}.json, .md, .png")
