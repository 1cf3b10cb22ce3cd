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

PARTS = ("values", "positions")
PAGE = """a
<!-- table common -->
-
<!-- end -->
<!-- table methods -->
<!-- end -->
<!-- table differences -->
<!-- end -->
b
"""


def run_of(folder, seed, rounds, method="spdst", density=0.05, stage=0):
    """Writes rounds of (Gbit, accuracy, validation accuracy); half is positions."""
    records = []
    for number, (gbit, accuracy, score) in enumerate(rounds, 1):
        cost = {"gbit_cumulative": gbit, "pflop_cumulative": gbit * 1e-4}
        head = {"stage": stage, "round": number, "hours_cumulative": gbit / 100} | cost
        parts = [f"bits_{w}_{part}" for w in ("up", "down") for part in PARTS]
        bits = dict.fromkeys(["bits_up", "bits_down"], 250_000_000)
        bits |= dict.fromkeys(parts, 125_000_000)
        work = {"flops": 5e10, "flops_dense": 1e11, "clients": [0]}
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


def point(method, within, last=None, density=None):
    """An entry of which seeds 0, 1, ... reach these accuracies within each budget."""
    keys = [
        f"{axis} {b:g}" for axis, each in study_tables.BUDGETS.items() for b in each
    ]
    triples = [value and [value, value, density or 1.0] for value in within]
    return {
        "point": method,
        "method": method,
        "density": density,
        "diverged": 0,
        "seeds": list(range(len(within))),
        "within": dict.fromkeys(keys, triples),
        "last": last or within,
        "totals": dict.fromkeys((*study_tables.BUDGETS, "rounds"), [1.0] * len(within)),
    }


def test_differences_are_paired_and_have_intervals_of_two_degrees_of_freedom():
    """By hand, with t = 4.303 and the closed form of p, 1 - t / sqrt(2 + t^2).

    SPDST: 1, 2, 6 points; deviation 2.646, half 4.303 * 2.646 / sqrt(3) = 6.57; t =
    1.964, p = .1885. STC: 4, 5, 6 points; deviation 1, half 2.48; t = 8.660, p = .0131,
    of two comparisons .0261. The last models: -1, 0, 1 point; 0 +- 2.48, p = 1. SPDST
    behind STC: 3, 3, 0 points; t = 2, p = .1835, twice .367; .1885 is not below it.
    """
    entries = [
        point("fedavg", [0.5, 0.6, 0.7], [0.4, 0.4, 0.4]),
        point("spdst", [0.51, 0.62, 0.76], [0.39, 0.40, 0.41], 0.2),
        point("stc", [0.54, 0.65, 0.76], [0.39, 0.40, 0.41], 0.2),
    ]
    head, _, spdst, stc = study_tables.against_baseline(entries).splitlines()
    assert head.startswith("| method | 2 Gbit | 2 Gbit, last | 0.5 Gbit |")
    last = "+0.0 [-2.5, +2.5], p = 1.00"
    assert spdst.startswith(f"| `spdst` | +3.0 [-3.6, +9.6], p = 0.19 | {last} |")
    assert stc.startswith(f"| `stc` | +5.0 [+2.5, +7.5], p = 0.03 | {last} |")
    (first, second) = study_tables.neighbours(entries).splitlines()[2:]
    assert first == "| `stc` | `spdst` | +2.0 [-2.3, +6.3], p = 0.37 |"
    assert second == "| `spdst` | `fedavg` | +3.0 [-3.6, +9.6], p = 0.37 |"


def test_holm_stops_at_the_first_that_is_not_smaller():
    """4 * .01; 3 * .02 = .06; 2 * .025 = .05, not below .06; 1 * .5."""
    told = study_tables.holm([0.025, 0.5, 0.01, 0.02])
    assert told == pytest.approx([0.06, 0.5, 0.04, 0.06])


def test_what_is_not_known_is_told_from_what_was_not_reached():
    entries = [
        point("fedavg", [0.5, 0.6, 0.7]),
        point("stc", [0.5, 0.6, 0.7], density=0.2),
        point("spafl", [0.8, 0.8, 0.9]),
    ]
    entries[1]["within"]["gbit 0.5"] = [None, [0.1, 0.1, 0.2], [0.1, 0.1, 0.2]]
    entries[2]["within"]["gbit 0.5"] = [[0.8, 0.8, 1.0]] * 2 + ["unknown"]
    entries[2]["totals"]["hours"] = ["unknown"] * 3
    drawn = study_tables.tables(entries)
    assert "spafl" not in drawn["common"] and "stc" not in drawn["personal"]
    *_, row = drawn["personal"].splitlines()
    assert row.startswith("| `spafl` | - | unknown | 83.3 ± 5.8 | 83.3 ± 5.8 |")
    assert row.endswith(" | unknown |")
    *_, row = drawn["personal_methods"].splitlines()
    assert row.startswith("| `spafl` | 83.3 ± 5.8 | 83.3 ± 5.8 | unknown | 83.3")
    *_, stc, spafl = drawn["differences"].splitlines()
    assert (stc.split(" | ")[3], spafl.split(" | ")[3]) == ("-", "unknown")


def test_the_page_shows_what_its_records_say():
    core = list(filter(study_tables._core, study_tables.published()))
    drawn = study_tables.tables(core)
    choices = json.loads((study_tables.ROOT / study_tables.CHOICES).read_text())
    drawn["tuning"] = study_tables.tuning(choices)
    page = (study_tables.ROOT / study_tables.PAGE).read_text()
    for name, text in drawn.items():
        assert f"<!-- table {name} -->\n{text}\n<!-- end -->" in page, name


def test_spafls_runs_cost_what_its_network_and_cohorts_say():
    """118,282 numbers for each of 100 clients, and 600 rounds of 10 times 3 * 266."""
    (found,) = (e for e in study_tables.published() if e["point"] == "spafl")
    bits = 32 * (100 * 118_282 + 600 * 10 * 3 * 266)
    assert found["totals"]["gbit"] == pytest.approx([bits / 1e9] * 3, rel=1e-5)


def test_methods_stand_at_the_density_that_validation_prefers(tmp_path):
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
        "| `spdst` | 0.05 | 82.0 ± 2.8 | 82.0 ± 2.8 | 82.0 ± 2.8 | 82.0 ± 2.8 | 0.050 "
        "| 1 | 0.50 | 50 % | 50 | 0.3 |"
    ) in lines
    assert (
        "| `fedavg` | - | 86.0 ± 0.0 | 86.0 ± 0.0 | 86.0 ± 0.0 | 86.0 ± 0.0 | 1.000 "
        "| 1 | 0.50 | 50 % | 50 | 0.3 |"
    ) in lines
    for start in (
        "| `spdst` | 82.0 ± 2.8, d = 0.05 |",
        "| `fedavg` | 86.0 ± 0.0 | 86.0 ± 0.0 |",
        "| `spdst` | -4.0 [-29.4, +21.4], p = 0.30 |",  # 12.706 * 2.828 / sqrt(2)
    ):
        assert any(line.startswith(start) for line in lines)
    assert (tmp_path / study_tables.FIGURE).exists()
    assert len(json.loads((tmp_path / study_tables.RESULTS).read_text())) == 3


def test_a_method_without_a_result_within_a_budget_has_an_empty_cell(tmp_path):
    late = study_tables.entry(
        "stc", 0.05, [run_of(tmp_path / "a", 0, [(1.9, 0.9, 0.9)])]
    )
    soon = study_tables.entry(
        "topk", 0.05, [run_of(tmp_path / "b", 0, [(0.4, 0.5, 0.5)])]
    )
    last, first = study_tables.methods([late, soon]).splitlines()[2:]
    at = ", d = 0.05 |"
    assert last.startswith(f"| `stc` | 90.0{at} 90.0{at} - |")
    assert first.startswith(f"| `topk` | 50.0{at} 50.0{at} 50.0{at}")


def test_the_table_of_tuning_has_the_best_next_and_worst_of_six():
    scores = dict(zip("abcdef", [0.5, 0.8, 0.7, None, 0.6, None], strict=True))
    settings = {"optimizer.learning_rate": 0.1, "algorithm.r_int": 5}
    found = study_tables.tuning({"jmwst": {"settings": settings, "scores": scores}})
    (row,) = found.splitlines()[2:]
    assert row == "| `jmwst` | 0.1 | `r_int=5` | 80.0 | 70.0 | 50.0 | 2 |"


def test_a_density_at_which_a_seed_diverged_is_told_and_not_chosen(tmp_path):
    run = run_of(tmp_path / "a", 0, [(0.4, 0.9, 0.8)])
    best = run_of(tmp_path / "b", 0, [(0.4, 0.9, 0.9)])
    part = study_tables.entry("stc-density=0.05", 0.05, [best], diverged=1)
    none = study_tables.entry("stc-density=0.2", 0.2, [], diverged=3)
    other = study_tables.entry("stc-density=0.01", 0.01, [run])
    rows = study_tables.densities([part, none]).splitlines()[2:]
    assert rows[0].startswith("| `stc` (1 of 2 diverged) | 0.05 | 90.0 | 90.0 |")
    assert rows[1] == "| `stc` (3 of 3 diverged) | 0.2 |" + " - |" * 10
    (row,) = study_tables.methods([part, none, other]).splitlines()[2:]
    assert row.startswith("| `stc` | 90.0, d = 0.01 |")


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
