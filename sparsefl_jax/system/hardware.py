"""CPU cores as JAX devices, memory of devices and host, and the compilation cache."""

import contextlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from sparsefl_jax.core.check import blame, check

# If devices reach a collective further apart than this, XLA:CPU ends the process, or,
# between processes, the collective fails.
_TIMEOUTS = (
    "--xla_cpu_collective_timeout_seconds=100000",
    "--xla_cpu_collective_call_terminate_timeout_seconds=100000",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1000",
)
UNOPTIMIZED = {"xla_backend_optimization_level": 0}  # to compile what runs once
_COUNT = "--xla_force_host_platform_device_count"


def use_cpu_cores(count: int | None = None) -> None:
    """Makes every CPU core a JAX device, so that each trains one client at a time.

    Call it before anything else of JAX. It does not affect accelerators. It also turns
    off asynchronous dispatch, because queued programs are a suspected cause of runs
    that hang. Settings in `XLA_FLAGS` and `JAX_CPU_ENABLE_ASYNC_DISPATCH` take
    precedence.

    Args:
      count: the number of devices; None for the cores that this process may use.

    Raises:
      ValueError: count is below 1.
      RuntimeError: JAX has already started, so the setting would come too late.

    Example:
      >>> use_cpu_cores()  # doctest: +SKIP
    """
    if count is None:
        count = len(cores())
    check("count", count, "[1, inf)")
    flags = os.environ.get("XLA_FLAGS", "").split()
    names = {flag.partition("=")[0] for flag in flags}
    wanted = (f"{_COUNT}={count}", *_TIMEOUTS)
    missing = [flag for flag in wanted if flag.partition("=")[0] not in names]
    if missing and has_started():
        raise RuntimeError(
            "use_cpu_cores() came after JAX had started; call it first (in a notebook: "
            "restart the kernel)"
        )
    os.environ["XLA_FLAGS"] = " ".join([*flags, *missing])
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        import jax  # only now, with the flags set

        # Two long runs hung at a collective. A debugger showed in one of them that all
        # 32 slots of a device's queue were taken, so it never reached the collective.
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def flags() -> list[str]:
    """Returns the flags in XLA_FLAGS, sorted, without those of `use_cpu_cores`."""
    words = os.environ.get("XLA_FLAGS", "").split()
    return sorted(flag for flag in words if not flag.startswith((_COUNT, *_TIMEOUTS)))


def cores() -> list[int]:
    """Returns the numbers of the CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))


def has_started() -> bool:
    """Returns whether JAX has started its devices, after which no flag is read."""
    import jax

    count = jax.config.jax_num_cpu_devices
    try:  # JAX refuses to change this setting once it has started
        jax.config.update("jax_num_cpu_devices", count + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", count)
    return False


def processor() -> str:
    """Returns the model of the CPU, whose vector units decide the order of sums."""
    return _proc("cpuinfo", "model name") or platform.processor()


def _proc(file: str, name: str) -> str:
    """Returns the first field of a name in a file of /proc; '' if there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc", file).read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def memory(devices: Sequence) -> int:
    """Returns the memory of devices together in bytes; for CPUs, that of the host.

    Devices of other processes are assumed to be like those of this one.

    Args:
      devices: JAX devices of one kind.

    Example:
      >>> import jax
      >>> memory(jax.devices()) > 0
      True
    """
    limit = _memory_statistic(devices, "bytes_limit")
    return host_memory() if limit is None else limit


def local(devices: Sequence) -> list:
    """Returns the devices that belong to this process; only they have statistics.

    Example:
      >>> import jax
      >>> local(jax.devices()) == jax.devices()
      True
    """
    import jax

    index = jax.process_index()
    return [device for device in devices if device.process_index == index]


def _memory_statistic(devices, name: str) -> int | None:
    """Sums a memory statistic over devices; None if they do not report it."""
    devices, local_devices = list(devices), local(devices)
    values = [(device.memory_stats() or {}).get(name) for device in local_devices]
    return None if None in values else sum(values) * len(devices) // len(values)


def host_memory() -> int:
    """Returns the host's available memory in bytes, within its control groups."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = _proc("meminfo", "MemAvailable").removesuffix(" kB")
    return min([1024 * int(free) if free else physical, *_group_rooms()])


def _group_rooms(proc="/proc/self", root="/sys/fs/cgroup") -> list[int]:
    """Returns the bytes left in each control group of this process, version 1 or 2.

    A group's page cache counts as free, because the system drops it before it refuses
    memory.
    """
    rooms = []
    with contextlib.suppress(OSError):
        for line in (Path(proc) / "cgroup").read_text().splitlines():
            _, kind, path = line.split(":", 2)
            if kind and "memory" not in kind.split(","):
                continue
            names = ("limit_in_bytes", "usage_in_bytes") if kind else ("max", "current")
            group = Path(root, "memory" if kind else "", path.lstrip("/"))
            for folder in (group, *group.parents):  # those above the root have no files
                with contextlib.suppress(OSError, ValueError):
                    limit, used = (
                        int((folder / f"memory.{name}").read_text()) for name in names
                    )
                    lines = (folder / "memory.stat").read_text().splitlines()
                    stats = dict(line.split() for line in lines)
                    # Version 1 has the sums over subgroups under another name.
                    cached = sum(
                        int(stats.get(f"total_{name}", stats.get(name, 0)))
                        for name in ("inactive_file", "active_file")
                    )
                    rooms.append(max(limit - used + cached, 0))
    return rooms


def peak_memory(devices: Sequence) -> dict[str, int | None]:
    """Returns the peak memory so far in bytes, of `devices` and of the `process`.

    Devices of other processes are assumed to be like those of this one.

    Args:
      devices: JAX devices of one kind.

    Returns:
      `devices`, their sum or None if they do not report it, and `process`, None where
      there is no /proc, as on macOS.

    Example:
      >>> import jax
      >>> peak_memory(jax.devices())["process"] > 10_000_000
      True
    """
    peak = _proc("self/status", "VmHWM").removesuffix(" kB")
    return {
        "devices": _memory_statistic(devices, "peak_bytes_in_use"),
        "process": 1024 * int(peak) if peak else None,
    }


def cache_directory() -> Path:
    """Returns the folder that keeps decoded data and compiled programs between runs.

    It is `SPARSEFL_CACHE_DIR`, `XDG_CACHE_HOME/sparsefl_jax` or
    `~/.cache/sparsefl_jax`.

    Raises:
      ValueError: the environment sets none of them and there is no home directory.
    """
    if folder := os.environ.get("SPARSEFL_CACHE_DIR"):
        return Path(folder)
    with blame("HOME or SPARSEFL_CACHE_DIR is not set"):
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sparsefl_jax"


def keep_compilations() -> None:
    """Turns on JAX's persistent compilation cache in the user's cache directory."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
        # Together, the many small programs before round 1 take longer than a large one.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
