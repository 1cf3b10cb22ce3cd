"""What is known of a run before it begins, by hand, and what a few rounds cost."""

import re

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


def test_what_follows_from_rounds_that_ran(world):
    """Of four rounds two are measured, whose first costs more; and a stage of one."""

    def record(bits, flops):
        return {"bits_down": bits, "bits_up": 2 * bits, "flops": flops}

    first = [record(10**6, 1e9)]
    main = [record(3 * 10**6, 2e9), record(10**6, 1e9)]
    method = sfl.fedavg(*world[2])
    parts = parts_of(world, [stage(method, 1), stage(method, 4)])
    found = [first, main], [5.0, 60.0]
    lines = describe.describe_measured(parts.setup, 2, found).splitlines()
    assert lines[0].split()[2:] == ["1", "of", "1", "2", "of", "4"]
    assert lines[1].split()[-4:] == ["3.00", "Mbit", "9.00", "Mbit"]
    assert lines[2].split()[-4:] == ["3.00", "Mbit", "3.00", "Mbit"]
    assert lines[4].split()[-4:] == ["5.0", "s", "30.0", "s"]
    # 3, then 9 and three times 3 Mbit; 1, then 2 and three times 1 GFLOP; 5 and 4 x 30.
    assert lines[6] == "follows   21.0 Mbit, 6.00 GFLOP, 2 min 5 s"
