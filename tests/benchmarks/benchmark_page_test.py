"""The benchmark's tables, from records that are written down by hand."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.v2 import page, rules
from benchmarks.v2.outcome import Reached

BUDGETS = rules.BUDGETS


def level(accuracy, rounds=100, last=None):
    """Returns what a run has reached whose accuracy is the same at all budgets."""
    tail = np.full(BUDGETS, accuracy)
    last = tail if last is None else np.full(BUDGETS, last)
    return Reached(tail, last, np.full(BUDGETS, rounds))


def by_seed(mean, spread=0.001, **options):
    """Returns ten runs around a mean."""
    signs = [1, -1] * 5
    return {s: level(mean + spread * sign, **options) for s, sign in enumerate(signs)}


def test_a_sentence_stands_if_all_outcomes_say_it():
    """With few rounds the last evaluations count, by which the first is not above."""
    runs = {
        "base": by_seed(0.7),
        "lucky": by_seed(0.8, spread=0.002, rounds=10, last=0.7),
        "sound": by_seed(0.8, spread=0.002),
    }
    found = page.compare(runs, {name: (name, "base") for name in ("lucky", "sound")})
    assert found["answer"].tolist() == ["above", "above"]
    assert found["guarded_answer"].tolist() == ["equivalent", "above"]
    assert found["stands"].tolist() == [False, True]
    assert found["whole"].tolist() == pytest.approx([0.1, 0.1])
    text = page.answers(found)
    assert "| `lucky` | +10.0 | +10.0 | +0.0 |" in text
    assert text.count("above, not by all") == 1


def test_a_family_is_opened_only_after_a_rejection():
    runs = {name: by_seed(0.7) for name in (*rules.CORE, rules.SMALL, rules.FEDAVG)}
    assert list(page.families(runs)) == [rules.SMALL]
    runs["stc"] = by_seed(0.8, spread=0.002)  # above both, and all three are opened
    assert list(page.families(runs)) == [rules.SMALL, rules.RANDOM, rules.FEDAVG]
    runs[rules.RANDOM] = by_seed(0.8, spread=0.002)
    found = page.families(runs)
    assert found[rules.RANDOM]["answer"]["stc"] == "equivalent"
    assert found[rules.RANDOM]["answer"]["topk"] == "below"


def test_the_row_of_a_method_is_of_version_2_or_else_of_each_density_of_version_1():
    """Ten values of +-.001 have s = .00105, half an interval 2.26 s / 10 ** .5."""
    new = {"stc": by_seed(0.8), "pdst": by_seed(0.7, spread=0.0)}
    old = {"stc .2": by_seed(0.9), "snip .05": by_seed(0.6), "snip .2": by_seed(0.65)}
    old |= {"fedavg": by_seed(0.5, spread=0.0)}
    found = page.compare(new, {"stc": ("stc", "pdst")})
    family = {"pdst": found.assign(stands=False)}
    second = [page.Source("X", new, ("", "", "pdst"), family)]
    first = [page.Source("Y", old, ("fedavg", "", ""), {})]
    head, _, *lines = page.rows((second, first), ["stc", "snip", "none"]).splitlines()
    assert head == "| method | data | score, % | less FedAvg | less a random mask |"
    said = "+10.0 [+9.9, +10.1], not by all outcomes"
    assert lines == [
        f"| `stc` | X | 80.0 ± 0.1 | - | {said} |",
        "| `snip .05` | Y, exploratory | 60.0 ± 0.1 | +10.0 [+9.9, +10.1] | - |",
        "| `snip .2` | Y, exploratory | 65.0 ± 0.1 | +15.0 [+14.9, +15.1] | - |",
    ]


def test_the_long_table_is_what_a_reader_computes_from_the_records():
    """STC's tail within 2 Gbit at density .05, by pandas alone, and its difference."""
    records = pd.read_csv(page.V1 / "fashion.csv")

    def tails(method, density):
        own = records[(records["method"] == method) & (records["density"] == density)]
        found = {}
        for seed, evals in own.groupby("seed"):
            evals = evals[evals["gbit"] <= 2.01]
            late = evals[evals["rounds"] > 0.8 * evals["rounds"].max()]
            found[seed] = late["accuracy"].mean()
        return pd.Series(found)

    table = pd.read_csv(page.LONG / "v1_fashion.csv", index_col="method")
    stc, random = tails("stc", 0.05), tails("pdst", 0.05)
    assert table["whole"]["stc .05"] == pytest.approx(stc.mean(), abs=1e-4)
    gap = table["pdst .05: whole"]["stc .05"]
    assert gap == pytest.approx((stc - random).mean(), abs=1e-4)
    assert gap == pytest.approx(0.029, abs=0.001)
