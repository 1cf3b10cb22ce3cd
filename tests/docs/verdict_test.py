"""What docs/benchmark.md and the pages that repeat it say follows from the records."""

import functools
import re

import pytest

from benchmarks.v2 import page, rules

TEXT = " ".join((page.ROOT / "docs/benchmark.md").read_text().split())
SAID = r"`(\w+)` is ([\d.]+) (above|below) `(\w+)` \((-?[\d.]+) to (-?[\d.]+)\)"
REPEATED = [
    (page.ROOT / "docs" / name).read_text()
    for name in ("equal_cost.md", "which_method.md")
]
PARTS = re.split("<!-- runs (.*?) -->", f"<!-- runs fashion -->{TEXT}")[1:]
PARTS += ["fashion", " ".join(" ".join(REPEATED).split())]
SENTENCES = [  # with the workload that they are about, and its last budget
    (*part.split(), *sentence)
    for part, text in zip(PARTS[::2], PARTS[1::2], strict=True)
    for sentence in re.findall(SAID, text)
]


@functools.cache
def read(workload, gbit=None):
    return page.read_v2(workload).runs(gbit and float(gbit))


@pytest.fixture(scope="module")
def families():
    return page.families(read("fashion"))


def test_no_interval_stands_outside_of_a_sentence():
    found = re.findall(r"\(-?\d+\.\d to -?\d+\.\d\)", TEXT)
    assert len(found) == len(re.findall(SAID, TEXT)) >= 8


@pytest.mark.parametrize("sentence", SENTENCES, ids="-".join)
def test_a_difference_is_that_of_the_records(families, sentence):
    *about, method, size, side, base, low, high = sentence
    if about == ["fashion"] and base in families and method in families[base].index:
        row = families[base].loc[method]
    else:
        row = page.compare(read(*about), {method: (method, base)}).loc[method]
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


def test_the_example_of_equal_cost_has_the_rounds_and_scores_of_the_records():
    rows = re.findall(r"\| `(\w+)` \| (\d+) \| ([\d.]+) \|", REPEATED[0])
    assert len(rows) == 3
    for name, rounds, score in rows:
        found = page.scores(read("fashion"), [name])
        assert f"{found['rounds'].mean():.0f}" == rounds
        assert f"{100 * found['score'].mean():.1f}" == score
