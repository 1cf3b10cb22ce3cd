"""The study of text adapters: what its tables take from the records of runs."""

import numpy as np
import pytest

from benchmarks import text
from studies import text_adapters as study


def entry(point, seed, *curve):
    rows = [[done, gbit, accuracy, None] for done, gbit, accuracy in curve]
    return {"point": point, "seed": seed, "curve": rows, "positions": 0.0}


def test_the_end_is_the_mean_of_the_last_fifth_of_the_rounds():
    curve = [(done, done / 10, done / 100) for done in range(4, 61, 4)]
    table = text.evals(entry("rank-1", 0, *curve))
    # Of 60 rounds those after 48: 52, 56 and 60.
    assert text.at_end(table) == pytest.approx((0.52 + 0.56 + 0.60) / 3)
    assert text.spent(table) == 6.0


def test_a_run_without_an_evaluation_within_a_budget_answers_with_the_larger_class():
    table = text.evals(entry("rank-16", 0, (4, 4.0, 0.8)))
    scores = text.outcome.reached(table, [1.0, 4.0])
    np.testing.assert_allclose(scores.last, [444 / 872, 0.8])


def test_tables_compare_points_by_seed():
    names = dict.fromkeys([*study.POINTS], 0.7) | {"flasc-0.25": 0.75, "rank-2": 0.72}
    runs = [
        entry(name, seed, (30, 0.5, 0.6), (60, 1.0, accuracy + seed / 100))
        for name, accuracy in names.items()
        for seed in range(3)
    ]
    tries = [entry("rank-1-rate=0.01", 3, (30, 0.5, 0.6))]
    for each in tries:
        each["curve"][0][3] = 0.65
    pooled = [entry("pooled-head", seed, (1, 0.0, 0.8)) for seed in range(2)]
    torch = [{"point": "pooled-head", "accuracy": 0.79} for _ in range(2)]
    worse = {"rank-1": 0.0, "flasc-0.25": 0.01}  # a seed later by so much more
    again = [
        entry(point, 4 + seed, (60, 1.0, 0.7 - (1 + seed) * less))
        for point, less in worse.items()
        for seed in range(3)
    ]
    found = {"study": runs, "tuning": tries, "pooled": pooled, "torch": torch}
    tables = text.tables(found | {"again": again})
    # All seeds move by the same hundredth, so that the difference is exact.
    assert "| `flasc-0.25` - `rank-16` | +5.0 [+5.0, +5.0]" in tables["text_rounds"]
    # Of ten budgets from 0.1 to 1 Gbit, seven are below 0.5, two pay for round 30 and
    # one for all 60: 3 points in a tenth of the budgets.
    assert "| `flasc-0.25 - rank-2` | +0.3 | +3.0 | +0.3 |" in tables["text_bits"]
    # Only the last budget pays for the one evaluation: 1, 2 and 3 points in a tenth.
    told = "| `flasc-0.25 - rank-1` | -0.2 | -2.0 | -0.2 | [-0.4, +0.0] | 0.074 |"
    assert told in tables["text_bits_again"]
    assert "| `rank-1` | 65.0 |" in tables["text_tuning"]
    assert "| `pooled-head` | 80.0 ± 0.0 | 79.0 ± 0.0 |" in tables["text_pooled"]


def test_six_points_run_again_on_six_other_seeds():
    points = {point.name: point for point in study.get_study("again")}
    compared = {name for pair in text.BITS for name in pair} | {text.DENSE}
    assert set(points) == compared
    assert {point.seeds for point in points.values()} == {range(4, 10)}
    rates = {
        name: p.config.server_optimizer.learning_rate for name, p in points.items()
    }
    assert (rates["rank-1"], rates["flasc-0.0625"]) == (0.01, 0.03)


def test_points_differ_in_method_rank_and_what_stays():
    points = {p.name: p.config for p in study.get_study("tune")}
    assert len(points) == 3 * len(study.POINTS)
    config = points["ffa-16-rate=0.01"]
    assert config.adapter.freeze == ("*lora_a*",) and config.adapter.rank == 16
    assert config.server_optimizer.learning_rate == 0.01
    with pytest.raises(ValueError, match="text_adapters.py:x, expected"):
        study.get_study("x")
