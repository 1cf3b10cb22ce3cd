"""What a pilot measures, and what a run costs by it, by hand."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.data import cohorts
from sparsefl_jax.runs import pilot
from sparsefl_jax.simulation import clock
from sparsefl_jax.simulation.clock import System


def record(clients, down, up):
    return {"clients": clients, "bits_down_by_client": down, "bits_up_by_client": up}


def test_first_exchanges_and_later_ones_are_measured_apart():
    records = [
        record([0, 1], [50, 50], [50, 50]),  # dense, which is no share of any kind
        record([1, 2], [2, 6], [2, 2]),  # 1 again: 4 of 10 bits; 2 first: 8 of 10
        record([3, 0], [5, 1], [2, 2]),  # 3 first: 7 of 20; 0 again: 3 of 20
    ]
    first, again = pilot._shares(records, np.array([100.0, 10.0, 20.0]))
    assert first == pytest.approx(15 / 30) and again == pytest.approx(7 / 30)


def test_a_kind_that_a_pilot_has_not_seen_costs_as_the_other():
    most = np.array([100.0, 10.0])
    alone = [record([0, 1], [30, 30], [20, 20])]
    assert pilot._shares(alone, most) == (0.5, 0.5)
    firsts = [*alone, record([2, 3], [3, 3], [4, 4])]
    assert pilot._shares(firsts, most) == pytest.approx((0.7, 0.7))
    everyone = [*alone, record([1, 0], [1, 1], [1, 1])]
    assert pilot._shares(everyone, most) == pytest.approx((0.2, 0.2))


def test_a_run_costs_its_first_round_and_both_kinds_of_exchanges(monkeypatch):
    bits = 1e9 * np.array([100.0, 10.0, 10.0, 20.0])
    monkeypatch.setattr(pilot, "most_bits", lambda parts: bits)
    layouts = {"w": SimpleNamespace(masked=True, paths=("w",))}
    traced = SimpleNamespace(layouts={"down": layouts})
    monkeypatch.setattr(pilot, "_last", lambda parts: (stage, 1.0, traced))
    counted = np.array([2, 1, 1, 0]), np.array([0, 1, 1, 2])
    monkeypatch.setattr(pilot, "exchanges", lambda *args: counted)
    before, begin = {"gbit": 1.0, "pflop": 5.0}, {"gbit": 70.0, "pflop": 4.0}
    measured = pilot.Measured(before, begin, first=0.8, again=0.5, flops=0.25)
    method = SimpleNamespace(alive=lambda round, start: start / 2**round)
    stage = SimpleNamespace(algorithm=method, cohort_size=2, num_rounds=4)
    data = SimpleNamespace(train=SimpleNamespace(size=np.ones(9)))
    model = SimpleNamespace(macs={"w": 3, "last": 1})
    setup = SimpleNamespace(stages=[stage], data=data, system=None, model=model)
    parts = SimpleNamespace(setup=setup)
    cost = pilot.cost(measured, parts, flops=8e15, seed=0)
    # 10 (.8 + .5) twice, then 20 (.5 + .5). Of 8 PFLOP 2 are dense, and 3, 1.5 and .75
    # are left of the others; of these a quarter.
    assert cost["gbit"] == pytest.approx((1.0, 70.0 + 13.0 + 13.0 + 20.0))
    assert cost["pflop"] == pytest.approx((5.0, 4.0 + 11.25 / 4))


@pytest.mark.parametrize("draws", [5_000_000, 6])
def test_first_exchanges_are_those_of_the_runs_cohorts(monkeypatch, draws):
    monkeypatch.setattr(pilot, "_DRAWS", draws)
    stage, root = Stage(None, num_rounds=9, cohort_size=3), jax.random.key(5)
    ids = cohorts.drawing(root, stage, 12)(np.arange(9)).tolist()
    seen, new = set(), []
    for round, drawn in enumerate(ids):
        new.append(len(set(drawn) - seen) if 3 * round < draws else 0)
        seen |= set(drawn)
    first, later = pilot.exchanges(root, stage, 12)
    assert first.tolist() == new and (first + later == 3).all()
    assert 0 < sum(new[1:]) < 24


@pytest.mark.parametrize("draws", [5_000_000, 24])
def test_nobody_exchanges_in_an_empty_place(monkeypatch, draws):
    """Of 12 clients 2 are there in odd rounds, which leaves a place of 3 empty."""
    monkeypatch.setattr(pilot, "_DRAWS", draws)
    available = np.ones((12, 2))
    available[2:, 1] = 0
    system = System(None, available, np.zeros(12, int), ("all",))
    stage = Stage(None, num_rounds=10, cohort_size=3)
    present = clock.presence(system)
    first, later = pilot.exchanges(jax.random.key(5), stage, 12, present)
    there = [3, 2] * 5 if draws > 30 else [3, 2] * 4 + [2.5] * 2
    assert (first + later).tolist() == there and 3 <= first.sum() <= 12


def test_a_pilot_of_empty_rounds_tells_nothing():
    nobody = record([], [], [])
    with pytest.raises(ValueError, match=r"fit\.pilot=3: no client was there"):
        pilot._shares([record([0], [5], [5]), nobody, nobody], np.full(3, 10.0))
