"""The benchmark's tables, from runs that are written down by hand."""

import json

import pytest
from equal_cost_test import write

from benchmarks import study_tables
from sparsefl_jax.report import read_run
from sparsefl_jax.runs.config.defaults import default_config
from sparsefl_jax.studies import points as on_disk
from sparsefl_jax.studies.points import Point
from tests.refusals import refused

PAGE = """a
<!-- table densities -->
-
<!-- end -->
<!-- table ranking -->
<!-- end -->
b
"""


def run_of(folder, seed, rounds, method="spdst", density=0.05, stage=0):
    """Writes rounds of (Gbit, accuracy, validation accuracy); half is positions."""
    records = []
    for number, (gbit, accuracy, score) in enumerate(rounds, 1):
        cost = {"gbit_cumulative": gbit, "pflop_cumulative": gbit * 1e-4}
        head = {"stage": stage, "round": number, "hours_cumulative": gbit / 100} | cost
        values = {f"bits_{way}_values": 125_000_000 for way in ("up", "down")}
        bits = {"bits_up": 250_000_000, "bits_down": 250_000_000} | values
        work = {"flops": 5e10, "flops_dense": 1e11}
        records.append({**head, "phase": "train", **bits, **work})
        models = {"global": {"accuracy": accuracy, "density": density or 1.0}}
        found = {"models": models, "accuracy": accuracy, "val_accuracy": score}
        records.append({**head, "phase": "eval", "metric": "clients", **found})
    write(folder, records, seed, method, density=density)
    summary = {"method": method, "seconds": 3.0, "commit": "abc"}
    (folder / "summary.json").write_text(json.dumps(summary))
    return read_run(folder)


def test_validation_chooses_the_round_within_each_budget(tmp_path):
    """Rounds of .5 Gbit, half of it values; the last one scores best, not by test."""
    rounds = [(0.5, 0.6, 0.5), (1.0, 0.9, 0.4), (1.5, 0.7, 0.8)]
    run = run_of(tmp_path / "a", 0, rounds)
    found = study_tables.entry("spdst-density=0.05", 0.05, [run])
    within = found["within"]
    assert within["gbit 0.25"] == [None]
    assert within["gbit 0.5"] == within["gbit 1"] == [(0.6, 0.5, 0.05)]
    assert within["gbit 2.01"] == [(0.7, 0.8, 0.05)]  # it ended before
    assert within["gbit_values 0.5"] == [(0.6, 0.5, 0.05)]  # two rounds, .25 Gbit each
    assert within["gbit_values 1"] == [(0.7, 0.8, 0.05)]
    assert within["pflop 5e-05"] == within["hours 0.005"] == [(0.6, 0.5, 0.05)]
    assert found["totals"]["gbit"] == [1.5] and found["totals"]["rounds"] == [3]
    assert (found["method"], found["density"]) == ("spdst", 0.05)


def test_what_a_run_spends_beyond_the_budget_does_not_count(tmp_path):
    run = run_of(tmp_path / "a", 0, [(1.0, 0.6, 0.5), (2.0, 0.7, 0.6), (3.0, 0.9, 0.9)])
    found = study_tables.entry("stc-density=0.05", 0.05, [run])
    assert found["within"]["hours 0.02"] == [(0.7, 0.6, 0.05)]
    assert (found["totals"]["gbit"], found["totals"]["rounds"]) == ([2.0], [2])
    assert found["last"] == [0.7]


def test_the_tables_rank_methods_at_their_best_density(tmp_path):
    """SPDST is better on the test set at .2, but validation prefers .05."""
    entries = []
    for name, density, points in (
        ("spdst-density=0.2", 0.2, [(0.90, 0.5), (0.90, 0.5)]),
        ("spdst-density=0.05", 0.05, [(0.80, 0.6), (0.84, 0.6)]),
        ("fedavg", None, [(0.86, 0.7), (0.86, 0.7)]),
    ):
        runs = [
            run_of(tmp_path / f"{name}_{seed}", seed, [(0.5, *pair)], density=density)
            for seed, pair in enumerate(points)
        ]
        entries.append(study_tables.entry(name, density, runs))
    for folder in ("docs/_static", "benchmarks/tables"):
        (tmp_path / folder).mkdir(parents=True)
    page = tmp_path / study_tables.PAGE
    page.write_text(PAGE)
    study_tables.publish(entries[:2], tmp_path)
    study_tables.publish(entries[2:], tmp_path)  # adds to what is there
    lines = page.read_text().splitlines()
    assert lines[0] == "a" and lines[-1] == "b"
    assert (
        "| `spdst` | 0.05 | 82.0 ± 2.8 | 82.0 ± 2.8 | 82.0 ± 2.8 | 0.050 | 82.0 ± 2.8 "
        "| 1 | 0.50 | 50 % | 50 | 0.3 |"
    ) in lines
    assert (
        "| `fedavg` | - | 86.0 ± 0.0 | 86.0 ± 0.0 | 86.0 ± 0.0 | 1.000 | 86.0 ± 0.0 "
        "| 1 | 0.50 | 50 % | 50 | 0.3 |"
    ) in lines
    (first, second) = (line for line in lines if "**" in line)
    assert first.startswith("| `spdst` | **2** 82.0 ± 2.8, d = 0.05 |")
    assert second.startswith("| `fedavg` | **1** 86.0 ± 0.0 |")
    drawn = (tmp_path / study_tables.FIGURE).read_text()
    assert "spdst" in drawn and "fedavg" in drawn
    assert len(json.loads((tmp_path / study_tables.RESULTS).read_text())) == 3


def test_a_method_without_a_result_within_a_budget_has_no_rank(tmp_path):
    late = study_tables.entry(
        "stc", 0.05, [run_of(tmp_path / "a", 0, [(1.9, 0.9, 0.9)])]
    )
    soon = study_tables.entry(
        "topk", 0.05, [run_of(tmp_path / "b", 0, [(0.4, 0.5, 0.5)])]
    )
    last, first = study_tables.ranking([late, soon]).splitlines()[2:]
    assert last.startswith("| `stc` | **1** 90.0, d = 0.05 | - |")
    assert first.startswith("| `topk` | **2** 50.0, d = 0.05 | **1** 50.0, d = 0.05 |")


def test_the_table_of_tuning_has_the_best_next_and_worst_of_six():
    scores = dict(zip("abcdef", [0.5, 0.8, 0.7, None, 0.6, None], strict=True))
    settings = {"optimizer.learning_rate": 0.1, "algorithm.r_int": 5}
    found = study_tables.tuning({"jmwst": {"settings": settings, "scores": scores}})
    (row,) = found.splitlines()[2:]
    assert row == "| `jmwst` | 0.1 | `r_int=5` | 80.0 | 70.0 | 50.0 | 2 |"


def test_a_density_at_which_a_seed_diverged_is_told_and_not_ranked(tmp_path):
    run = run_of(tmp_path / "a", 0, [(0.4, 0.9, 0.8)])
    best = run_of(tmp_path / "b", 0, [(0.4, 0.9, 0.9)])
    part = study_tables.entry("stc-density=0.05", 0.05, [best], diverged=1)
    none = study_tables.entry("stc-density=0.2", 0.2, [], diverged=3)
    other = study_tables.entry("stc-density=0.01", 0.01, [run])
    rows = study_tables.densities([part, none]).splitlines()[2:]
    assert rows[0].startswith("| `stc` (1 of 2 diverged) | 0.05 | 90.0 | 90.0 |")
    assert rows[1] == "| `stc` (3 of 3 diverged) | 0.2 |" + " - |" * 10
    (row,) = study_tables.ranking([part, none, other]).splitlines()[2:]
    assert row.startswith("| `stc` | **1** 90.0, d = 0.01 |")


def test_a_point_counts_once_its_seeds_have_ended_or_diverged(tmp_path):
    """Whole, begun, one seed of two diverged, both, and one lost to a full disk."""
    config = default_config()
    config.seeds, names = 2, ("fedavg", "stc", "topk", "zerofl", "spafl")
    points = [Point(name, config) for name in names]
    on_disk.write(tmp_path, points)
    for name, seeds in (
        *(("fedavg", (0, 1)), ("stc", (0,))),
        *(("topk", (1,)), ("spafl", (0,))),
    ):
        for seed in seeds:
            run_of(tmp_path / name / f"seed_{seed}", seed, [(0.4, 0.9, 0.9)])
    (tmp_path / "failed").mkdir()
    for name in ("topk", "zerofl"):
        reason = "seed 0: training loss nan\n...\nFloatingPointError: training loss nan"
        (tmp_path / "failed" / f"{name}.txt").write_text(reason)
    (tmp_path / "failed" / "spafl.txt").write_text("seed 1: no space left")
    entries = study_tables.collect(tmp_path)
    found = {e["point"]: (e["seeds"], e["diverged"]) for e in entries}
    assert found == {"fedavg": ([0, 1], 0), "topk": ([1], 1), "zerofl": ([], 2)}


@pytest.mark.parametrize(("name", "seed"), [("local_only", 0), ("fedavg-rate=0.1", 3)])
def test_other_studies_are_refused(name, seed, tmp_path):
    config = default_config()
    config.seed = seed
    on_disk.write(tmp_path, [Point(name, config)])
    refused(lambda: study_tables.collect(tmp_path), f"holds the point {name!r}")
