"""Starts the processes of a run for tests, and waits for what they write."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from sparsefl_jax.report import read_records
from tests.tiny import tiny_config

ROOT = Path(__file__).parent.parent
HELD = []  # sockets
SECONDS = 300  # then processes are killed; a busy machine needs many

# One of two processes: checks what they agree on, then runs the given configurations.
DRIVER = """
import json, sys
from pathlib import Path
from sparsefl_jax.system import membership, processes

port, index, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
membership.start(f"localhost:{port}", 2, index)

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from sparsefl_jax.runs import experiment, folder as run_folder
from sparsefl_jax.runs import records as files
from sparsefl_jax.system import hardware

assert processes.are_several() and processes.leads() == (index == 0)
assert hardware.local(jax.devices()) == jax.local_devices()
assert processes.most(index, 1 - index, 5) == (1, 1, 5)
assert processes.lead({"who": index}) == {"who": 0}
mesh = Mesh(np.array(jax.devices()), ("clients",))
rows = np.arange(8.0, dtype=np.float32).reshape(4, 2)
sharded = processes.put(rows, NamedSharding(mesh, P("clients")))
assert sharded.addressable_data(0).shape == (2, 2)
np.testing.assert_array_equal(processes.fetch({"a": sharded})["a"], rows)
processes.check_same("the weather", "fine")
try:
    processes.check_same("the weather", index)
except ValueError as error:
    assert "the weather of process 1 differs" in str(error)
else:
    raise AssertionError("not refused")

files.draw = lambda path: None  # plots take seconds
for source in sys.argv[4:]:
    config = run_folder.read_config(folder / source)
    summary = experiment.run(config, folder / f"{source}_two", progress=False)
    (folder / f"{source}_{index}.json").write_text(json.dumps(summary))
"""


def begin_all(arguments, devices=1):
    """Starts a Python process for each list of arguments, each with its CPU devices.

    `ended` kills those that still run after `SECONDS`.
    """
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    options = {"cwd": ROOT, "env": environment, "text": True}
    options |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    commands = ([sys.executable, *map(str, each)] for each in arguments)
    return [subprocess.Popen(command, **options) for command in commands]


def ended(begun):
    """Waits for processes; returns exit codes and standard errors, in order."""
    until = time.monotonic() + SECONDS
    try:
        outputs = [
            p.communicate(timeout=max(1, until - time.monotonic())) for p in begun
        ]
    finally:
        for process in begun:
            process.kill()
    return [process.returncode for process in begun], [error for _, error in outputs]


def free_port():
    """Reserves a port: this process holds it, and shares it with gRPC."""
    HELD.append(socket.socket())
    HELD[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    HELD[-1].bind(("", 0))
    return HELD[-1].getsockname()[1]


def wrote(config, path):
    """Leaves a configuration where `run_folder.read_config` looks for it."""
    path.mkdir()
    (path / "config.json").write_text(config.to_json_best_effort())


def records(path):
    return read_records(path / "metrics.jsonl")


def close(one, other):
    """Returns whether two nests of records are equal, floats to 1e-6."""

    def alike(a, b):
        approximately = {"rel": 1e-6, "abs": 1e-6, "nan_ok": True}
        return a == (pytest.approx(b, **approximately) if isinstance(b, float) else b)

    same = jax.tree.structure(one) == jax.tree.structure(other)
    return same and jax.tree.all(jax.tree.map(alike, one, other))


def configurations(folder):
    """Returns a method whose rows are masks, after a stage; and one with thresholds."""
    masked = tiny_config(folder)
    masked.algorithm = {"name": "nst", "density": 0.5}
    masked.first_stage = {"name": "fedavg", "num_rounds": 1, "cohort_size": 1}
    personal = tiny_config(folder)
    personal.algorithm = {"name": "spafl", "alpha": 0.1}
    personal.first_stage, personal.num_rounds = {}, 2
    return {"nst": masked, "spafl": personal}


def launched(path):
    """Starts both processes of a run that continues in a directory."""
    flags = ["--resume", f"--workdir={path}", f"--coordinator=localhost:{free_port()}"]
    return begin_all(
        ["launch.py", *flags, "--processes=2", f"--process_id={i}"] for i in (0, 1)
    )


def has_written(begun, path):
    """Waits until a run has written the record of a round."""
    metrics, until = path / "metrics.jsonl", time.monotonic() + SECONDS
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") > 1):
        assert time.monotonic() < until and begun[0].poll() is None, ended(begun)
        time.sleep(0.01)
