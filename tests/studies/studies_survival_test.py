"""A study that is killed, asked to end or started twice comes to the same records.

So do its jobs of submitit on a SLURM of one node.
"""

import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from sparsefl_jax.studies import places
from sparsefl_jax.studies import points as on_disk
from tests.launches import ROOT
from tests.tiny_study import (
    ended,
    lines,
    processes_of,
    records,
    started,
    unbroken,
    until,
    write_study,
)

pytestmark = pytest.mark.slow
ROUNDS = 400
JOBS = [[], ["--jobs=2"]]
SLURM = "--slurm=timeout_min=60"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return unbroken(tmp_path_factory.mktemp("unbroken"), ROUNDS)


@pytest.fixture(scope="module")
def submitit():
    return pytest.importorskip("submitit", reason="needs the extra 'cluster'")


@pytest.mark.parametrize(
    "flags, orphans", [([], False), (["--jobs=2"], False), (["--jobs=2"], True)]
)
def test_killed_and_started_again(flags, orphans, whole, tmp_path):
    """The points of `--jobs` go on without the study, or are killed with it."""
    study, whole = whole
    killed = started(study, tmp_path / "out", *flags, rounds=ROUNDS)
    until(killed, lambda: lines(tmp_path / "out") > 5)
    killed.kill()
    killed.wait()
    if not orphans:
        for pid in processes_of(tmp_path / "out"):
            os.kill(pid, signal.SIGKILL)
    left = sum(map(len, records(tmp_path / "out").values()))
    assert left < sum(map(len, whole.values()))
    code, output = ended(started(study, tmp_path / "out", *flags, rounds=ROUNDS))
    assert code == 0 and "2 of 2 points done" in output, output
    assert records(tmp_path / "out") == whole
    assert not processes_of(tmp_path / "out")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("flags", JOBS, ids=["here", "jobs"])
def test_asked_to_end_and_started_again(flags, signum, whole, tmp_path):
    study, whole = whole
    asked = started(study, tmp_path / "out", *flags, rounds=ROUNDS)
    until(asked, lambda: lines(tmp_path / "out") > 5)
    os.killpg(asked.pid, signum)  # as a terminal does
    code, output = ended(asked)
    assert code == 128 + signum and "the same command goes on" in output, output
    assert "Traceback" not in output and not processes_of(tmp_path / "out")
    assert list((tmp_path / "out").glob("fedavg/seed_0/checkpoint.npz"))
    assert not list((tmp_path / "out").glob("*/seed_1"))  # nothing has run on
    assert not (tmp_path / "out/failed").exists()
    code, output = ended(started(study, tmp_path / "out", *flags, rounds=ROUNDS))
    assert code == 0, output
    assert records(tmp_path / "out") == whole


@pytest.mark.parametrize("flags", JOBS, ids=["here", "jobs"])
def test_a_point_that_diverges(flags, tmp_path):
    study = write_study(tmp_path)
    text = study.read_text() + (
        "    found[0].config.optimizer.learning_rate = 1e30\n    return found\n"
    )
    study.write_text(text.replace("return points(", "found = points("))
    code, output = ended(started(study, tmp_path / "out", *flags))
    last = output.splitlines()[-1]
    assert code == 2 and last.startswith("error: 1 of 2 points failed, first fedavg: ")
    assert "Traceback" not in output
    assert list(records(tmp_path / "out"))[-2:] == [
        f"fedprox/seed_{seed}/metrics.jsonl" for seed in (0, 1)
    ]
    assert (tmp_path / "out/fedprox/seed_1/summary.json").exists()


def _free_ports() -> int:
    """Returns the first of two ports that are free now."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("", port + 1))
                return port
            except OSError:
                continue


@pytest.fixture(scope="module")
def slurm(tmp_path_factory, submitit):
    """Returns the environment of a SLURM of one node with four CPUs."""
    if missing := [p for p in ("munged", "slurmctld", "slurmd") if not shutil.which(p)]:
        pytest.skip(f"no {missing[0]}: apt-get install slurm-wlm munge")
    if os.geteuid():
        pytest.skip("SLURM's daemons need root")
    folder = tmp_path_factory.mktemp("slurm")
    environment = {**os.environ, "PORT": str(_free_ports())}
    script = ROOT / "scripts/one_node_slurm.sh"
    start = [script, "start", folder]
    try:
        done = subprocess.run(start, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        yield {"SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([script, "stop", folder], check=True)


def _queue(environment) -> list[str]:
    """Returns the jobs in SLURM's queue."""
    command = ["squeue", "--noheader", "--array", "--format=%i"]
    found = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )
    return sorted(found.stdout.split())


def _slurm(environment, *command) -> None:
    subprocess.run(command, env={**os.environ, **environment}, check=True)


def submitted(study, workdir, environment, least):
    """Starts a study on SLURM, and waits for more than some records."""
    begun = started(study, workdir, SLURM, rounds=ROUNDS, **environment)
    until(begun, lambda: lines(workdir) > least)
    return begun


def test_a_job_that_is_preempted_goes_on(whole, submitit, tmp_path, monkeypatch):
    """By submitit's executor for this machine, which preempts as that for SLURM."""
    study, whole = whole
    on_disk.write(tmp_path, on_disk.load(f"{study}:{ROUNDS}"))
    monkeypatch.setenv("PYTHONPATH", places.environment()["PYTHONPATH"])
    executor = submitit.AutoExecutor(folder=tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=60)
    job = executor.submit(places._RunPoint(), str(tmp_path), "fedavg")
    while lines(tmp_path) <= 5:
        assert not job.done(), job.stderr()
        time.sleep(0.02)
    for pid in processes_of(tmp_path, "submitit.core._submit"):
        os.kill(pid, signal.SIGUSR2)
    job.result()
    assert "preempted" in job.stderr() and "ending after this" in job.stderr()
    own = {name: text for name, text in whole.items() if name.startswith("fedavg/")}
    assert records(tmp_path) == own


def test_jobs_that_slurm_preempts_go_on(whole, slurm, tmp_path):
    study, whole = whole
    begun = submitted(study, tmp_path, slurm, 5)
    first, second = _queue(slurm)
    assert first.removesuffix("_0") == second.removesuffix("_1")  # an array
    _slurm(slurm, "scancel", "--signal=USR2", first)  # as before the limit of time
    _slurm(slurm, "scontrol", "requeue", second)
    code, output = ended(begun)
    assert code == 0 and "2 of 2 points done" in output, output
    logs = tmp_path.glob(f"jobs/{first}_0_log.*")  # submitit's own lines go to .out
    log = "".join(path.read_text() for path in logs)
    assert "ending after this segment" in log and "Requeued job" in log
    assert records(tmp_path) == whole


def test_jobs_that_are_cancelled(whole, slurm, tmp_path):
    study, whole = whole
    begun = submitted(study, tmp_path, slurm, 5)
    first, _ = _queue(slurm)
    _slurm(slurm, "scancel", first)  # by somebody else
    code, output = ended(begun)
    assert code == 2 and "error: 1 of 2 points failed, first fedavg: job" in output
    assert list(tmp_path.glob("fedavg/seed_0/checkpoint.npz"))
    begun = submitted(study, tmp_path, slurm, lines(tmp_path))
    begun.send_signal(signal.SIGTERM)  # by the study
    code, output = ended(begun)
    assert code == 143 and not _queue(slurm), output
    assert records(tmp_path) != whole
    code, output = ended(submitted(study, tmp_path, slurm, 5))
    assert code == 0, output
    assert records(tmp_path) == whole
