"""The sentences of docs/benchmark.md follow from the records."""

import re

import pytest

from benchmarks.v2 import page, rules

TEXT = " ".join((page.ROOT / page.PAGE).read_text().split())
SAID = r"`(\w+)` is ([\d.]+) (above|below) `(\w+)` \((-?[\d.]+) to (-?[\d.]+)\)"
SENTENCES = re.findall(SAID, TEXT)


@pytest.fixture(scope="module")
def runs():
    return page.read_v2("fashion").runs()


@pytest.fixture(scope="module")
def families(runs):
    return page.families(runs)


def test_no_interval_stands_outside_of_a_sentence():
    verdict = TEXT.partition("## What was seen before")[0]
    found = re.findall(r"\(-?\d+\.\d to -?\d+\.\d\)", verdict)
    assert len(found) == len(re.findall(SAID, verdict)) >= 8


@pytest.mark.parametrize("sentence", SENTENCES, ids="-".join)
def test_a_difference_is_that_of_the_records(runs, families, sentence):
    method, size, side, base, low, high = sentence
    primary = base in families and method in families[base].index
    found = families[base] if primary else page.compare(runs, {method: (method, base)})
    row = found.loc[method]
    sign = 1 if side == "above" else -1
    ends = sorted(100 * sign * row[key] for key in ("low", "high"))
    assert [f"{100 * sign * row['mean']:z.1f}", *(f"{v:z.1f}" for v in ends)] == [
        size,
        low,
        high,
    ]
    assert row["answer"] == side


@pytest.mark.parametrize("base", rules.FAMILIES)
def test_what_the_page_says_of_a_family_is_its_answers(families, base):
    """`<!-- BASE above: a b -->` names the members whose answer stands by all."""
    found = families[base]
    stand = found[found["stands"]]
    for answer in ("above", "below", "equivalent", "undecided"):
        said = re.search(rf"<!-- {base} {answer}: ([\w ]*?) ?-->", TEXT)[1].split()
        assert set(said) == set(stand.index[stand["answer"] == answer])
