"""The plan before round 1 against runs, and against figures computed by hand."""

import json

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.runs.plan import checks, describe, formatting
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import initial_state

SIZES = (12, 20, 33, 41, 70, 24)
WIDTH, INPUTS, CLASSES, BATCH = 256, 12, 4, 8
KERNELS = INPUTS * WIDTH + WIDTH * CLASSES
DENSE = KERNELS + WIDTH + CLASSES


@pytest.fixture(scope="module")
def world():
    """Uneven clients, an MLP of some thousand weights, a loss and an optimizer."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2, 6, 1)).astype(np.float32)
    y = (np.arange(300) % CLASSES).astype(np.int32)
    parts = np.split(np.arange(200), np.cumsum(SIZES)[:-1])
    data = sfl.from_arrays(
        x[:200], y[:200], x_test=x[200:], y_test=y[200:], partition=parts
    )
    model = sfl.models.build("mlp", CLASSES, data.x.shape[1:], widths=(WIDTH,))
    return data, model, (model, sfl.training.make_optimizer())


def stage(method, rounds, cohort=3, **kwargs):
    return sfl.Stage(method, rounds, cohort, 2, BATCH, **kwargs)


def plan_of(setup, key=None):
    return describe.describe(setup, checks.run(setup), key)


def mean(run, index, key):
    train = [r for r in run.metrics if r["phase"] == "train" and r["stage"] == index]
    return sum(r[key] for r in train) / len(train)


@pytest.mark.slow
def test_two_stages_as_they_run(world, key):
    data, model, parts = world
    stages = [
        stage(sfl.pdst(*parts, density=0.2), 2),
        stage(sfl.spdst(*parts), 6),
    ]
    plan = plan_of(Setup(stages, model, data, eval_every=6), key=key)
    run = sfl.run(key, stages, model, data, eval_every=6)
    for index, told in enumerate(plan["stages"]):
        for name in ("flops_dense", "flops_executed"):  # of the very cohorts
            assert told[name] == pytest.approx(mean(run, index, name), rel=1e-6)
        for name in ("bits_down", "bits_up"):
            low, high = told[name]
            assert 0.9 * low <= mean(run, index, name) <= 1.1 * high
        assert mean(run, index, "flops") <= told["flops_most"]
    gbit = run.metrics[-1]["gbit_cumulative"]
    low, high = plan["total"]["gbit"]
    assert 0.95 * low <= gbit <= 1.05 * high
    assert json.loads(json.dumps(plan)) == plan


def test_fedavg_and_memory_by_hand(world):
    data, model, parts = world
    method = sfl.fedavg(*parts, keep_optimizer=True)
    plan = plan_of(Setup([stage(method, 4, 6)], model, data))
    (told,) = plan["stages"]
    assert told["bits_down"] == told["bits_up"] == 2 * [6 * 32 * DENSE]
    assert told["masked"] == 0  # nothing comes under a mask
    assert told["flops_dense"] == 6 * KERNELS * 2 * sum(SIZES)  # everyone, two epochs
    sorts = 2 * sum(-(-n // BATCH) for n in SIZES) * DENSE * np.log2(DENSE + 1)
    assert told["flops_most"] == pytest.approx(told["flops_dense"] + sorts)
    assert "at most" in formatting.text(plan)
    # One client a device: nobody waits for a longer one, batches are filled up.
    slots = sum(-(-n // BATCH) * BATCH for n in SIZES)
    assert told["flops_executed"] == 6 * KERNELS * 2 * slots
    devices, images = 2, 200 * INPUTS * 4
    tables = 200 * 4 + 6 * max(SIZES) * 4 + 6 * 12
    assert told["memory"]["population"] == devices * (images + tables)
    assert told["memory"]["test set"] == 100 * (INPUTS * 4 + 4)
    assert told["memory"]["clients"] == 0  # plain SGD has nothing to keep
    assert told["memory"]["server"] == devices * 4 * DENSE
    assert "working set" not in told["memory"]  # which no shape tells
    assert "at least" in formatting.text(plan)
    assert plan["model"]["parameters"] == DENSE
    assert plan["clients"]["train"] == {"min": 12, "median": 28.5, "max": 70}
    assert plan["clients"]["largest_share"] == 70 / 200
    assert "(median 28.5, the largest 35.0 % of all)" in formatting.text(plan)
    assert "entropy of a client " in formatting.text(plan)


def test_padding_to_the_longest_of_a_chunk(world):
    data, model, parts = world
    plan = plan_of(Setup([stage(sfl.fedavg(*parts), 1, 6)], model, data, chunk=3))
    # Sorted 70 41 33 | 24 20 12: every client as long as the first of its three.
    slots = 3 * (72 + 24)
    assert plan["stages"][0]["flops_executed"] == 6 * KERNELS * 2 * slots


def test_a_mask_that_stays_is_known_and_one_that_changes_is_not(world):
    data, model, parts = world
    dense, whole = 32 * (DENSE - KERNELS), 32 * DENSE + KERNELS
    slack = 5 * np.sqrt(KERNELS * 0.2 * 0.8) + 1
    told = {}
    for name in ("pdst", "nst"):
        method = getattr(sfl, name)(*parts, density=0.2)
        (told[name],) = plan_of(Setup([stage(method, 12)], model, data))["stages"]
    most = 32 * (0.2 * KERNELS + slack) + dense + KERNELS
    for name in ("bits_down", "bits_up"):
        assert told["pdst"][name] == pytest.approx([3 * dense, 3 * most], abs=3 * 33)
    assert told["pdst"]["density"] == pytest.approx(0.2)
    # The union of masks that clients choose may be whole.
    seed = 32 * 6 / 12  # once for each of six clients, in twelve rounds
    assert told["nst"]["bits_down"] == [3 * dense + seed, 3 * whole + seed]
    assert told["nst"]["bits_up"] == [3 * dense, 3 * whole]
    leaves = INPUTS * WIDTH, WIDTH * CLASSES, WIDTH, CLASSES
    assert told["nst"]["memory"]["clients"] == 6 * sum(-(-n // 8) for n in leaves)


@pytest.mark.slow
def test_a_schedule_and_a_first_stage_tell_the_density(world, key):
    data, model, parts = world
    # Of 3 rounds the second one ends with 1 - 0.9 (1 - (1/2)^2) of the entries.
    method = sfl.fedsparsify_global(*parts, density=0.1, rounds=3, power=2.0)
    (told,) = plan_of(Setup([stage(method, 3)], model, data))["stages"]
    shares = np.array([1, 1, 1 - 0.9 * (1 - 0.25)])
    slack = 5 * np.sqrt(DENSE * shares * (1 - shares)) + 1
    most = 3 * np.mean(32 * np.minimum(DENSE * shares + slack, DENSE)) + 3 * DENSE
    assert told["bits_down"][1] == pytest.approx(most, abs=3 * 33)
    assert told["density"] == pytest.approx(shares.mean())
    first = stage(sfl.snip(*parts, density=0.1), 1, 1)
    told = plan_of(Setup([first, stage(sfl.spdst(*parts), 4)], model, data))
    mask, frozen = told["stages"]
    assert mask["bits_up"] == [KERNELS, KERNELS]
    assert frozen["density"] == pytest.approx(0.1)
    slack = 5 * np.sqrt(KERNELS * 0.1 * 0.9) + 1
    least = 3 * 32 * (DENSE - KERNELS)
    most = 3 * 32 * (0.1 * KERNELS + slack) + least + 3 * KERNELS
    for name in ("bits_down", "bits_up"):
        assert frozen[name] == pytest.approx([least, most], abs=3 * 33)


def test_a_start_that_is_pruned_bounds_what_follows(world, key):
    data, model, parts = world
    start = initial_state.initial_model(key, model)
    mask = jax.tree.map(np.array, start.mask)
    mask["fc1"]["kernel"][:9] = False  # of 12 inputs three stay
    alive = 3 * WIDTH + WIDTH * CLASSES
    stages = [stage(sfl.spdst(*parts), 4)]
    setup = Setup(stages, model, data, initial=start._replace(mask=mask))
    (told,) = plan_of(setup)["stages"]
    assert told["density"] == pytest.approx(alive / KERNELS)
    share = alive / KERNELS
    slack = 5 * np.sqrt(KERNELS * share * (1 - share)) + 1
    most = 32 * (alive + slack) + 32 * (DENSE - KERNELS) + KERNELS
    assert told["bits_up"][1] == pytest.approx(3 * most, abs=3 * 33)


def test_a_share_that_is_none_is_refused(world):
    data, model, parts = world
    method = sfl.nst(*parts, density=0.2)._replace(alive=lambda round, start: 2 * round)
    with pytest.raises(ValueError, match=r"alive\(1\) is 2.0, expected in \[0, 1\]"):
        plan_of(Setup([stage(method, 3)], model, data))


def test_text_has_a_column_for_each_stage(world):
    data, model, parts = world
    stages = [stage(sfl.fedavg(*parts), 3), stage(sfl.fedavg(*parts), 5)]
    lines = formatting.text(plan_of(Setup(stages, model, data))).splitlines()
    (rounds,) = [line for line in lines if line.startswith("rounds")]
    assert rounds.split()[-4:] == ["3,", "3", "5,", "3"]
    assert any("8 rounds" in line for line in lines)
    assert jax.device_count() == 2 and lines[0].startswith("devices   2 x")
