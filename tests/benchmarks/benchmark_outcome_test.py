"""The outcome of a run of the benchmark, and its comparisons, by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.v2 import outcome, rules
from benchmarks.v2.outcome import Reached


def evals(accuracy, every=1, gbit=0.01):
    """Returns evaluations after every so many rounds, which cost `gbit` each."""
    rounds = every * np.arange(1, len(accuracy) + 1)
    table = {"rounds": rounds, "gbit": gbit * rounds, "accuracy": accuracy}
    return pd.DataFrame(table)


def test_the_last_fifth_of_the_rounds_is_averaged_if_it_has_three_evaluations():
    """After 15 rounds these are 13, 14, 15; after 14 only 12, 13, 14 (above 11.2)."""
    table = evals(np.arange(1, 21) / 100)
    run = outcome.reached(table, [0.02, 0.10, 0.15, 0.20])
    np.testing.assert_allclose(run.tail, [0.02, 0.10, 0.14, 0.185])
    np.testing.assert_allclose(run.last, [0.02, 0.10, 0.15, 0.20])
    assert run.rounds.tolist() == [2, 10, 15, 20]


def test_a_run_that_ended_early_keeps_its_last_fifth():
    """Evaluations after 3, 6, ... 30 rounds; 27 and 30 are two, and too few."""
    run = outcome.reached(evals(np.arange(1, 11) / 100, every=3), [0.3, 5.0])
    np.testing.assert_allclose(run.tail, [0.10, 0.10])
    long = outcome.reached(evals(np.arange(1, 31) / 100, every=3), [5.0])
    np.testing.assert_allclose(long.tail, [np.mean([25, 26, 27, 28, 29, 30]) / 100])


def test_a_run_that_diverges_or_cannot_pay_has_the_accuracy_of_chance():
    lost = pd.concat([evals([0.5] * 20), pd.DataFrame([{"accuracy": None}])])
    assert outcome.reached(lost, [0.1, 1.0]).tail.tolist() == [0.1, 0.1]
    nothing = pd.DataFrame([dict.fromkeys(("rounds", "gbit", "accuracy"))])
    assert outcome.score(outcome.reached(nothing, [0.1, 1.0])) == 0.1
    late = outcome.reached(evals([0.5] * 20, gbit=0.3), [0.2, 0.3])
    assert late.tail.tolist() == [0.1, 0.5]


def test_the_budgets_are_a_decade_in_equal_steps_of_log_bits():
    found = rules.budgets(2.0)
    np.testing.assert_allclose(found[[0, -1]], [0.2, 2.0])
    np.testing.assert_allclose(found[1:] / found[:-1], 10 ** (1 / 9))


def test_a_run_with_few_rounds_counts_with_its_last_evaluation_for_both():
    one = Reached(np.array([0.6, 0.8]), np.array([0.5, 0.9]), np.array([14, 200]))
    other = Reached(np.array([0.5, 0.7]), np.array([0.3, 0.2]), np.array([40, 15]))
    assert outcome.guarded(one, other) == pytest.approx((0.2 + 0.1) / 2)
    gaps = outcome.outcomes({7: one}, {7: other})
    assert gaps["primary"] == pytest.approx([0.1])
    assert gaps["whole"] == pytest.approx([0.1])
    assert gaps["guarded"] == pytest.approx([0.15])


def test_a_difference_by_hand():
    """Of 1, 2, 3, 6 points: mean 3, deviation sqrt(14 / 3), t = 3 / 1.0801 = 2.7775.

    Its error is 1.0801, and t with 3 degrees at 2.5 % is 3.1824. Of the 16 signs, only
    all plus and all minus are as far from 0.
    """
    found = outcome.difference([0.01, 0.02, 0.03, 0.06])
    assert found.mean == pytest.approx(0.03)
    assert found.high - found.mean == pytest.approx(3.1824 * 0.010801, rel=1e-4)
    assert found.p == pytest.approx(2 * stats.t.sf(2.7775, 3), rel=1e-4)
    assert found.flips == 2 / 16
    p = stats.t.sf((0.01 - 0.03) / 0.010801, 3)
    assert found.equivalence == pytest.approx(p, rel=1e-4)


def test_equal_runs_are_equivalent_and_the_floor_of_ten_seeds_is_two_of_1024():
    same = outcome.difference([0.0] * 10)
    assert (same.p, same.flips, same.equivalence) == (1.0, 1.0, 0.0)
    far = outcome.difference([0.05, 0.04, 0.06] * 3 + [0.05])
    assert far.flips == 2 / 1024
    assert outcome.difference([0.05] * 10).equivalence == 1.0


def test_answers_of_a_family():
    """Four members with ten seeds, whose noise has mean 0 and a known size."""
    noise = np.array([1, -1] * 5)
    gaps = {
        "better": 0.05 + 0.01 * noise,
        "worse": -0.05 + 0.01 * noise,
        "same": 0.001 * noise,
        "unknown": 0.05 * noise,
    }
    found = outcome.compare(gaps)
    answers = ["above", "below", "equivalent", "undecided"]
    assert found["answer"][[*gaps]].tolist() == answers
    p = stats.ttest_1samp(gaps["better"], 0).pvalue  # the smallest of four, as is worse
    assert found["holm"]["better"] == pytest.approx(4 * p)
    assert found["bh"]["better"] == pytest.approx(4 * p / 2)


def test_holm_by_hand():
    assert outcome.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )


def test_the_least_bits_to_a_target():
    table = evals([0.1, 0.5, 0.7, 0.6], gbit=0.5)
    assert outcome.cost_of(table, 0.65) == 1.5
    assert outcome.cost_of(table, 0.75) == np.inf
