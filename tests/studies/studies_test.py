"""Studies: what a failure costs, who runs which point, and where."""

import contextlib
import fcntl
import itertools
import json
import shutil
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from sparsefl_jax.report.groups import study_runs
from sparsefl_jax.runs import experiment, records
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.studies import places, runner
from tests.refusals import refused
from tests.tiny_study import points, write_study


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Returns the points of a study whose runs take no plots."""
    monkeypatch.setattr(records, "draw", lambda path: None)
    write_study(tmp_path)
    return points(tmp_path)


@pytest.fixture
def ran(monkeypatch):
    """Replaces runs by their files; returns the names of those that ran, in order."""
    names = []

    def one_seed(config, path, resume, *how):
        seed = config.seed
        assert resume == (path / "config.json").exists()
        if not (path / "summary.json").exists():
            names.append(f"{path.parent.name}/{path.name}")
        with run_folder.claim(path, config, resume):
            (path / "summary.json").write_text('{"seconds": 2.0}')
        return {"seed": seed, "seconds": 2.0}

    monkeypatch.setattr(experiment, "run_seed", one_seed)
    setup = SimpleNamespace(
        metric="pooled",
        stages=(),
        measure=None,
        data=SimpleNamespace(y=np.zeros(1, int)),
    )
    monkeypatch.setattr(experiment, "build", lambda config, started: (setup, None))
    monkeypatch.setattr(experiment, "of_one_width", lambda read, seeds: read)
    monkeypatch.setattr(runner, "write_page", lambda *of: None)
    monkeypatch.setattr(runner, "_POLL", 0.01)
    return names


ALL = ["fedavg/seed_0", "fedavg/seed_1", "fedprox/seed_0", "fedprox/seed_1"]


def test_every_seed_that_fails_is_named(study, tmp_path, ran, monkeypatch):
    runs = experiment.run_seed

    def one_seed(config, *rest):
        if config.algorithm["name"] == "fedavg":
            raise FloatingPointError(f"seed {config.seed}\nis bad")
        return runs(config, *rest)

    monkeypatch.setattr(experiment, "run_seed", one_seed)
    states = runner.run(study, tmp_path / "out")
    assert states == {"fedavg": "failed: seed 0: seed 0 is bad", "fedprox": "done"}
    told = (tmp_path / "out/failed/fedavg.txt").read_text()
    assert "\nseed 1: seed 1 is bad\n" in told and "Traceback" in told
    monkeypatch.setattr(experiment, "run_seed", runs)
    states = runner.run(study, tmp_path / "out")  # tried again
    assert states == {"fedavg": "done", "fedprox": "done"}
    assert ran == [*ALL[2:], *ALL[:2]]


def failing(model, optimizer):
    """A method that cannot be built."""
    raise ValueError("no such\nmethod")


def test_a_method_that_cannot_be_built_is_refused_at_once(study, tmp_path):
    bad = study[1].config
    with bad.unlocked(), bad.ignore_type():
        bad.algorithm = {"name": "tests.studies.studies_test:failing"}
    with pytest.raises(ValueError, match="^no such\nmethod$"):
        runner.run(study, tmp_path / "out")
    assert not list(tmp_path.glob("out/*/seed_*"))


def test_what_is_missing_runs(study, tmp_path, ran, capsys):
    out = tmp_path / "out"
    runner.run(study[1:], out)
    assert ran == ALL[2:]
    runner.run(study, out)  # a point was added
    assert ran == [*ALL[2:], *ALL[:2]]
    runner.run(study, out)
    assert len(ran) == 4
    said = capsys.readouterr().err.splitlines()
    assert f"study of 2 points, 1 to run, in {out}" in said
    assert said[-1] == f"study of 2 points, 0 to run, in {out}"
    study[0].config.num_rounds += 1  # a longer run has other schedules from the start
    said = "num_rounds is 1 there and 2 here; remove"
    refused(lambda: runner.run(study, out), said)
    runner.run(study[1:], out)
    assert len(ran) == 4


def test_the_time_left_is_that_of_the_points_left(
    study, tmp_path, ran, capsys, monkeypatch
):
    ticks = itertools.count(0, 10)  # a look at the clock is ten seconds after the last
    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=time.sleep)
    monkeypatch.setattr(runner, "time", clock)
    runner.run(study, tmp_path / "out")
    said = capsys.readouterr().err
    assert "\n1 of 2 points done, about 10.0 s left\n" in said
    assert "\n2 of 2 points done\n" in said


def test_two_studies_one_after_another_lose_no_points(study, tmp_path, ran):
    """What a page shows is of its study, what the folder holds is of both."""
    first, second = study[0]._replace(label="Dense"), study[1]
    for points_of in ([first], [second]):
        runner.run(points_of, tmp_path)
    held = json.loads((tmp_path / "study.json").read_text())
    assert [*held["points"]] == [*held["code"]] == ["fedavg", "fedprox"]
    assert held["labels"] == {"fedavg": "Dense", "fedprox": ""} and held["shown"] == [
        "fedprox"
    ]
    for run in tmp_path.glob("*/seed_*"):
        (run / "metrics.jsonl").touch()
    own = [tmp_path / f"fedprox/seed_{seed}" for seed in (0, 1)]
    assert study_runs(tmp_path) == own
    first.config.optimizer.learning_rate = 0.5
    refused(lambda: runner.run([first], tmp_path), "is 0.1 there")
    assert json.loads((tmp_path / "study.json").read_text()) == held


def test_changed_code_of_a_method_is_refused(study, tmp_path, ran, monkeypatch):
    """Edits of one's own method between two starts of a study."""
    (tmp_path / "edited_method.py").write_text(
        "from sparsefl_jax.algorithms import fedavg as mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    study[0].config.algorithm.name = "edited_method:mine"
    out = tmp_path / "out"
    runner.run(study[:1], out)
    runner.run(study[:1], out)
    assert len(ran) == 2
    with open(tmp_path / "edited_method.py", "a") as file:
        file.write("# another line\n")
    said = "edited_method.py has changed since 'fedavg' began; remove"
    refused(lambda: runner.run(study[:1], out), said)
    runner.run(study[1:], out)  # another study in between
    refused(lambda: runner.run(study[:1], out), said)
    shutil.rmtree(out / "fedavg")
    runner.run(study[:1], out)
    assert len(ran) == 6


def test_two_studies_in_one_folder_share_the_points(study, tmp_path, ran, monkeypatch):
    runs, both = experiment.run_seed, threading.Barrier(2, timeout=5)

    def one_seed(config, *rest):
        if config.seed == 0:  # each study holds a point, or both tried the same one
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait()
        return runs(config, *rest)

    monkeypatch.setattr(experiment, "run_seed", one_seed)
    told = []

    def go():
        told.append(runner.run(study, tmp_path))

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ran) == ALL
    assert told == [{"fedavg": "done", "fedprox": "done"}] * 2


def test_a_look_at_a_lock_stops_no_run(tmp_path):
    looking, seen = threading.Event(), threading.Event()

    def look():
        with open(tmp_path / "lock", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # as `in_use`, but for longer
            looking.set()
            seen.wait(0.3)

    thread = threading.Thread(target=look)
    thread.start()
    looking.wait()
    assert not run_folder.in_use(tmp_path)  # others may look at once
    with run_folder.lock(tmp_path):
        assert run_folder.in_use(tmp_path)
    thread.join()
    assert not run_folder.in_use(tmp_path)


class _Job:
    """A job that ends at the second look, and does what it is told to."""

    def __init__(self, act):
        self.looks, self.act = 0, act

    def done(self):
        self.looks += 1
        if self.looks == 2:
            self.act()
        return self.looks > 1

    def fate(self):
        return "it was shot"


@pytest.mark.parametrize(
    "jobs, arrays", [(2, [["fedavg", "fedprox"]]), (1, [["fedavg"], ["fedprox"]])]
)
def test_a_job_that_is_lost_is_a_failure(study, tmp_path, ran, capsys, jobs, arrays):
    begun = []

    def submit(names):
        begun.append(list(names))
        acts = {"fedavg": lambda: None}
        acts["fedprox"] = lambda: places.run_point(tmp_path, "fedprox")
        return [_Job(acts[name]) for name in names]

    states = runner.run(study, tmp_path, jobs=jobs, submit=submit)
    assert begun == arrays
    assert states == {"fedavg": "failed: it was shot", "fedprox": "done"}
    assert "fedavg failed: it was shot" in capsys.readouterr().err
