"""Counts seconds until the first round of a run, to its end, and of a sweep.

    python -m benchmarks start                         # 4 CPU minutes

CPU seconds are those of the whole process, its imports and its compiler's threads too.
A run starts with an empty cache of compiled
programs, and again with the one that it has filled. The sweep is FedAvg on MNIST's
sample with eight learning rates and a budget of ten rounds, from an empty cache: its
points share their programs, and the budget needs no pilot.
"""

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measure
from sparsefl_jax.config import load_config
from sparsefl_jax.runs import experiment
from sparsefl_jax.system import hardware

RATES = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08)
SWEEP = {
    "config": "configs/flash_mnist.py:mini",
    "config.algorithm.name": "fedavg",
    "config.first_stage.name": "none",
    "config.fit.gbit": "1.7",
    "sweep": f"optimizer.learning_rate={','.join(map(str, RATES))}",
}


def run(config: str = "configs/flash_cifar10.py:mini") -> Iterator[dict]:
    """Yields a row a command and cache."""
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("empty", "filled"):
            given = config, f"{folder}/{cache}", time.time()
            taken = measure.apart(count, *given, SPARSEFL_CACHE_DIR=folder)
            yield {"command": config, "cache": cache} | taken
    with tempfile.TemporaryDirectory() as folder:
        flags = SWEEP | {"workdir": f"{folder}/sweep"}
        command = [sys.executable, "-m", "sparsefl_jax"]
        command += [f"--{flag}={value}" for flag, value in flags.items()]
        environment = os.environ | {"SPARSEFL_CACHE_DIR": folder}
        begun, before = time.perf_counter(), children()
        subprocess.run(command, check=True, env=environment)
        yield {
            "command": f"{len(RATES)} learning rates",
            "cache": "empty",
            "CPU s": children() - before,
            "s": time.perf_counter() - begun,
        }


def count(config: str, folder: str, begun: float) -> dict[str, float]:
    """Returns this process's seconds to round 1 of a run and to its end.

    Args:
      config: of the run.
      folder: that of the run.
      begun: when the process was started, in seconds since the epoch.
    """
    hardware.keep_compilations()
    records, first = Path(folder, "metrics.jsonl"), []
    clocks = lambda: (time.process_time(), time.time() - begun)  # noqa: E731

    def watch():
        while not (records.exists() and '"train"' in records.read_text()):
            time.sleep(0.01)
        first.extend(clocks())

    threading.Thread(target=watch, daemon=True).start()
    experiment.run(load_config(config), folder, progress=False)
    names = "CPU s to round 1", "s to round 1", "CPU s", "s"
    return dict(zip(names, (*first, *clocks()), strict=True))


def children() -> float:
    """Returns the CPU seconds of all processes that this one has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
