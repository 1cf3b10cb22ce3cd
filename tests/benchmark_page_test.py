"""The benchmark's tables, from records that are written down by hand."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from benchmarks.v1 import page, rules, run

SMALL = "fashion"


def rows(method, density, by_seed, gbit=(0.5, 1.0, 2.0)):
    """Records of runs whose accuracies by seed follow each other at these Gbit."""
    return [
        dict.fromkeys(run.RECORDS, 0.0)
        | {"method": method, "density": density, "seed": seed, "rounds": number}
        | {"personal": method in ("spafl", "fedavg_own"), "alive": density}
        | {"gbit": cost, "gbit_up": cost / 2, "gbit_values": cost / 2}
        | {
            "data": "0badf00d",
            "pflop": 1e-6 * cost,
            "hours": cost / 60,
            "accuracy": accuracy,
        }
        for seed, accuracies in enumerate(by_seed)
        for number, (cost, accuracy) in enumerate(zip(gbit, accuracies, strict=True), 1)
    ]


def table(*parts) -> pd.DataFrame:
    return pd.DataFrame([row for part in parts for row in part])


def test_the_last_model_within_a_budget_counts_and_not_the_best():
    """At 2 Gbit .6 and not .8; a pilot may be off by half a percent; none at .4."""
    records = table(rows("spdst", 0.05, [(0.5, 0.8, 0.6)]))
    for budget, accuracy in ((1.0, 0.8), (1.9, 0.8), (1.995, 0.6), (9.0, 0.6)):
        assert page.within(records, "gbit", budget).tolist() == [accuracy]
    assert page.within(records, "gbit", 0.4).isna().all()
    assert page.within(records, "hours", 1 / 60).tolist() == [0.8]


def test_a_run_that_diverged_counts_as_chance_and_reaches_no_target():
    records = table(rows("spdst", 0.05, [(0.4, 0.5, 0.9)]))
    lost = pd.DataFrame([{"method": "spdst", "density": 0.05, "seed": 1}])
    records = pd.concat([records, lost])
    assert page.within(records, "gbit", 2.0).tolist() == [0.9, 0.1]
    assert page.cost_of(records, "gbit", 0.5).tolist() == [1.0, np.inf]


def test_fedavg_sets_the_budget_of_each_seed():
    """It spends 2 minutes on seed 0 and 1 on seed 1, where the other's last is late."""
    fedavg = rows("fedavg", 1.0, [(0.5, 0.6, 0.7)])
    fedavg += [fedavg[0] | {"seed": 1, "hours": 1 / 60, "accuracy": 0.5}]
    records = table(fedavg, rows("spdst", 0.05, [(0.4, 0.5, 0.9), (0.4, 0.5, 0.9)]))
    budget = page.whole(SMALL, records, "hours")
    assert budget.to_dict() == pytest.approx({0: 2 / 60, 1: 1 / 60})
    assert page.within(records, "hours", budget).tolist() == [0.7, 0.5, 0.9, 0.5]
    assert page.whole(SMALL, records, "gbit").tolist() == [2.0, 2.0]


def test_differences_are_paired_and_have_intervals_of_two_degrees_of_freedom():
    """By hand, with t = 4.303 and the closed form of p, 1 - t / sqrt(2 + t^2).

    SPDST: 1, 2, 6 points; deviation 2.646, half 4.303 * 2.646 / sqrt(3) = 6.57; t =
    1.964, p = .1885. STC: 4, 5, 6 points; deviation 1, half 2.48; t = 8.660, p = .0131,
    of two comparisons .0261.
    """
    accuracies = {
        "fedavg": pd.Series([0.5, 0.6, 0.7]),
        "spdst": pd.Series([0.51, 0.62, 0.76]),
        "stc": pd.Series([0.54, 0.65, 0.76]),
    }
    found = page.differences(accuracies, [("spdst", "fedavg"), ("stc", "fedavg")])
    assert page.difference(found["spdst", "fedavg"]) == "+3.0 [-3.6, +9.6], p = 0.19"
    assert page.difference(found["stc", "fedavg"]) == "+5.0 [+2.5, +7.5], p = 0.03"


def test_methods_are_compared_on_all_seeds_or_not_at_all():
    accuracies = {"a": pd.Series([0.5, 0.6]), "b": pd.Series([0.5, 0.5])}
    mean, low, high, p = page.differences(accuracies, [("a", "b")])["a", "b"]
    assert mean == pytest.approx(0.05)  # 12.706 * .0707 / sqrt(2) = .635 around it
    assert (low, high) == pytest.approx((0.05 - 0.6353, 0.05 + 0.6353), abs=1e-4)
    assert p == pytest.approx(0.5)  # Cauchy: 1 - 2 atan(1) / pi
    one = {"a": pd.Series([0.5]), "b": pd.Series([0.4])}
    assert not page.differences(one, [("a", "b")])
    lacking = accuracies | {"c": pd.Series([0.5, np.nan]), "d": pd.Series([0.7])}
    assert not page.differences(lacking, [("c", "b"), ("b", "c"), ("d", "b")])


def test_holm_stops_at_the_first_that_is_not_smaller():
    """4 * .01; 3 * .02 = .06; 2 * .025 = .05, not below .06; 1 * .5."""
    found = page.holm([0.025, 0.5, 0.01, 0.02])
    assert found == pytest.approx([0.06, 0.5, 0.04, 0.06])


def test_methods_that_do_not_differ_are_grouped():
    """A and B are a point apart, as far as three seeds can show; C is far below."""
    accuracies = {
        "c": pd.Series([0.101, 0.102, 0.100]),
        "a": pd.Series([0.80, 0.81, 0.82]),
        "b": pd.Series([0.79, 0.82, 0.81]),
    }
    ranks, alike = page.groups(accuracies)
    assert ranks.to_dict() == pytest.approx({"a": 4 / 3, "b": 5 / 3, "c": 3})
    assert alike == [["a", "b"]]


def test_targets_are_fedavgs_and_a_miss_is_infinite():
    """Shares .25, .5 and 1 of 2 Gbit; the cost is that of the first that reaches it."""
    records = table(
        rows("fedavg", 1.0, [(0.4, 0.6, 0.7), (0.4, 0.6, 0.9)]),
        rows("spdst", 0.05, [(0.6, 0.5, 0.7), (0.7, 0.7, 0.7)]),
    )
    goals = page.targets(SMALL, records)
    assert [goal.tolist() for goal in goals] == [[0.4, 0.4], [0.6, 0.6], [0.7, 0.9]]
    # By seed: FedAvg reaches its own accuracy, and SPDST that of the first seed.
    last = page.cost_of(records, "gbit", goals[-1])
    assert last.tolist() == [2.0, 2.0, 2.0, np.inf]
    assert page.cost_of(records, "gbit", 0.6).tolist() == [1.0, 1.0, 0.5, 0.5]
    assert page.cost_of(records, "gbit", 0.8).tolist() == [np.inf, 2.0, np.inf, np.inf]


def test_twenty_evaluations_of_a_run_can_reach_a_target(monkeypatch):
    """Of forty at .05 Gbit each those of even number; of ten all."""
    gbit = tuple(0.05 * n for n in range(1, 41))
    noisy = [0.5 if n == 7 else 0.1 for n in range(1, 41)]  # an odd one
    long = [0.1] * 9 + [0.5] + [0.1] * 30
    few = rows("stc", 0.05, [[0.1, 0.1, 0.5] + 7 * [0.1]], gbit=gbit[:10])
    records = table(rows("spdst", 0.05, [noisy, long], gbit=gbit), few)
    cost = page.cost_of(records, "gbit", 0.5).tolist()
    assert cost == pytest.approx([np.inf, 0.5, 0.15])
    # Targets too: within .35 Gbit the seventh evaluation is not looked at.
    fedavg = table(rows("fedavg", 1.0, [noisy], gbit=gbit))
    found = page.within(page.spread(fedavg), "gbit", 0.35)
    assert found.tolist() == [0.1]
    ever = [0.5 if n % 2 else 0.1 for n in range(1, 41)]  # all odd ones
    fedavg = table(rows("fedavg", 1.0, [ever], gbit=gbit))
    monkeypatch.setitem(
        rules.WORKLOADS, SMALL, rules.WORKLOADS[SMALL]._replace(gbit=1.4)
    )
    assert [goal.tolist() for goal in page.targets(SMALL, fedavg)] == 3 * [[0.1]]


def test_a_page_is_drawn_from_the_results(tmp_path, monkeypatch):
    """Means over two seeds and 12.706 deviations of the mean; one run has diverged."""
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    small = rules.WORKLOADS[SMALL]._replace(seeds=2)
    monkeypatch.setitem(rules.WORKLOADS, SMALL, small)
    records = table(
        rows("fedavg", 1.0, [(0.4, 0.6, 0.7), (0.4, 0.6, 0.72)]),
        rows("spdst", 0.05, [(0.6, 0.5, 0.9), (0.7, 0.7, 0.8)]),
        rows("spafl", 1.0, [(0.8, 0.8, 0.9), (0.8, 0.8, 0.9)]),
        rows("fedavg_own", 1.0, [(0.3, 0.5, 0.6), (0.3, 0.5, 0.62)]),
        rows("stc", 0.05, [(0.1, 0.1, 0.1)]),  # its other seed has diverged
        # Not of the density of ranks; a gigabit is left at the limit of rounds.
        rows("jmwst", 0.2, 2 * [(0.1, 0.05)], gbit=(0.5, 1.0)),
    )
    lost = {"method": "spdst", "density": 0.2, "personal": False}
    lost = [lost | {"seed": 0}, lost | {"seed": 1}]
    lost += [{"method": "stc", "density": 0.05, "personal": False, "seed": 1}]
    records = pd.concat([records, pd.DataFrame(lost)])
    run._write(records[run.RECORDS], SMALL)
    alone = table(rows("fedavg", 1.0, [(0.4, 0.6, 0.7)]))
    run._write(alone[run.RECORDS], "writers")  # begun, with nothing to compare
    fields = rules.RATE, rules.MOMENTUM, "first_stage.epochs"
    tried = ((0.1, None, 2), 0.5), ((0.3, 0.9, 3), 0.6), ((0.9, 0.9, 3), None)
    tries = [("spdst", dict(zip(fields, v, strict=True)), score) for v, score in tried]
    tries += [("pdst", {rules.RATE: r}, r) for r in (0.1, 0.3, 0.9)]
    tries = [(m, 0.25, 100, json.dumps(s), score, 5, 1.0) for m, s, score in tries]
    run._write(pd.DataFrame(tries, columns=run.TRIES), f"{SMALL}_tries")
    names = ("common", "common_against", "personal", "personal_against")
    names += ("targets", "tuning", "seeds", "random")
    (tmp_path / "docs/_static").mkdir(parents=True)
    empty = "".join(f"<!-- table {SMALL}_{n} -->\n<!-- end -->\n" for n in names)
    (tmp_path / page.PAGE).write_text(empty)
    page.main(tmp_path)
    text = (tmp_path / page.PAGE).read_text()
    drawn = dict(re.findall(rf"table {SMALL}_(\w+) -->\n(.*?)<!-- end", text, re.S))
    common = drawn["common"].splitlines()
    whole = "85.0 ± 63.5"
    assert common[2] == (
        f"| `spdst` | 0.05 | 65.0 ± 63.5 | 60.0 ± 127.1 | {whole} | {whole} | {whole} "
        f"| {whole} | 2 | 0.05 | 3 | 50 % | 2 |"
    )
    assert common[3].startswith("| `fedavg` | - | 40.0 ± 0.0 | 60.0 ± 0.0 | 71.0 ±")
    assert common[4].split("|")[-2] == " 2 (2 diverged) "
    assert common[5].startswith("| `stc` | 0.05 | 10.0 ± 0.0 | 10.0 ± 0.0 |")
    assert common[5].split("|")[-2] == " 2 (1 diverged) "
    assert common[6].split("|")[-2] == " 2 "
    # 20 and 8 points: 14 with half 12.706 * 6 = 76.2; p = 2 atan(6 / 14) / pi.
    assert "| `spdst .05` | +14.0 [-62.2, +90.2], p = 0.26 |" in drawn["common_against"]
    # SpaFL's 90 % beside FedAvg's model on the clients' samples, 60 and 62 %.
    assert "| `spafl` | +29.0 [+16.3, +41.7], p = 0.02 |" in drawn["personal_against"]
    assert drawn["personal"].count("| `spafl` | - | 80.0 ± 0.0 | 80.0 ± 0.0 | 90") == 1
    # Of its costs 2 and 2 Gbit at 71 %, half goes up, with a GFLOP and a minute each.
    assert "| `spdst .05` | 0.5 | 0.5 | 2 | 1 | 2 | 2 |" in drawn["targets"]
    assert "| `stc .05` | - | - | - | - | - | - |" in drawn["targets"]
    missed = "| `jmwst .2` | > 1 | > 1 | > 1 | > 0.5 | > 1 | > 1 |"
    assert missed in drawn["targets"]
    tuned = "| `spdst` | 0.3 | 0.9 | `epochs=3` | `epochs=10` | 60.0 | 50.0 | 1 of 3 |"
    assert tuned in drawn["tuning"]
    assert "| `pdst` | 0.9* | 0 | - | - | 90.0 | 10.0 | 0 of 3 |" in drawn["tuning"]
    # Of four comparisons t is tan(.49375 pi) = 50.92, alone 12.71.
    half, clearest = re.findall(r"(\d+\.\d) points", drawn["seeds"])
    assert float(clearest) / float(half) == pytest.approx(50.92 / 12.71, rel=0.02)
    assert drawn["seeds"].startswith("With 2 seeds, half of the interval")
    assert "`0badf00d`" in drawn["seeds"]
    ranks = (tmp_path / "docs/_static/benchmark_fashion_ranks.svg").read_text()
    assert "spdst .05" in ranks and "fedavg" in ranks and "stc .05" in ranks
    assert "jmwst" not in ranks
    profile = tmp_path / "docs/_static/benchmark_profile.svg"
    assert not profile.exists()  # before all of the core has run
    missing = rules.CORE.keys() - {"fedavg", "spdst", "stc"}
    rest = [rows(name, 0.05, 2 * [(0.1, 0.1, 0.6)]) for name in sorted(missing)]
    rest += [rows("pdst", 0.2, [(0.1, 0.04), (0.1, 0.05)], gbit=(0.5, 1.0))]
    rest += [rows("qsgd", 1.0, 2 * [(0.5,)], gbit=(1.0,))]
    run._write(pd.concat([records, table(*rest)])[run.RECORDS], SMALL)
    page.main(tmp_path)
    # SPDST's 90 and 80 beside PDST's 60: 25 with half 12.706 * 5; at .2 chance, 10 and
    # 10, beside 4 and 5: 5.5 with half 12.706 * .5, and p = 4 atan(1 / 11) / pi of two.
    text = (tmp_path / page.PAGE).read_text()
    both = "+5.5 [-0.9, +11.9], p = 0.12 | +25.0 [-38.5, +88.5], p = 1.00"
    assert f"| `spdst` | {both} |" in text and "| `stc` | - | -50.0 [" in text
    assert "complement" in profile.read_text()
    # Twelve methods share a figure; a thirteenth leaves two of them for another one.
    dense = tmp_path / "docs/_static/benchmark_fashion_no_density.svg"
    assert not dense.exists()
    more = table(rows("fedprox", 1.0, 2 * [(0.5,)], gbit=(1.0,)))[run.RECORDS]
    run._write(pd.concat([run.read_records(SMALL), more]), SMALL)
    page.main(tmp_path)
    assert dense.exists()


def test_the_axis_of_curves_follows_the_means(tmp_path, monkeypatch):
    """Means are between 40 and 70 %, and one interval is 127 points wide each way."""
    records = table(
        rows("fedavg", 1.0, 2 * [(0.4, 0.6, 0.7)]),
        rows("spdst", 0.05, [(0.6, 0.5, 0.7), (0.6, 0.7, 0.5)]),
    )
    limits = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig",
        lambda self, *_, **__: limits.append(self.axes[0].get_ylim()),
    )
    page.draw_curves(SMALL, records, tmp_path / "curves.svg")
    assert limits == [pytest.approx((35.0, 75.0))]
