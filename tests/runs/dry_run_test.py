"""What is known of a run before it begins, by hand."""

import re
import warnings

import pytest

import sparsefl_jax as sfl
from sparsefl_jax.core.formats import format_si
from sparsefl_jax.runs import describe
from sparsefl_jax.runs.plan import plan
from sparsefl_jax.runs.setup import Setup
from tests.tiny import federation

SIZES = (12, 20, 33, 41, 70, 24)
WIDTH, INPUTS, CLASSES, BATCH = 256, 12, 4, 8
KERNELS = INPUTS * WIDTH + WIDTH * CLASSES
DENSE = KERNELS + WIDTH + CLASSES


@pytest.fixture(scope="module")
def world():
    """Uneven clients, an MLP of some thousand weights, a loss and an optimizer."""
    return federation(SIZES, 100, CLASSES, (2, 6, 1), (WIDTH,))


def stage(method, rounds, cohort=3, **kwargs):
    return sfl.Stage(method, rounds, cohort, 2, BATCH, **kwargs)


def parts_of(world, stages, **settings):
    data, model, _ = world
    setup = Setup(stages, model, data, **settings)
    return plan(setup)


def rows(text):
    """Returns the cells of the table by the name of the row."""
    cells = [re.split(r" {2,}", line) for line in text.splitlines()]
    # Units are joined by one space, and names may begin with several.
    return {row[-2].strip(): row[-1] for row in cells if len(row) > 1}


def test_fedavg_by_hand(world):
    text = describe.text(parts_of(world, [stage(sfl.fedavg(*world[2]), 4, 6)]))
    told = rows(text)
    assert told["weights under a mask"] == "0"
    devices, images = 2, 200 * INPUTS * 4
    tables = 200 * 4 + 6 * max(SIZES) * 4 + 6 * 12
    assert told["memory: population"] == format_si(devices * (images + tables), "B")
    assert told["memory: test set"] == format_si(100 * (INPUTS * 4 + 4), "B")
    assert told["memory: server"] == format_si(devices * 4 * DENSE, "B")
    assert "memory: working set" not in told  # which no shape tells
    assert told["total"].startswith("4 rounds, at least ")


def test_a_pooled_metric_of_a_model_that_nobody_trains_is_told(world):
    with pytest.warns(UserWarning, match="pooled.* nobody trains; metric='clients'"):
        parts_of(world, [stage(sfl.spafl(*world[2]), 2)], metric="pooled")
    with warnings.catch_warnings(action="error"):
        parts_of(world, [stage(sfl.spafl(*world[2]), 2)])
        parts_of(world, [stage(sfl.ditto(*world[2]), 2)], metric="pooled")
