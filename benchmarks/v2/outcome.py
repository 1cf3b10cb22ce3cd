"""What a run of the benchmark has reached, and how methods are compared.

A run is a table of its evaluations, in order: `rounds`, `gbit`, `accuracy` and more
columns, see `run.EVALUATIONS`. All constants are in `rules.py`.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.v2 import rules


class Reached(NamedTuple):
    """The accuracies of a run within budgets, each [B] float."""

    tail: np.ndarray  # the mean of the last part of the rounds done by then
    last: np.ndarray  # of the last evaluation
    rounds: np.ndarray  # done by then


def reached(evals: pd.DataFrame, budgets: Sequence, column: str = "accuracy"):
    """Returns what a run has reached within budgets.

    Args:
      evals: of one run; one that diverged has a last row without an accuracy.
      budgets: [B], in Gbit.
      column: `'accuracy'`, or `'validation'`.

    Returns:
      A `Reached`. The tail is that of the evaluations in the last fifth of the rounds
      done within a budget, or the last one if they are fewer than three. A run that
      diverges, or has no evaluation within a budget, has the accuracy of chance.

    Example:
      >>> evals = {"rounds": range(1, 21), "gbit": range(1, 21), "accuracy": 0.5}
      >>> evals = pd.DataFrame(evals)
      >>> evals.loc[19, "accuracy"] = 0.9
      >>> reached(evals, [0.5, 10, 20])
      Reached(tail=array([0.1, 0.5, 0.6]), last=array([0.1, 0.5, 0.9]), rounds=array([ 0, 10, 20]))
    """  # noqa: E501
    rounds, gbit = (evals[name].to_numpy(float) for name in ("rounds", "gbit"))
    accuracy, found = evals[column].to_numpy(float), []
    for budget in budgets:
        count = int(np.searchsorted(gbit, budget * rules.SLACK, "right"))
        if not count or np.isnan(accuracy).any():
            found.append(
                (rules.CHANCE, rules.CHANCE, int(rounds[:count].max(initial=0)))
            )
            continue
        own, done = accuracy[:count], int(rounds[count - 1])
        tail = own[rounds[:count] > (1 - rules.TAIL) * done]
        mean = tail.mean() if len(tail) >= rules.LEAST else own[-1]
        found.append((float(mean), float(own[-1]), done))
    return Reached(*map(np.array, zip(*found, strict=True)))


def score(run: Reached) -> float:
    """Returns the primary outcome of a run: the mean of its tails over the budgets."""
    return float(run.tail.mean())


def guarded(one: Reached, other: Reached) -> float:
    """Returns the difference of two runs' scores, where few rounds are not averaged.

    At every budget where either has done fewer than `rules.FEW` rounds, both count with
    their last evaluations.

    Example:
      >>> few = Reached(np.array([0.5]), np.array([0.4]), np.array([5]))
      >>> many = Reached(np.array([0.7]), np.array([0.9]), np.array([50]))
      >>> round(guarded(many, few), 3), round(guarded(many, many), 3)
      (0.5, 0.0)
    """
    few = np.minimum(one.rounds, other.rounds) < rules.FEW
    gaps = np.where(few, one.last - other.last, one.tail - other.tail)
    return float(gaps.mean())


def cost_of(evals: pd.DataFrame, target: float) -> float:
    """Returns the least Gbit at which a run's tail reaches an accuracy; inf if never.

    Args:
      evals: of one run.
      target: the accuracy.

    Example:
      >>> evals = {"rounds": [1, 2], "gbit": [1.0, 2.0], "accuracy": [0.5, 0.7]}
      >>> cost_of(pd.DataFrame(evals), 0.6), cost_of(pd.DataFrame(evals), 0.8)
      (2.0, inf)
    """
    costs = evals["gbit"].dropna().to_numpy(float)
    enough = reached(evals, costs / rules.SLACK).tail >= target
    return float(costs[enough.argmax()]) if enough.any() else np.inf


class Difference(NamedTuple):
    """A method less its baseline, in shares, over paired seeds."""

    mean: float
    low: float  # of the 95 % interval of Student's t
    high: float
    p: float  # of t
    flips: float  # p of the exact test that flips the signs of differences
    equivalence: float  # p that the difference is within the margin, by two tests of t


def difference(gaps: Sequence[float]) -> Difference:
    """Tests paired differences.

    Args:
      gaps: by seed, at least two.

    Example:
      >>> difference([0.01, 0.02, 0.03, 0.02]).flips  # 2 of 2^4 signs
      0.125
    """
    gaps, margin = np.asarray(gaps, float), rules.MARGIN
    if not np.ptp(gaps):  # t is 0 / 0
        same = abs(gaps[0]) < margin
        flips, certain = sign_flips(gaps), float(gaps[0] == 0)
        return Difference(*[float(gaps[0])] * 3, certain, flips, 1.0 - same)
    tested = stats.ttest_1samp(gaps, 0.0)
    above = stats.ttest_1samp(gaps, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(gaps, margin, alternative="less").pvalue
    low, high = tested.confidence_interval()
    p = float(tested.pvalue), sign_flips(gaps), float(max(above, below))
    return Difference(float(gaps.mean()), float(low), float(high), *p)


def sign_flips(gaps: Sequence[float]) -> float:
    """Returns the share of all signs of differences whose mean is as far from 0.

    Example:
      >>> sign_flips([1.0, 1.0, -1.0])  # |sum| is at least 1 always
      1.0
    """
    gaps = np.asarray(gaps, float)
    signs = np.array(list(itertools.product((1, -1), repeat=len(gaps))))
    sums = np.abs(signs @ gaps)
    return float(np.mean(sums >= np.abs(gaps.sum()) * (1 - 1e-9)))


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Corrects p-values of a family by Holm's method (Scandinavian J. of Stat., 1979).

    Example:
      >>> holm([0.04, 0.01, 0.03]).tolist()  # 3 * .01; 2 * .03; .04 is not below it
      [0.06, 0.03, 0.06]
    """
    order, count = np.argsort(p_values, kind="stable"), len(p_values)
    scaled = np.sort(p_values) * np.arange(count, 0, -1)
    corrected = np.zeros(count)
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected


def answer(found: Difference, p: float, equivalence: float) -> str:
    """Returns 'above', 'below', 'equivalent' or 'undecided', by corrected p-values."""
    if p < rules.LEVEL:
        return "above" if found.mean > 0 else "below"
    return "equivalent" if equivalence < rules.LEVEL else "undecided"


def compare(gaps: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """Compares the members of a family with its baseline.

    Args:
      gaps: differences of each member, by seed.

    Returns:
      A row for each: the fields of `Difference`, `holm` and `holm_equivalence`, the
      corrected p-values, `bh`, those by Benjamini and Hochberg, and `answer`.
    """
    found = pd.DataFrame([difference(each) for each in gaps.values()], index=[*gaps])
    found["holm"] = holm(found["p"])
    found["holm_equivalence"] = holm(found["equivalence"])
    found["bh"] = stats.false_discovery_control(found["p"])
    found["answer"] = [
        answer(Difference(*row[:6]), row[6], row[7])
        for row in found.itertuples(index=False)
    ]
    return found


def outcomes(
    one: Mapping[int, Reached], other: Mapping[int, Reached]
) -> dict[str, list[float]]:
    """Returns the differences of two methods by the three outcomes of a sentence.

    Args:
      one: the runs of the method, by seed.
      other: those of the baseline, of the same seeds.

    Returns:
      By outcome a difference for each seed: `primary`, the score; `whole`, the tail
      within the whole budget; `guarded`, the score where few rounds are not averaged.
    """
    pairs = [(one[seed], other[seed]) for seed in sorted(other)]
    return {
        "primary": [score(a) - score(b) for a, b in pairs],
        "whole": [float(a.tail[-1] - b.tail[-1]) for a, b in pairs],
        "guarded": [guarded(a, b) for a, b in pairs],
    }


def paired(
    values: Mapping[str, pd.Series], pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Formats differences of accuracies, their 95 % intervals, and p by Holm's method.

    Args:
      values: the accuracies of each method, by seed.
      pairs: names of two methods.

    Returns:
      A text for each pair, in points; '-' for one of which a seed lacks a method.

    Example:
      >>> values = {"a": pd.Series([0.51, 0.62, 0.76]), "b": pd.Series([0.5, 0.6, 0.7])}
      >>> paired(values, [("a", "b")])
      {('a', 'b'): '+3.0 [-3.6, +9.6], p = 0.19'}
    """
    gaps = {pair: values[pair[0]] - values[pair[1]] for pair in pairs}
    found = {
        pair: difference(each)
        for pair, each in gaps.items()
        if len(each) > 1 and each.notna().all()
    }
    texts = dict.fromkeys(pairs, "-")
    corrected = holm([each.p for each in found.values()])
    for (pair, each), p in zip(found.items(), corrected, strict=True):
        mean, low, high = (100 * value for value in each[:3])
        said = "p < 0.01" if p < 0.01 else f"p = {p:.2f}"
        texts[pair] = f"{mean:+z.1f} [{low:+z.1f}, {high:+z.1f}], {said}"
    return texts
