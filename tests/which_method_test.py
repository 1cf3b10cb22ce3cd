"""The table of all methods is complete, and what it says of them is so."""

import re
from pathlib import Path

import jax
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.core.types import ClientInfo
from sparsefl_jax.sparsity import masks
from tests.by_hand import needed

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "which_method.md").read_text()
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
    interval = re.compile(r"[+-]\d+\.\d \[[^\]]+\]")
    on_fashion = ("fashion_common_against", "fashion_personal_against")
    tables = {"": on_fashion, "#results-on-cifar-10": ("cifar10_common_against",)}
    text, found = (DOCS / "benchmark.md").read_text(), []
    for anchor, names in tables.items():
        parts = [text.split(f"<!-- table {name} -->")[1] for name in names]
        lines = "".join(t.split("<!-- end -->")[0] for t in parts).splitlines()
        within_gbit = {line.split("|")[2] for line in lines if "`" in line}
        cited = re.findall(rf"\(benchmark\.md{anchor}\): ([^|;]*)", PAGE)
        intervals = interval.findall(" ".join(cited))
        assert all(any(i in cell for cell in within_gbit) for i in intervals)
        found.append(len(intervals))
    assert found == [40, 1] and len(interval.findall(PAGE)) == 41
