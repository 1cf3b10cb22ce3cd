"""Every benchmark at tiny settings: its counts and its files."""

import json

import numpy as np
import pytest

from benchmarks import __main__, measure, workload

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compilation")]

TINY = workload.Workload("mlp", 8, 12, 4, widths=(4,), batch_size=8)


@pytest.fixture(autouse=True)
def _rate(monkeypatch):
    monkeypatch.setattr(measure, "matmul_rate", lambda _: 1e11)


@pytest.fixture
def environments(monkeypatch):
    """Runs what has a process of its own in this one, as processes start slowly."""
    given = []

    def inside(function, *arguments, **environment):
        given.append(environment)
        return json.loads(json.dumps(function(*json.loads(json.dumps(arguments)))))

    monkeypatch.setattr(measure, "apart", inside)
    return given


def written(name, folder, *arguments) -> list[dict]:
    """Reads the rows that a benchmark writes as JSON beside its table."""
    __main__.main(name, ["--repeats", "2", "--out", str(folder), *arguments])
    told = json.loads((folder / f"{name}.json").read_text())
    assert {"devices", "processor", "jax", "commit", "date"} <= told["machine"].keys()
    assert told["machine"]["repeats"] == 2
    assert "| --- |" in (folder / f"{name}.md").read_text()
    return told["results"]


COLUMNS = "devices", "clients, cohort, batch", "steps/s: best", "steps/s: median"


def test_throughput_by_hand(tmp_path, monkeypatch, environments):
    """On a fake clock: calls take 1, 2 and 5 s, and 4 s each of the set-up beside."""

    def in_turns(calls, repeats):
        lasts = {"": [1.0, 2.0, 5.0], "beside": [4.0] * 3}
        return {name: np.array(lasts[name]) for name in calls}

    monkeypatch.setattr(measure, "in_turns", in_turns)
    segment = TINY._replace(cohort=2, rounds=3, seeds=2, devices=1)
    setups = {"pfl": TINY, "lenet5_spafl": segment, "mlp": TINY._replace(cohort=8)}
    for name, setup in setups.items():
        monkeypatch.setitem(workload.SETUPS, name, setup)
    only = "--only", "pfl", "lenet5_spafl", "--beside", "mlp"
    one, other = written("throughput", tmp_path, *only)
    # Two minibatches of four clients; of two clients in three rounds of two seeds.
    assert [one[c] for c in COLUMNS] == [2, "8, 4, 8", 8, 8 / 2]
    assert [other[c] for c in COLUMNS] == [1, "8, 2, 8", 24, 24 / 2]
    assert (one["ms a round: best"], one["ms a round: median"]) == (1e3, 2e3)
    assert other["ms a round: median"] == pytest.approx(2e3 / 6)
    gflops = 8 * 6 * (784 * 4 + 4 * 10) * 8 / 1e9
    assert one["GFLOP/s"] == pytest.approx(gflops)
    assert one["fraction"] == pytest.approx(gflops / 100)
    # 16 steps of the set-up beside in 4 s: 8, 4 and 1.6 in a second to its 4.
    assert one["rate / mlp's"] == 1 and other["rate / mlp's"] == 3
    assert environments == [{}, {"XLA_FLAGS": measure.flags(1)}]


@pytest.mark.usefixtures("environments")
def test_memory_does_not_grow_with_the_cohort(tmp_path, monkeypatch):
    small = TINY._replace(clients=256, samples=8, widths=(32,))
    for cohort in (10, 1000):
        setup = small._replace(cohort={10: 8, 1000: 256}[cohort])
        monkeypatch.setitem(workload.SETUPS, f"tiny-{cohort}", setup)
    few, many = written("throughput", tmp_path, "--only", "tiny-10", "tiny-1000")
    model = 4 * (784 * 32 + 32 + 32 * 10 + 10)
    few, many = (1e6 * r["temporaries, MB"] for r in (few, many))
    assert many - few < 248 * 1024 < 3 * model < few
