"""A run that stops anywhere resumes as if it had not; nothing is overwritten."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.runs import checkpoint, experiment, simulate
from sparsefl_jax.runs.checkpoint import Best, Snapshot
from sparsefl_jax.simulation import placement
from sparsefl_jax.system import interrupt
from tests.tiny import tiny_config

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SAME = "metrics.jsonl", "partition.npy", "masks/*"


@pytest.fixture
def config(tmp_path):
    """Configures a run of ten rounds that saves every segment of one round."""
    config = tiny_config(tmp_path)
    config.algorithm = {"name": "nst", "density": 0.5}  # with clients that keep state
    config.first_stage = {"name": "fedavg", "num_rounds": 1, "cohort_size": 1}
    config.num_rounds, config.eval_every, config.checkpoint_minutes = 8, 1, 0.0
    return config


def contents(run):
    """Returns everything in a run's directory that interruptions must not change."""
    files = {p.relative_to(run): p.read_bytes() for g in SAME for p in run.glob(g)}
    with np.load(run / checkpoint.FILE) as saved:
        arrays = {name: saved[name].tobytes() for name in saved if name != "about"}
    return files, arrays, checkpoint.read(run).about["clients"]


def stop_after(monkeypatch, rounds):
    """Makes a run in this process receive Ctrl-C after some segments, and hear it."""
    seen, heard, listening = [], [], interrupt.watch_signals
    original = simulate.simulate

    @contextlib.contextmanager
    def kept(tell):
        with listening(tell) as by:
            heard.append(by)
            yield by

    def segments(*args, **kwargs):
        for segment in original(*args, **kwargs):
            seen.append(1)
            if len(seen) == rounds:
                os.kill(os.getpid(), signal.SIGINT)
                while not heard[-1]():
                    time.sleep(0.001)
            yield segment

    monkeypatch.setattr(interrupt, "watch_signals", kept)
    monkeypatch.setattr(simulate, "simulate", segments)


def test_an_interrupted_run_goes_on_bit_for_bit(config, tmp_path, monkeypatch):
    experiment.run(config, tmp_path / "whole", progress=False)
    config.checkpoint_minutes = 1e3  # only an interruption saves
    for rounds in (1, 4):  # after the first stage, and within the second
        path = tmp_path / f"cut{rounds}"
        stop_after(monkeypatch, rounds)
        with pytest.raises(interrupt.StoppedError, match="all saved") as stopped:
            experiment.run(config, path, progress=False)
        assert stopped.value.code == 130 and not (path / "summary.json").exists()
        monkeypatch.undo()
        experiment.run(config, path, resume=True, progress=False)
        assert contents(path) == contents(tmp_path / "whole")


def test_a_signal_in_the_last_segment_starts_no_other_seed(
    config, tmp_path, monkeypatch
):
    config.seeds, config.first_stage, config.num_rounds = 2, {}, 3
    stop_after(monkeypatch, 3)
    with pytest.raises(interrupt.StoppedError, match="finished"):
        experiment.run(config, tmp_path / "a", progress=False)
    assert (tmp_path / "a/seed_0/report.html").exists()
    assert not (tmp_path / "a/seed_1").exists()
    monkeypatch.undo()
    told = experiment.run(config, tmp_path / "a", resume=True, progress=False)
    assert [(s["seed"], s["ended_by"]) for s in told] == [(0, "rounds"), (1, "rounds")]


KILLED = """
import sys, time
import numpy as np
from sparsefl_jax.runs import experiment, folder as run_folder
from sparsefl_jax.system import hardware
hardware.keep_compilations()
savez = np.savez
def slow(*args, **kwargs):  # so that a kill can come before the file has its name
    savez(*args, **kwargs)
    time.sleep(0.02)
np.savez = slow
experiment.run(run_folder.read_config(sys.argv[1]), sys.argv[2], resume=True)
"""


@pytest.mark.parametrize("kills", [3, 20])
def test_killed_at_random_moments(config, tmp_path, kills):
    config.num_rounds = 8 if kills < 10 else 40  # at least a segment between two kills
    experiment.run(config, tmp_path / "whole", progress=False)
    cut, chance = tmp_path / "cut", random.Random(kills)
    cut.mkdir()
    (cut / "config.json").write_text((tmp_path / "whole/config.json").read_text())
    command = [sys.executable, "-c", KILLED, tmp_path / "whole", cut]
    killed, during_checkpoint = 0, 0

    def unfinished() -> set:
        with contextlib.suppress(FileNotFoundError):  # it has its name by now
            return {(cut / "checkpoint.tmp").stat().st_mtime_ns}
        return set()

    while not (cut / "summary.json").exists():
        left = unfinished()  # by the last kill
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
        if killed % 4 == 3:  # while it saves
            while process.poll() is None and not unfinished() - left:
                time.sleep(0.001)
        elif killed < kills:
            before = logged(cut)
            early = chance.random() < 0.2  # before it resumes, perhaps while it reads
            while process.poll() is None and logged(cut) == before and not early:
                time.sleep(0.01)  # until it has progressed
            time.sleep(chance.uniform(0, 4.0 if early else 0.4))
        if killed < kills:
            during_checkpoint += bool(unfinished() - left)
            process.kill()
            killed += process.wait() == -signal.SIGKILL
        said = process.communicate()[1].decode()
        assert process.returncode in (0, -signal.SIGKILL), said
    assert killed == kills and (kills < 10 or during_checkpoint)
    assert contents(cut) == contents(tmp_path / "whole")


def logged(run):
    """Returns the bytes of metrics so far."""
    metrics = run / "metrics.jsonl"
    return metrics.stat().st_size if metrics.exists() else 0


def model(value):
    leaf = np.full(2, value, np.float32)
    return SparseModel({"w": leaf}, {"w": leaf > 0}, {})


def test_another_version_is_named_before_anything_is_read(tmp_path):
    at = Snapshot(0, 1, placement.State({}, (), np.ones(1)))
    checkpoint.save(tmp_path, at, {"a": model(1)}, {})
    later = json.dumps({"format": 3, "snapshot": "elsewhere"}).encode()
    np.savez(tmp_path / checkpoint.FILE, about=np.frombuffer(later, np.uint8))
    with pytest.raises(ValueError, match="it has format 3, expected 2$"):
        checkpoint.read(tmp_path)


def test_models_keep_their_order(tmp_path):
    models = {name: model(i) for i, name in enumerate(("w1", "w0.4", "a", "w0.5"))}
    best = Best(0.5, "test", 0.5, 0, 1, dict(reversed(models.items())))
    at = Snapshot(0, 1, placement.State({}, (), np.ones(1)), 0, 0.0, best)
    checkpoint.save(tmp_path, at, models, {})
    saved = checkpoint.read(tmp_path, state=False)
    assert list(saved.models) == list(models)
    assert list(saved.snapshot.best.models) == list(models)[::-1]
    assert saved.models["a"].params["w"].tolist() == [2, 2]
