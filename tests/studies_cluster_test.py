"""Studies as jobs of submitit: on this machine, and on a SLURM of one node."""

import os
import shutil
import signal
import socket
import subprocess

import pytest

from sparsefl_jax.studies import launchers
from tests.launches import ROOT
from tests.refusals import refused
from tests.tiny_study import (
    ended,
    lines,
    processes_of,
    records,
    started,
    unbroken,
    until,
)

pytest.importorskip("submitit", reason="needs the extra 'cluster'")
ROUNDS = 400
SCRIPT = ROOT / "scripts/one_node_slurm.sh"
LIMIT = "--launcher_options=timeout_min=60"
BAD = [
    ("local", "timeout_mn=10", "timeout_mn"),
    ("local", "timeout_min=soon", "timeout_min"),
    ("local", "nodes=2", "one node"),
    ("slurm", "", "expected --launcher_options=timeout_min=MINUTES"),
    ("slurm", "timeout_min=5,slurm_prtition=gpu", "prtition"),
]


@pytest.mark.parametrize("launcher, options, said", BAD)
def test_options_that_are_refused(launcher, options, said, tmp_path, monkeypatch):
    (tmp_path / "srun").write_text("")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    submit = lambda: launchers.submitting(launcher, tmp_path, options)  # noqa: E731
    refused(submit, said)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return unbroken(tmp_path_factory.mktemp("unbroken"), ROUNDS)


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
def slurm(tmp_path_factory):
    """Returns the environment of a SLURM of one node with four CPUs."""
    if missing := [p for p in ("munged", "slurmctld", "slurmd") if not shutil.which(p)]:
        pytest.skip(f"no {missing[0]}: apt-get install slurm-wlm munge")
    if os.geteuid():
        pytest.skip("SLURM's daemons need root")
    folder = tmp_path_factory.mktemp("slurm")
    environment = {**os.environ, "PORT": str(_free_ports())}
    start = [SCRIPT, "start", folder]
    try:
        done = subprocess.run(start, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        yield {"SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=True)


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
    flags = "--launcher=slurm", LIMIT
    begun = started(study, workdir, *flags, rounds=ROUNDS, **environment)
    until(begun, lambda: lines(workdir) > least)
    return begun


@pytest.mark.slow
def test_local_jobs_that_are_preempted(whole, tmp_path):
    study, whole = whole
    begun = started(study, tmp_path, "--launcher=local", rounds=ROUNDS)
    until(begun, lambda: lines(tmp_path) > 5)
    for pid in processes_of(tmp_path, "submitit.core._submit"):
        os.kill(pid, signal.SIGUSR2)
    code, output = ended(begun)
    assert code == 0, output
    logs = [path.read_text() for path in (tmp_path / "jobs").glob("*_log.err")]
    assert any("preempted" in log and "ending after this" in log for log in logs)
    assert records(tmp_path) == whole


@pytest.mark.slow
def test_jobs_that_slurm_preempts_go_on(whole, slurm, tmp_path):
    study, whole = whole
    begun = submitted(study, tmp_path, slurm, 5)
    first, second = _queue(slurm)
    assert first.removesuffix("_0") == second.removesuffix("_1")  # an array
    _slurm(slurm, "scancel", "--signal=USR2", first)  # as before the limit of time
    _slurm(slurm, "scontrol", "requeue", second)
    code, output = ended(begun)
    assert code == 0 and "2 of 2 points done" in output, output
    log = (tmp_path / f"jobs/{first}_0_log.err").read_text()
    assert "ending after this segment" in log and "Requeued job" in log
    assert records(tmp_path) == whole


@pytest.mark.slow
def test_jobs_that_are_cancelled(whole, slurm, tmp_path):
    study, whole = whole
    begun = submitted(study, tmp_path, slurm, 5)
    first, _ = _queue(slurm)
    _slurm(slurm, "scancel", first)  # by somebody else
    code, output = ended(begun)
    assert code == 2 and "error: 1 of 2 points failed, first fedavg: job" in output
    assert list(tmp_path.glob("fedavg/seed_0/checkpoint/*"))
    begun = submitted(study, tmp_path, slurm, lines(tmp_path))
    begun.send_signal(signal.SIGTERM)  # by the study
    code, output = ended(begun)
    assert code == 143 and not _queue(slurm), output
    assert records(tmp_path) != whole
    code, output = ended(submitted(study, tmp_path, slurm, 5))
    assert code == 0, output
    assert records(tmp_path) == whole
