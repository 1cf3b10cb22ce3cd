"""How fast this machine is: a measured matmul rate, and what earlier runs took."""

import contextlib
import hashlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.system import hardware

# What changes neither the compiled round nor the size of the cohort's clients much.
_FREE = ("seed", "seeds", "partition_seed", "data_dir", "num_rounds")
_FREE += ("until", "checkpoint_minutes", "observe_rounds", "sinks", "init_from")
_FREE += ("init_what", "final_learning_rate", "lr_horizon", "lr_delay")
_WAITING = "/sparsefl_jax/waiting_for_compilation"
_COMPILING = {
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
    _WAITING,
}
_KEPT = 200  # configurations; the oldest make room


def matmul_rate(
    size: int = 3072, seconds: float = 1.0, devices=None, dtype: str = "float32"
) -> float:
    """Measures the FLOP/s of square matmuls that run on every device at once.

    Args:
      size: rows of the matrices.
      seconds: how long to measure, beside the compilation.
      devices: default all. Of several processes this one alone measures, on its own,
        and the rest count as these.
      dtype: of the matrices.

    Returns:
      The rate of all devices together, of the best repetition.

    Example:
      >>> matmul_rate(64, 0.01) > 0
      True
    """
    devices = list(devices or jax.devices())

    def chain(a):
        return jax.lax.fori_loop(0, 4, lambda _, b: (a @ b) * 1e-3, a)

    own = hardware.local(devices)
    best = best_seconds(chain, (size, size), own, seconds, dtype)
    return 4 * 2 * size**3 * len(devices) / best


def best_seconds(
    function: Callable, shape: tuple[int, ...], devices, seconds: float, dtype="float32"
) -> float:
    """Measures the shortest time of a function that runs on all devices at once.

    Args:
      function: of ones of `shape` and `dtype`, one array for each device.
      shape, dtype: of that array.
      devices: this process's own.
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


def digest(config) -> str:
    """Hashes what a run's speed depends on: configuration, devices, JAX version.

    Seeds, numbers of rounds, schedules and what is logged do not count.

    Args:
      config: a `ConfigDict`, or a plain dict of one.

    Example:
      >>> a, b = {'seed': 0, 'epochs': 1}, {'seed': 7, 'epochs': 1}
      >>> digest(a) == digest(b), digest(a) == digest({'epochs': 2})
      (True, False)
    """
    fields = config if isinstance(config, dict) else config.to_dict()
    fields = {k: v for k, v in fields.items() if k not in _FREE}
    machine = [jax.devices()[0].device_kind, jax.device_count(), jax.__version__]
    text = json.dumps([fields, machine], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Counts the time within as compilation, as `compiling` yields it."""
    begin = time.time()
    try:
        yield
    finally:
        jax.monitoring.record_event_time_span(_WAITING, begin, time.time())


@contextlib.contextmanager
def compiling() -> Iterator[Callable[[], float]]:
    """Counts the seconds that this thread spends on tracing and compilation.

    That is tracing, lowering, and compiling or loading from the cache, and `waiting`
    for another thread that does so; what lies inside one another counts once.

    Yields:
      `taken()`, the seconds since the last call.

    Example:
      >>> with compiling() as taken:
      ...     _ = jax.jit(lambda x: x + 1.5)(2.0)
      ...     taken() > 0, taken()
      (True, 0)
    """
    spans, thread = [], threading.get_ident()

    def listen(event, start, end, **_):
        if event not in _COMPILING or threading.get_ident() != thread:
            return
        while spans and spans[-1][1] > start:  # inner ones end before the outer one
            start = min(start, spans.pop()[0])
        spans.append((start, end))

    def taken():
        seconds = sum(end - start for start, end in spans)
        spans.clear()
        return seconds

    jax.monitoring.register_event_time_span_listener(listen)
    try:
        yield taken
    finally:
        jax.monitoring.unregister_event_time_span_listener(listen)


def measured(segments: list[dict]) -> dict:
    """Reads a round's seconds and the compilation time from `timing.jsonl`.

    Args:
      segments: the lines of `timing.jsonl` in order.

    Returns:
      `{'stages': [{'compile_seconds': float, 'seconds_per_round': float}, ...]}` with
      the evaluations in the rounds' time, the median over segments.

    Example:
      >>> measured([
      ...     {'stage': 0, 'round': 2, 'seconds': 9.0, 'compile_seconds': 7.0},
      ...     {'stage': 0, 'round': 4, 'seconds': 11.0, 'compile_seconds': 0.0},
      ... ])
      {'stages': [{'compile_seconds': 7.0, 'seconds_per_round': 1.0}]}
    """
    stages, before = {}, {"seconds": 0.0}
    for line in segments:
        compile_seconds, each = stages.setdefault(line["stage"], ([], []))
        rounds = line["round"] - (before["round"] if each else 0)
        compile_seconds.append(line.get("compile_seconds", 0.0))
        seconds = line["seconds"] - before["seconds"] - compile_seconds[-1]
        each.append(max(0.0, seconds) / rounds)
        before = line
    told = [
        {"compile_seconds": sum(c), "seconds_per_round": statistics.median(each)}
        for _, (c, each) in sorted(stages.items())
    ]
    return {"stages": told}


def remember(name: str, value: dict) -> None:
    """Stores the times of a run under the `digest` of its configuration.

    The file is replaced as a whole. A directory that cannot be written is no error:
    the next plan knows less, no more.

    Args:
      name: from `digest`.
      value: from `measured`.
    """
    with contextlib.suppress(OSError, ValueError):
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {k: v for k, v in _read(path).items() if k != name} | {name: value}
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with open(handle, "w") as file:
                json.dump(dict(list(kept.items())[-_KEPT:]), file, indent=1)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)


def recall(name: str) -> dict | None:
    """Returns the times stored under a digest, or None."""
    return _read(_path()).get(name)


def _path() -> Path:
    return hardware.cache_directory() / "timings.json"


def _read(path: Path) -> dict:
    """Returns the valid entries of the file; none if it is damaged."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    entries = entries if isinstance(entries, dict) else {}
    return {name: entry for name, entry in entries.items() if _right(entry)}


def _right(entry) -> bool:
    stages = entry.get("stages") if isinstance(entry, dict) else None
    return isinstance(stages, list) and all(
        isinstance(stage, dict)
        and isinstance(stage.get("seconds_per_round"), float | int)
        and isinstance(stage.get("compile_seconds"), float | int | None)
        for stage in stages
    )
