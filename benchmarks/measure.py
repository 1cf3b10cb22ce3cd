"""What all benchmarks share: the machine, times in turns, tables and files.

Importing it makes every CPU core a device, so it comes before JAX does anything.
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
from sparsefl_jax.runs.plan import timings
from sparsefl_jax.system import hardware as devices
from sparsefl_jax.system import provenance

devices.use_cpu_cores()


def machine(**settings) -> dict:
    """Where and with what figures are taken; `settings` are told beside that."""
    kind = jax.devices()[0].device_kind
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        **settings,
        "devices": f"{jax.device_count()} x {kind}",
        "processor": f"{cores or os.cpu_count()} x {devices.processor()}",
        "load": round(os.getloadavg()[0], 2),
        "precision": provenance.precision(),
        "compilation_cache": jax.config.jax_compilation_cache_dir or "off",
        **provenance.versions(),
        "commit": provenance.commit(),
        "date": datetime.date.today().isoformat(),
    }


def tell(result) -> None:
    """Prints a result and where it was taken, for the process that called `apart`."""
    print(json.dumps({"result": result, "machine": machine()}))


def apart(benchmark: str, arguments: Sequence, **environment) -> dict:
    """What a benchmark `tell`s with `--inner`, from a process of its own.

    Args:
      benchmark: its module's name.
      arguments: JSON can hold them.
      **environment: variables that the process has beside this one's.

    Raises:
      SystemExit: the process failed; it has said why.
    """
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--inner"]
    command.append(json.dumps(arguments))
    env = os.environ | environment
    done = subprocess.run(command, stdout=subprocess.PIPE, env=env)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def in_turns(calls: dict[str, Callable], repeats: int) -> dict[str, np.ndarray]:
    """Seconds [repeats] of every call, one after the other and the other way round.

    Each is called once before that, which is not timed.
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
    """Median and minimum of repeats."""
    return {
        "median_seconds": statistics.median(map(float, seconds)),
        "minimum_seconds": float(min(seconds)),
        "repeats": len(seconds),
    }


def copy_rate(size: int = 2**28, seconds: float = 1.0) -> float:
    """Bytes a second read and written by a copy on all devices at the same time.

    Args:
      size: bytes of what a device copies; it must be larger than the caches.
      seconds: how long to measure.
    """
    devices, numbers = jax.devices(), size // 4
    best = timings.best_seconds(jnp.negative, (numbers,), devices, seconds)
    return 2 * 4 * numbers * len(devices) / best


def peak_memory() -> int:
    """The most bytes held since the start: by the device, of a CPU by this process."""
    told = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in told:
        return told["peak_bytes_in_use"]
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's before exec
        lines = status.read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def parser(doc: str, repeats: int = 5) -> argparse.ArgumentParser:
    """The arguments that all benchmarks have."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("--repeats", type=int, default=repeats)
    made.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    return made


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
      name: of the benchmark.
      out: the folder.
      about: from `machine`.
      results: all figures, for JSON.
      table: Markdown.
      draw: `(figure) -> None`.
      size: of the plot, inches.
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
