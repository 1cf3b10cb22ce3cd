"""Devices: CPU cores as JAX devices, and a compilation cache that outlives a run."""

import contextlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from sparsefl_jax.core.validate import at_least

# XLA:CPU ends the process when devices meet at a collective further apart than this;
# between processes the collective fails.
_PATIENCE = (
    "--xla_cpu_collective_timeout_seconds=100000",
    "--xla_cpu_collective_call_terminate_timeout_seconds=100000",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1000",
)
_COUNT = "--xla_force_host_platform_device_count"


def use_cpu_cores(count: int | None = None) -> None:
    """Makes every CPU core a JAX device, so that each trains one client at a time.

    Call it before JAX does anything; on machines with an accelerator it changes
    nothing there. A call returns when its program has run: programs that wait in line
    may be what made runs stand still. What `XLA_FLAGS` and
    `JAX_CPU_ENABLE_ASYNC_DISPATCH` set stays.

    Args:
      count: number of devices; None takes the cores that this process may use.

    Raises:
      ValueError: if count is below 1.
      RuntimeError: if JAX has started, so that the setting would come too late.

    Example:
      >>> use_cpu_cores()  # doctest: +SKIP
    """
    if count is None:
        affinity = getattr(os, "sched_getaffinity", None)  # Linux only
        count = len(affinity(0)) if affinity else os.cpu_count()
    at_least("count", count, 1)
    flags = os.environ.get("XLA_FLAGS", "").split()
    names = {flag.partition("=")[0] for flag in flags}
    wanted = (f"{_COUNT}={count}", *_PATIENCE)
    missing = [flag for flag in wanted if flag.partition("=")[0] not in names]
    if missing and _started():
        raise RuntimeError("use_cpu_cores() came after JAX had started; call it first")
    os.environ["XLA_FLAGS"] = " ".join([*flags, *missing])
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        import jax  # only now, with the flags set

        # Two long runs stood still at a collective. In one, looked at with a debugger,
        # all 32 places of a device were taken, so that it never came to meet the other.
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def _started() -> bool:
    import sys

    if "jax" not in sys.modules:
        return False
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def processor() -> str:
    """The model of the CPU, whose vector units decide how sums are ordered."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def memory(devices: Sequence) -> int:
    """Bytes that these devices have together; of CPUs what the host has available.

    Devices of other processes count as those of this one.

    Args:
      devices: a sequence of JAX devices of one kind.

    Example:
      >>> import jax
      >>> memory(jax.devices()) > 0
      True
    """
    limit = _told(devices, "bytes_limit")
    return host_memory() if limit is None else limit


def local(devices: Sequence) -> list:
    """Those of some devices that this process has; only these tell of themselves.

    Example:
      >>> import jax
      >>> local(jax.devices()) == jax.devices()
      True
    """
    import jax

    return [each for each in devices if each.process_index == jax.process_index()]


def _told(devices, name: str) -> int | None:
    """A memory statistic of devices together, None where they do not tell it."""
    devices, own = list(devices), local(devices)
    each = [(device.memory_stats() or {}).get(name) for device in own]
    return None if None in each else sum(each) * len(devices) // len(own)


def host_memory() -> int:
    """Bytes that the host has available, and its control group (a container) allows."""
    rooms = _group_rooms()
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return min([1024 * int(line.split()[1]), *rooms])
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([whole, *rooms])


def _group_rooms(proc="/proc/self", root="/sys/fs/cgroup") -> list[int]:
    """What the control groups of this process leave it, of both versions, in bytes.

    Files in a group's page cache are given up before anything is refused.
    """
    rooms = []
    with contextlib.suppress(OSError):
        for line in (Path(proc) / "cgroup").read_text().splitlines():
            _, kind, path = line.split(":", 2)
            if kind and "memory" not in kind.split(","):
                continue
            names = ("limit_in_bytes", "usage_in_bytes") if kind else ("max", "current")
            top = Path(root, "memory" if kind else "")
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):
                    limit, used = (
                        int((folder / f"memory.{name}").read_text()) for name in names
                    )
                    lines = (folder / "memory.stat").read_text().splitlines()
                    told = dict(line.split() for line in lines)
                    # Version 1 adds those of the groups below under another name.
                    cached = sum(
                        int(told.get(f"total_{name}", told.get(name, 0)))
                        for name in ("inactive_file", "active_file")
                    )
                    rooms.append(max(limit - used + cached, 0))
                if folder == top:
                    break
    return rooms


def peak_memory(devices: Sequence) -> dict[str, int | None]:
    """The most bytes so far: `devices` together where they tell it, and the `process`.

    Devices of other processes count as those of this one.

    Args:
      devices: a sequence of JAX devices of one kind.

    Example:
      >>> import jax
      >>> peak_memory(jax.devices())["process"] > 10_000_000
      True
    """
    return {
        "devices": _told(devices, "peak_bytes_in_use"),
        "process": _peak_of_process(),
    }


def _peak_of_process() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak


def cache_directory() -> Path:
    """Where decoded data and compiled programs are kept between runs.

    Raises:
      ValueError: the environment names no place, not even a home directory.
    """
    if own := os.environ.get("SPARSEFL_CACHE_DIR"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "sparsefl_jax"
    try:
        return Path.home() / ".cache" / "sparsefl_jax"
    except RuntimeError:
        raise ValueError(
            "there is no home directory, expected HOME or SPARSEFL_CACHE_DIR to be set"
        ) from None


def keep_compilations() -> None:
    """Turns on JAX's persistent compilation cache in the user's cache directory."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
        # The many small programs before round 1 take longer together than one large.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
