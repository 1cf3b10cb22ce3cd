"""JAX devices to compile for, on machines without these accelerators.

A TPU is described by libtpu (extra `aot-tpu`), a GPU by its specification below and
XLA:GPU (extra `aot-gpu`). Programs can be compiled for these devices, but not run.
"""

import os
import re
from typing import NamedTuple

from sparsefl_jax.core.check import one_line
from sparsefl_jax.core.extras import import_extra
from sparsefl_jax.system import hardware


class Target(NamedTuple):
    """Devices to compile for."""

    name: str
    devices: list  # of JAX, all of them
    memory: int  # bytes of a device
    clock: float | None  # Hz of the compiler's estimated cycles; None: not known


class _TPU(NamedTuple):
    """A generation of TPUs, a chip's memory shared between its devices."""

    memory: int  # bytes of a chip
    clock: float | None  # Hz: peak bfloat16 FLOP/s over those of a cycle
    axes: int  # of a topology


class _GPU(NamedTuple):
    """A GPU, by the manufacturer's specification."""

    name: str
    memory: int  # bytes
    bandwidth: int  # bytes per second
    l2: int = 50 * 2**20  # bytes


# Cloud TPU's pages on its generations, 2026-11. The clock is the peak over the FLOPs of
# a cycle: 2 for each cell of the chip's matrix units.
_TPUS = {
    "v4": _TPU(32 * 2**30, 275e12 / (8 * 2 * 128**2), 3),
    "v5e": _TPU(16 * 2**30, 197e12 / (4 * 2 * 128**2), 2),
    "v5p": _TPU(95 * 2**30, 459e12 / (8 * 2 * 128**2), 3),
    "v6e": _TPU(32 * 2**30, 918e12 / (4 * 2 * 256**2), 2),
    "tpu7x": _TPU(192 * 2**30, None, 3),
}
_GPUS = {  # NVIDIA's data sheets of the SXM modules
    "h100": _GPU("NVIDIA H100 80GB HBM3", 80 * 10**9, 3_350 * 10**9),
    "h200": _GPU("NVIDIA H200", 141 * 10**9, 4_800 * 10**9),
}
# Of compute capability 9.0, CUDA C++ Programming Guide, table of technical
# specifications; cores and clock are those of both SXM modules.
_HOPPER = """
gpu_device_info {{
  cuda_compute_capability {{ major: 9 minor: 0 }}
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {l2}
  device_memory_size: {memory}
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 8 patch: 0 }}
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{name}"
"""
_PACKAGES = {
    "aot-tpu": ("libtpu",),
    "aot-gpu": ("jax_cuda12_plugin", "nvidia.cuda_nvcc"),
}
EXPECTED = "a TPU's topology such as v5e:2x2, v4:2x2x1 or v6e:8x8, or h100:4 or h200:8"


def make(name: str) -> Target:
    """Returns the devices of a target, on a machine that need not have them.

    Call it before anything else that uses JAX: it keeps JAX on the CPU.

    Args:
      name: a generation of TPUs (v4, v5e, v5p, v6e, tpu7x) and a topology that it has,
        or 1x1 or 1x1x1 for one device of it; or `h100` or `h200` and their number.

    Raises:
      ValueError: there is no such target, or the extra for it is not installed.

    Example:
      >>> make("v9:2x2")
      Traceback (most recent call last):
        ...
      sparsefl_jax.UserError: target='v9:2x2', expected a TPU's topology such as
      v5e:2x2, v4:2x2x1
      or v6e:8x8, or h100:4 or h200:8
    """
    kind, _, topology = name.partition(":")
    sides = topology.split("x")
    whole = all(re.fullmatch("[1-9][0-9]*", side) for side in sides)
    axes = _TPUS[kind].axes if kind in _TPUS else 1
    if kind not in (*_TPUS, *_GPUS) or len(sides) != axes or not whole:
        raise _unknown(name)
    extra = "aot-tpu" if kind in _TPUS else "aot-gpu"
    for package in _PACKAGES[extra]:
        import_extra(package, extra, f"target={name!r}")
    _stay_on_cpu()
    make_devices = _tpus if kind in _TPUS else _gpus
    return make_devices(name, kind, sides)


def _unknown(name: str, reason: str = "") -> ValueError:
    return ValueError(f"target={name!r}{reason}, expected {EXPECTED}")


def _stay_on_cpu() -> None:
    """Keeps JAX from starting an accelerator, and libtpu from looking for one."""
    import jax

    if not hardware.has_started():
        jax.config.update("jax_platforms", "cpu")
    quiet = {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # otherwise a lock file refuses a second one
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # of a host; a topology has its own
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
    for variable, value in quiet.items():
        os.environ.setdefault(variable, value)


def _tpus(name: str, kind: str, sides: list[str]) -> Target:
    tpu = _TPUS[kind]
    one = set(sides) == {"1"}  # libtpu knows no topology of a single chip
    whole = ["2", "2", "1"][: tpu.axes] if one else sides
    topology = f"{kind}:{'x'.join(whole)}"
    found = _described(name, platform="tpu", topology_name=topology)
    chips = len({tuple(device.coords) for device in found})
    each = len(found) // chips
    return Target(name, found[:each] if one else found, tpu.memory // each, tpu.clock)


def _gpus(name: str, kind: str, sides: list[str]) -> Target:
    gpu = _GPUS[kind]
    config = _HOPPER.format(**gpu._asdict())
    found = _described(
        name, platform="cuda", topology=f"1x1x{sides[0]}", target_config=config
    )
    return Target(name, found, gpu.memory, None)


def _described(name: str, **topology: str) -> list:
    """Returns the devices of a topology as JAX describes it."""
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc(**topology).devices
    except Exception as error:  # of many kinds
        raise _unknown(name, f" ({one_line(error)})") from None
