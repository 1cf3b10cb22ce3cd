"""The table of all methods is complete, and what it says of them is so."""

import re
from pathlib import Path

import jax
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.core.types import ClientInfo
from sparsefl_jax.sparsity import masks
from tests.reference.by_hand import needed

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "methods/index.md"
CELLS = 6
KEEPS, MODEL = 3, 4  # columns
PLAIN = ("scaffold",)  # train by plain SGD alone


def rows():
    """Returns the cells of each method, by its name."""
    found = {}
    for line in re.findall(r"^\| \[`.*$", PAGE.read_text(), re.M):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == CELLS, line
        found[re.match(r"\[`(\w+)`\]", cells[0])[1]] = cells
    return found


def test_every_method_has_a_row_and_links_to_its_page():
    assert set(rows()) == set(sfl.ALGORITHMS)
    for name, cells in rows().items():
        page = re.search(r"\]\((\S+)\)", cells[0])[1]
        text = (PAGE.parent / page).read_text()
        assert f":func}}`~sparsefl_jax.{name}`" in text, name


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
