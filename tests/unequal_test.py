"""The page of unequal clients shows what its records say, and its tiers fit."""

import pandas as pd
import pytest

from benchmarks import unequal
from studies import unequal_clients as study


def test_the_page_shows_what_its_records_say():
    page = (unequal.ROOT / unequal.PAGE).read_text()
    for name, text in unequal.tables(unequal.published()).items():
        assert f"<!-- table {name} -->\n{text}\n<!-- end -->" in page, name


def test_a_width_keeps_the_most_weights_that_a_tier_allows():
    def weights(units):
        return 784 * units + units**2 + 10 * units

    for size, units in zip(study.SIZES, study.UNITS, strict=True):
        assert weights(units) <= size * weights(256) < weights(units + 1)
    held = {e["point"]: e["weights"] for e in unequal.published()["study"]}
    assert held["heterofl"] == held["fedrolex"] == held["fjord"]
    assert held["heterofl"] == [weights(units) for units in study.UNITS]
    shares = [int(size * weights(256)) for size in study.SIZES]
    assert held["fiarse"] == held["hetero_spdst"] == shares


def entry(point, seed, accuracy):
    return {"point": point, "seed": seed, "accuracy": accuracy, "positions": 0.25} | {
        "gbit": 2.0,
        "gflop": 3.0,
    }


def test_differences_are_paired_by_seed():
    tens = [entry("heterofl", s, [0.5 + s / 10] * 4) for s in range(3)]
    more = [entry("fiarse", s, [0.6 + s / 10] * 3 + [0.5]) for s in range(3)]
    accuracies = unequal.reached(tens + more)
    assert isinstance(accuracies["fiarse"], pd.DataFrame)
    assert accuracies["fiarse"]["mean"][2] == pytest.approx((3 * 0.8 + 0.5) / 4)
    row = unequal.compared(accuracies).splitlines()[-1]
    assert row.startswith("| `fiarse` | +10.0 [+10.0, +10.0], p < 0.01")
    # 0, -.1 and -.2: a mean of -.1 and 4.3027 * .1 / sqrt(3) around it
    assert "| -10.0 [-34.8, +14.8]" in row
    table = unequal.by_tier(tens + more, accuracies).splitlines()[-1]
    assert table.startswith("| `fiarse` | 70.0 ± 10.0 |")
    assert table.endswith("| 2.00 | 25.0 % | 3 |")
