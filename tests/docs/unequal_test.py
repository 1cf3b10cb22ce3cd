"""The page of unequal clients shows what its records say, and its tiers fit."""

from benchmarks import unequal
from studies import unequal_clients as study


def test_the_page_shows_what_its_records_say():
    page = (unequal.ROOT / unequal.PAGE).read_text()
    for name, text in unequal.tables(unequal.published()["study"]).items():
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
