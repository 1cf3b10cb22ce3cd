"""How fast this machine is: a measured matmul rate, and what earlier runs took."""

import contextlib
import hashlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax import devices as device_settings

# What changes neither the compiled round nor the size of the cohort's clients much.
_FREE = ("seed", "seeds", "partition_seed", "data_dir", "num_rounds")
_FREE += ("until", "checkpoint_minutes", "observe_rounds", "sinks", "init_from")
_FREE += ("init_what", "final_learning_rate", "lr_horizon", "lr_delay")
_KEPT = 200  # configurations; the oldest make room


def matmul_rate(size: int = 3072, seconds: float = 1.0, devices=None) -> float:
    """FLOP/s of square float32 matmuls, one on every device at the same time.

    Args:
      size: rows of the matrices.
      seconds: how long to measure, beside the compilation.
      devices: default all.

    Returns:
      The rate of all devices together, of the best repetition.

    Example:
      >>> matmul_rate(64, 0.01) > 0
      True
    """
    mesh = jax.sharding.Mesh(np.array(devices or jax.devices()), ("clients",))
    spec = jax.sharding.PartitionSpec("clients")

    def chain(a):
        return jax.lax.fori_loop(0, 4, lambda _, b: (a[0] @ b) * 1e-3, a[0])[None]

    run = jax.jit(jax.shard_map(chain, mesh=mesh, in_specs=spec, out_specs=spec))
    a = jax.device_put(
        jnp.ones((mesh.size, size, size), jnp.float32),
        jax.sharding.NamedSharding(mesh, spec),
    )
    jax.block_until_ready(run(a))
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        jax.block_until_ready(run(a))
        best = min(best, time.perf_counter() - start)
    return 4 * 2 * size**3 * mesh.size / best


def digest(config) -> str:
    """Names what a run's speed depends on: configuration, devices, version of JAX.

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


def measured(segments: list[dict]) -> dict:
    """What a run's `timing.jsonl` tells: a round's seconds and those of compiling.

    Args:
      segments: the lines of `timing.jsonl` of one process, in order.

    Returns:
      `{'stages': [{'compile_seconds': float | None, 'seconds_per_round': float}, ...]}`
      with the evaluations in the rounds' time. A stage of one segment does not tell its
      compilation from its rounds: both are in `seconds_per_round` then.

    Example:
      >>> measured([{'stage': 0, 'round': 2, 'seconds': 9.0, 'rounds_per_second': 0.22},
      ...           {'stage': 0, 'round': 4, 'seconds': 11.0, 'rounds_per_second': 1}])
      {'stages': [{'compile_seconds': 7.0, 'seconds_per_round': 1.0}]}
    """
    spans, before = {}, {"seconds": 0.0}
    for line in segments:
        own = spans.setdefault(line["stage"], [])
        rounds = line["round"] - (before["round"] if own else 0)
        own.append((rounds, line["seconds"] - before["seconds"]))
        before = line
    told = []
    for _, own in sorted(spans.items()):
        (rounds, first), later = own[0], own[1:]
        each = statistics.median(seconds / n for n, seconds in later or own)
        compiling = max(0.0, first - rounds * each) if later else None
        told.append({"compile_seconds": compiling, "seconds_per_round": each})
    return {"stages": told}


def remember(name: str, value: dict) -> None:
    """Keeps what a run took under the `digest` of its configuration.

    The file is replaced as a whole. A directory that can not be written is no error:
    the next plan knows less, no more.

    Args:
      name: from `digest`.
      value: from `measured`.
    """
    with contextlib.suppress(OSError):
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
    """What `remember` kept under this name; None if nothing, or nothing readable."""
    return _read(_path()).get(name)


def _path() -> Path:
    return device_settings.cache_directory() / "timings.json"


def _read(path: Path) -> dict:
    """The file's entries that have the right form; a damaged file holds none."""
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
