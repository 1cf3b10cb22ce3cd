"""CPU cores as devices; the memory of devices and of the host."""

import os
import subprocess
import sys

import jax
import pytest

from sparsefl_jax.system import hardware
from tests.refusals import refused


def run(code, **environment):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
def test_use_cpu_cores_counts_devices_and_keeps_what_is_set(monkeypatch):
    code = (
        "import sparsefl_jax, os; sparsefl_jax.use_cpu_cores(3); import jax;"
        "print(jax.device_count(), jax.config._read('jax_cpu_enable_async_dispatch'),"
        "os.environ['XLA_FLAGS'])"
    )
    monkeypatch.delenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", raising=False)
    set_before = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}
    done = run(code, **set_before)
    count, in_advance, *flags = done.stdout.split()
    assert (count, in_advance) == ("3", "False"), done.stderr
    set_before["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "true"
    assert run(code, **set_before).stdout.split()[1] == "True"
    assert flags[0] == "--xla_cpu_enable_fast_math=false"
    assert any("collective_call_terminate_timeout_seconds" in flag for flag in flags)


def test_use_cpu_cores_too_late_says_what_to_do(monkeypatch):
    jax.devices()
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with pytest.raises(RuntimeError, match="restart the kernel"):
        hardware.use_cpu_cores(2)


GROUPS = {  # version: what /proc/self/cgroup says, files below /sys/fs/cgroup
    "two": (
        "0::/a/b\n",
        {
            "memory.max": "max",
            "a/memory.max": "1000",
            "a/memory.current": "700",
            "a/memory.stat": "anon 400\ninactive_file 50\nactive_file 30\n",
            "a/b/memory.max": "max",
        },
    ),
    "one": (
        "5:cpu:/a\n4:memory:/a/b\n0::/\n",
        {
            "memory/a/memory.limit_in_bytes": "1000",
            "memory/a/memory.usage_in_bytes": "700",
            "memory/a/memory.stat": "inactive_file 1\nactive_file 2\n"
            "total_inactive_file 50\ntotal_active_file 30\n",
            "cpu/a/memory.limit_in_bytes": "5",
        },
    ),
}


@pytest.mark.parametrize("version", GROUPS)
def test_the_room_of_a_control_group_and_those_above_it(tmp_path, version):
    said, files = GROUPS[version]
    (tmp_path / "cgroup").write_text(said)
    for name, text in files.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(text)
    rooms = hardware._group_rooms(tmp_path, tmp_path / "sys")
    assert rooms == [1000 - 700 + 50 + 30]
    assert hardware._group_rooms(tmp_path / "absent", tmp_path / "sys") == []


def test_a_cache_without_a_home_directory_is_refused(monkeypatch):
    for name in ("SPARSEFL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    refused(hardware.cache_directory, "HOME or SPARSEFL_CACHE_DIR is not set")
