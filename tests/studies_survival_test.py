"""A study that is killed, asked to end or started twice comes to the same records."""

import os
import signal

import pytest

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
LOCAL = ["--launcher=local", "--launcher_options=timeout_min=60"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return unbroken(tmp_path_factory.mktemp("unbroken"), ROUNDS)


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
@pytest.mark.parametrize("flags", [*JOBS, LOCAL], ids=["here", "jobs", "local"])
def test_asked_to_end_and_started_again(flags, signum, whole, tmp_path):
    if flags is LOCAL:
        pytest.importorskip("submitit", reason="needs the extra 'cluster'")
    study, whole = whole
    asked = started(study, tmp_path / "out", *flags, rounds=ROUNDS)
    until(asked, lambda: lines(tmp_path / "out") > 5)
    os.killpg(asked.pid, signum)  # as a terminal does
    code, output = ended(asked)
    assert code == 128 + signum and "the same command goes on" in output, output
    assert "Traceback" not in output and not processes_of(tmp_path / "out")
    assert list((tmp_path / "out").glob("fedavg/seed_0/checkpoint/*"))
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
