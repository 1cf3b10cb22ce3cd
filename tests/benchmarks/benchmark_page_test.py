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


def rows(label, seeds, accuracy, gbit=2.0):
    number = np.arange(1, 21)
    return pd.concat(
        pd.DataFrame({"label": label, "seed": seed, "rounds": number})
        .assign(gbit=gbit * number / 20, accuracy=accuracy)
        .assign(method=label, density=1.0)
        for seed in seeds
    )


def test_what_methods_reach_the_best_first():
    """A run that has reached the limit of rounds is marked; its last model counts."""
    early = rows("a", (0, 1), 0.5)
    early = early[early["rounds"] < 20]
    table = pd.concat([early, rows("b", (0, 1), 0.75, gbit=0.2)])
    records = page.Records("fashion", table, 2.0, 20, (0.6, 0.8))
    runs = records.runs()
    lines = page.summary(records, runs, ["a", "b"]).splitlines()[2:]
    assert lines[0] == "| `b` | 75.0 ± 0.0 | 75.0 ± 0.0 | 75.0 ± 0.0 | 0.2* | 20 |"
    assert lines[1] == "| `a` | 50.0 ± 0.0 | 50.0 ± 0.0 | 50.0 ± 0.0 | 1.9 | 19 |"
    text = page.costs(records, ["a", "b"])
    assert "| `a` | - | - |" in text and "| `b` | 0.01 | - |" in text


def test_version_1_is_shown_without_what_has_changed_since():
    common = page.read_v1("fashion", 2.0)
    labels = set(common.rows["label"])
    assert {"fedavg", "pdst .05", "pdst .2", "stc .05"} <= labels
    assert not {name.partition(" ")[0] for name in labels} & set(page.CHANGED)
    assert not labels & {"spafl", "ditto"}
    personal = page.read_v1("fashion", 2.0, personal=True)
    assert {"spafl", "ditto", "fedavg_own"} <= set(personal.rows["label"])


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
