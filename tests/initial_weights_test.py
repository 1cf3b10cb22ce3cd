"""Who takes part for the first time, and what is read again from fewer records."""

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from benchmarks import initial_weights, study_tables
from sparsefl_jax.runs.config.defaults import default_config
from tests.refusals import refused


def test_newcomers_are_those_of_a_run():
    """Of 12 clients, 3 a round."""
    x = np.zeros((24, 4), np.float32)
    data = sfl.from_arrays(x, np.arange(24) % 2, num_clients=12)
    model = sfl.models.build("mlp", 2, (4,), widths=(2,))
    stage = sfl.Stage(sfl.fedavg(model, sfl.training.make_optimizer()), 6, 3)
    run = sfl.run(jax.random.key(5), [stage], model, data)
    drawn = [r["clients"] for r in run.metrics if r["phase"] == "train"]
    new = initial_weights.newcomers(5, 12, 3, 6)
    seen = set()
    for clients, first in zip(drawn, new, strict=True):
        assert sorted(first) == sorted(set(clients) - seen)
        seen |= set(clients)
    assert sum(map(len, new)) == len(seen) > 6


def test_initial_weights_move_what_a_budget_pays_for():
    """Two clients, both in every round, evaluated every second of ten rounds.

    Thresholds cost 3 * 2 * .01 = .06 Gbit a round, weights 2 * .12 in the first. .25
    Gbit paid for 4 rounds and pay for none, .5 for 8 and 4, .7 for all and 7, of which
    6 are evaluated: the choice among 4 or 8 rounds if these are the same.
    """
    config = default_config()
    config.num_clients = config.cohort_size = 2
    config.eval_every = 2
    seed_0, seed_1 = ({r: [r / 10, r / 10, 0.5] for r in (2, 4, 8, 10)} for _ in "01")
    seed_1[8] = seed_1[4]
    before = dict.fromkeys(("gbit 0.05", "gbit 0.1"), 0) | {"gbit 0.15": 2}
    before |= dict.fromkeys(("gbit 0.25", "gbit 0.35"), 4) | {"gbit 0.5": 8}
    within = {}
    for axis, budgets in study_tables.BUDGETS.items():
        for key in (f"{axis} {budget:g}" for budget in budgets):
            rounds = before.get(key, 10)
            within[key] = [seed.get(rounds) for seed in (seed_0, seed_1)]
    totals = {axis: [0.6, 0.6] for axis in study_tables.BUDGETS} | {"rounds": [10, 10]}
    found = {"seeds": [0, 1], "within": within, "totals": totals}
    now = initial_weights.charged(found, config, 120_000_000, 10_000_000)
    assert now["totals"]["gbit"] == now["totals"]["gbit_values"] == [0.84, 0.84]
    assert now["within"]["gbit 0.25"] == now["within"]["gbit 0.35"] == [None, None]
    assert now["within"]["gbit 0.5"] == [seed_0[4], seed_1[4]]
    assert now["within"]["gbit_values 0.5"] == [seed_0[4], seed_1[4]]
    assert now["within"]["gbit 0.7"] == ["unknown", seed_1[4]]
    assert now["within"]["gbit 1"] == [seed_0[10], seed_1[10]]
    assert now["within"]["pflop 5e-05"] == within["pflop 5e-05"]
    assert now["within"]["hours 0.02"] == now["totals"]["hours"] == ["unknown"] * 2
    refused(
        lambda: initial_weights.charged(now, config, 120_000_000, 10_000_000),
        "seed 0 has cost 0.84 Gbit, expected 0.6 of thresholds alone",
    )


def test_the_benchmarks_run_costs_what_its_network_and_cohorts_say():
    """118,282 numbers for each of 100 clients, and 600 rounds of 10 times 3 * 266.

    As the page says, .15 Gbit pay for four rounds and .5 for 475. In the last of these
    all clients have the weights: .3785 Gbit, and .1213 of .1215 for thresholds.
    """
    (found,) = (e for e in study_tables.published() if e["point"] == "spafl")
    bits = 32 * (100 * 118_282 + 600 * 10 * 3 * 266)
    assert found["totals"]["gbit"] == pytest.approx([bits / 1e9] * 3, rel=1e-5)
    for seed, latest in enumerate((47, 41, 53)):
        new = initial_weights.newcomers(seed, 100, 10, 600)
        each = [32 * (118_282 * len(clients) + 10 * 3 * 266) for clients in new]
        assert sum(map(len, new)) == 100
        assert max(r for r, clients in enumerate(new, 1) if clients) == latest
        assert initial_weights.paid(each, 0.15, 1) == 4
        assert initial_weights.paid(each, 0.5, 1) == 475
