"""Accuracy at equal cost, with numbers worked out by hand."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from sparsefl_jax.report import compare, costs, read_groups, read_run
from sparsefl_jax.report.costs import (
    accuracy_at,
    mean_accuracy,
    on_front,
)
from tests.report.report_test import write_run

CURVE = pd.Series([0.2, 0.6, 0.7], [1.0, 2.0, 4.0])


def lines(points, stage=0, extra=(), more=None):
    """Yields the records of rounds 1, 2, ... at these (Gbit, accuracy).

    Each round sends 3 bits up and 5 down, no positions.
    """
    bits = {"bits_up": 3, "bits_up_values": 3, "bits_up_positions": 0}
    bits |= {"bits_down": 5, "bits_down_values": 5, "bits_down_positions": 0}
    for number, (gbit, accuracy) in enumerate(points, start=1):
        cost = {"gbit_cumulative": gbit, "pflop_cumulative": 2.0 * number}
        head = {"stage": stage, "round": number, **cost, **dict(extra)}
        work = {"clients": [0], "flops": 2e15, "flops_dense": 4e15}
        yield {"phase": "train", **work, **bits, **head}
        if accuracy is not None:
            models = {"global": dict(accuracy=accuracy, density=0.25)}
            evaluated = dict(phase="eval", models=models, accuracy=accuracy)
            yield head | evaluated | dict(metric="pooled") | (more or {})


def write(folder, points, seed=0, method="fedavg", ended=True, **config):
    summary = {"method": method} if ended else None
    records = points if isinstance(points[0], dict) else list(lines(points))
    write_run(folder, records, summary=summary)
    fields = {"seed": seed, "algorithm": {"name": method}, **config}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_a_budget_that_rounding_puts_behind_the_end_counts():
    curve = pd.Series([0.5, 0.9], [0.1, 0.3])
    assert accuracy_at(curve, 0.1 + 0.2) == 0.9  # 0.30000000000000004
    assert mean_accuracy(curve, 0.1 + 0.2) is not None


def test_the_area_is_the_mean_up_to_the_budget():
    # Triangle to the first point: 1 * 0.2 / 2; then 1 * 0.4, 2 * 0.65; over 4.
    assert mean_accuracy(CURVE, 4.0) == pytest.approx((0.1 + 0.4 + 1.3) / 4)
    # Up to 3 the last trapezoid is 1 * (0.6 + 0.65) / 2.
    assert mean_accuracy(CURVE, 3.0) == pytest.approx((0.1 + 0.4 + 0.625) / 3)
    assert mean_accuracy(CURVE, 0.5) == pytest.approx(0.05)
    assert mean_accuracy(CURVE, 4.1) is None
    free = pd.Series([0.4, 0.8], [0.0, 2.0])
    assert mean_accuracy(free, 2.0) == pytest.approx(0.6)
    assert mean_accuracy(CURVE[:0], 1.0) is None


def test_the_front_leaves_out_what_another_point_dominates():
    points = [(1, 0.5), (2, 0.5), (2, 0.6), (2, 0.8), (4, 0.9), (4, 0.9), (0, 0.1)]
    assert on_front(points) == [True, False, False, True, True, True, True]


def test_differences_are_paired_by_seed(tmp_path):
    # Differences 0.1 and 0.3: mean 0.2, s = 0.1 * sqrt(2), so half is 12.7062 * 0.1.
    for seed, accuracy in {1: 0.6, 0: 0.5, 7: 0.3}.items():
        write(tmp_path / "a" / f"seed_{seed}", [(1, accuracy)], seed)
    for seed, accuracy in {0: 0.6, 1: 0.9, 5: 0.1}.items():
        write(tmp_path / "b" / f"seed_{seed}", [(1, accuracy)], seed, "spdst")
    gaps = compare(read_groups([tmp_path / "a", tmp_path / "b"])).gaps
    found = gaps["accuracy"].loc[1]
    assert found["mean"] == pytest.approx(0.2) and found["count"] == 2
    assert found["ci95"] == pytest.approx(1.27062, rel=1e-5)


def test_up_and_down_are_summed_over_all_stages(tmp_path):
    first = list(lines([(1.0, 0.1), (2.0, 0.3)]))
    second = list(lines([(3.0, 0.2), (4.0, None), (5.0, 0.6)], stage=1))
    run = read_run(write(tmp_path, first + second))
    # Five rounds of 3 bits up and 5 down.
    spent = costs.progress(run).max()
    assert spent["gbit_up"] == pytest.approx(15e-9)
    assert spent["gbit_down"] == pytest.approx(25e-9)
    assert spent["rounds"] == 5
    curve = costs.curve(costs.progress(run), "gbit_up")  # of the last stage alone
    np.testing.assert_allclose(curve.index, [9e-9, 15e-9])
    assert curve.tolist() == [0.2, 0.6]
    assert costs.curve(costs.progress(run), "rounds").index.tolist() == [3, 5]


def test_traffic_without_positions_is_an_axis_where_positions_travel(tmp_path):
    def written(name, positions):
        extra = {"bits_down_values": 4, "bits_down_positions": positions}
        points = list(lines([(1.0, 0.1), (2.0, 0.3)], extra=extra))
        return read_run(write(tmp_path / name, points))

    dense, sparse = written("dense", 0), written("sparse", 2)
    dense, sparse = costs.progress(dense), costs.progress(sparse)
    assert "gbit_values" not in [axis.name for axis in costs.axes([dense])]
    assert "gbit_values" in [axis.name for axis in costs.axes([dense, sparse])]
    np.testing.assert_allclose(costs.curve(sparse, "gbit_values").index, [7e-9, 14e-9])


def groups_of(folder):
    """Two seeds that reach 4 and 3 Gbit, and a cheap method that ends at 1."""
    for seed, points in enumerate(
        [[(1, 0.2), (2, 0.6), (4, 0.7)], [(1, 0.4), (3, 0.8)]]
    ):
        write(folder / "a" / f"seed_{seed}", points, seed)
    write(folder / "b", [(0.5, 0.3), (1.0, 0.5)], method="spdst")
    return read_groups([folder / "a", folder / "b"])


def test_a_group_that_ended_before_the_budget_has_no_accuracy(tmp_path):
    found = compare(groups_of(tmp_path), budgets={"gbit": [3.5, 0.8, 2]})
    gbit = found.axes[0]
    assert found.budgets["gbit"] == [0.8, 2, 3.5]
    # Seed 0 has 0.6 at 2 Gbit, seed 1 0.6; at 3.5 seed 1 had ended.
    at, lines = found.at(gbit), found.lines
    assert lines[at[2], "mean"][0] == pytest.approx(0.6)
    assert lines[at[2], "count"][0] == 2
    assert np.isnan(lines[at[3.5], "mean"][0])
    assert lines[at[0.8], "mean"][1] == pytest.approx(0.42)
    assert np.isnan(lines[at[0.8], "mean"][0])
    assert np.isnan(lines[at[2], "mean"][1])
    assert found.common["gbit"] == 0.8
    # Seed 0: 0.8 * 0.16 / 2 over 0.8; seed 1: 0.8 * 0.32 / 2 over 0.8.
    assert found.area(gbit) == "area_gbit_0.8"
    areas = found.seeds["area_gbit_0.8"].loc[0]
    np.testing.assert_allclose(areas, [0.08, 0.16])


def test_a_run_that_goes_on_sets_no_budget(tmp_path):
    write(tmp_path / "a", [(1, 0.2), (2, 0.6)], ended=False)
    write(tmp_path / "b", [(1, 0.2), (4, 0.6)], method="spdst")
    found = compare(read_groups([tmp_path / "a", tmp_path / "b"]))
    assert found.budgets["gbit"] == [2.0, 4.0]  # by the one that has ended


def test_a_method_that_costs_nothing_does_not_spoil_the_budgets(tmp_path):
    write(tmp_path / "a", [(0, 0.2), (0, 0.6)], method="local_only")
    write(tmp_path / "b", [(1, 0.2), (4, 0.6)])
    found = compare(read_groups([tmp_path / "a", tmp_path / "b"]))
    gbit = found.axes[0]
    assert found.budgets["gbit"] == [2.0, 4.0] and found.common["gbit"] == 4.0
    (run,) = found.groups[0].runs
    assert costs.curve(costs.progress(run), "gbit").tolist() == [0.6]  # the last
    assert np.isnan(found.lines[found.at(gbit)[2.0], "mean"][0])


def test_budgets_that_do_not_exist_are_refused(tmp_path):
    groups = groups_of(tmp_path)
    for value in (0.0, math.inf):
        with pytest.raises(ValueError, match=f"budget gbit={value:g}"):
            compare(groups, budgets={"gbit": [value]})


@pytest.mark.parametrize("short", ["a", "b"])
def test_a_budget_that_one_seed_did_not_reach_has_no_difference(tmp_path, short):
    """Else the mean would be over the seeds that got there."""
    ends = {(name, seed): 10 for name in "ab" for seed in (0, 1)} | {(short, 1): 4}
    runs = [
        write(tmp_path / f"{name}{seed}", [(1, 0.2), (end, 0.5)], seed, f"m{name}")
        for (name, seed), end in ends.items()
    ]
    compared = compare(read_groups(runs), {"gbit": [3, 8]})
    gaps = compared.gaps.loc[1]
    assert np.isfinite(gaps["accuracy_at_gbit_3", "mean"])
    assert np.isnan(gaps["accuracy_at_gbit_8", "mean"])
