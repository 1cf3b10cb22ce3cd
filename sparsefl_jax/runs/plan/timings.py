"""Measures this machine: its matmul rate, and the seconds that compilation takes."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.system import hardware

_WAITING = "/sparsefl_jax/waiting_for_compilation"
_COMPILING = {
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
    _WAITING,
}


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


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Counts the time within as compilation, as `compiling` yields it."""
    begin = time.time()
    try:
        yield
    finally:
        waited(begin)


def waited(begin: float) -> None:
    """Counts the time since `begin`, by `time.time`, as compilation."""
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
