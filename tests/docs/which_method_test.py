"""The table of all methods is complete, and what it says of them is so."""

import re
from pathlib import Path

import jax
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

import sparsefl_jax as sfl
from sparsefl_jax.core.types import ClientInfo
from sparsefl_jax.sparsity import masks
from tests.reference.by_hand import needed

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "which_method.md").read_text()
TABLES = DOCS.parent / "benchmarks/results/v2/tables"
CELLS = 9
KEEPS, MODEL = 3, 5  # columns
PLAIN = ("scaffold",)  # train by plain SGD alone


def rows():
    """Returns the cells of the first row of each method, by its name."""
    found = {}
    for line in re.findall(r"^\| \[`.*$", PAGE, re.M):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == CELLS, line
        found.setdefault(re.match(r"\[`(\w+)`\]", cells[0])[1], cells)
    return found


def test_every_method_has_a_row_and_links_to_its_page():
    assert set(rows()) == set(sfl.ALGORITHMS)
    for name, cells in rows().items():
        page = re.search(r"\]\((\S+)\)", cells[0])[1]
        assert f":func}}`~sparsefl_jax.{name}`" in (DOCS / page).read_text(), name


@pytest.mark.parametrize("name", sfl.ALGORITHMS)
def test_what_a_client_keeps_and_whose_model_it_is(name):
    factory, cells = sfl.ALGORITHMS[name], rows()[name]
    model = sfl.testing.tiny_model()
    momentum = 0.0 if name in PLAIN else 0.9
    optimizer = sfl.training.make_optimizer("sgd", momentum=momentum)
    algorithm = factory(model, optimizer, **needed(factory))

    def first(key):
        params, stats = model.init(key)
        start = sfl.SparseModel(params, masks.full(params), stats)
        info = ClientInfo(jax.numpy.int32(0), jax.numpy.int32(1), jax.numpy.float32(1))
        return algorithm.first_state(key, algorithm.init(key, start), info)

    state = jax.eval_shape(first, jax.random.key(0))
    assert cells[KEEPS].startswith("nothing") == (not jax.tree.leaves(state))
    personal = cells[MODEL].startswith("personal")
    assert personal == (algorithm.personalize is not None)


def test_every_interval_is_one_of_the_benchmark():
    """By the long tables of version 1, and by the scores of version 2."""
    allowed = set()
    for name, base in (
        ("v1_fashion", "fedavg"),
        ("v1_fashion_personal", "fedavg_own"),
        ("v1_cifar10", "fedavg"),
    ):
        table = pd.read_csv(TABLES / f"{name}.csv", index_col="method")
        columns = [100 * table[f"{base}: {key}"] for key in ("mean", "low", "high")]
        allowed |= set(zip(*columns, strict=True))
    if (TABLES / "fashion.csv").exists():
        scores = pd.read_csv(TABLES / "fashion.csv")
        scores = 100 * scores.pivot(index="seed", columns="method", values="score")
        for name in scores:
            tested = ttest_1samp(scores[name] - scores["fedavg"], 0.0)
            mean = (scores[name] - scores["fedavg"]).mean()
            allowed.add((mean, *tested.confidence_interval()))
    texts = {f"{m:+z.1f} [{low:+z.1f}, {high:+z.1f}]" for m, low, high in allowed}
    found = re.findall(r"[+-]\d+\.\d \[[^\]]+\]", PAGE)
    assert len(found) > 25 and set(found) <= texts
