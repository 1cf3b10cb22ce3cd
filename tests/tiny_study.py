"""A study of two methods on 8 clients of 6-pixel images; starts it as a user would."""

import os
import subprocess
import sys
import time
from pathlib import Path

from sparsefl_jax.config import defaults
from sparsefl_jax.studies import sweep
from tests.launches import ROOT, SECONDS
from tests.tiny import write_images

METHODS = ("fedavg", "fedprox")
FILE = """
from pathlib import Path
from tests.tiny_study import points

def get_study(arg=""):
    return points(Path(__file__).parent, int(arg or 2))
"""


def points(folder, rounds=1, methods=METHODS, seeds=(0, 1)):
    """Returns the points of a study whose data `write_study` has written."""
    config = defaults.default_config()
    config.dataset, config.normalize = str(folder / "tiny.npz"), False
    config.num_clients, config.cohort_size, config.batch_size = 8, 3, 8
    config.model = {"name": "mlp", "widths": (16,)}
    config.num_rounds, config.eval_every = rounds, 1
    axes = {"algorithm.name": methods, "seed": seeds}
    return sweep(config, axes)


def write_study(folder):
    """Writes the file of a study and its data; returns the file."""
    write_images(folder / "tiny.npz", 240)
    (folder / "study.py").write_text(FILE)
    return folder / "study.py"


def started(study, workdir, *flags, rounds=2, **environment):
    """Starts `launch.py --study` in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "launch.py", f"--study={study}:{rounds}"]
        + [f"--workdir={workdir}", *flags],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process):
    """Waits for a study; returns its exit code and output."""
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return process.returncode, output


def lines(workdir, method="fedavg", seed=0):
    """Counts the records that a run has written."""
    path = workdir / method / f"seed_{seed}" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def until(process, true):
    """Waits until something is true of a study that runs."""
    end = time.monotonic() + SECONDS
    while not true():
        assert process.poll() is None and time.monotonic() < end, ended(process)
        time.sleep(0.02)


def records(workdir):
    """Returns the content of all runs' records, by run."""
    found = sorted(workdir.glob("*/seed_*/metrics.jsonl"))
    return {str(path.relative_to(workdir)): path.read_bytes() for path in found}


def unbroken(folder, rounds):
    """Returns the file of a study, and its records from a single process."""
    study = write_study(folder)
    code, output = ended(started(study, folder / "out", rounds=rounds))
    assert code == 0, output
    return study, records(folder / "out")


def processes_of(workdir, module=None):
    """Returns the processes of a study's points, also as local jobs; or of a module."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        ours = {str(workdir), str(workdir / "jobs")} & {*words}
        if ours and module in (None, *words):
            found.append(int(path.parent.name))
    return found
