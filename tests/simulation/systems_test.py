"""Devices of clients: presets, tables, what a configuration makes of them."""

from types import SimpleNamespace

import numpy as np
import pytest

from sparsefl_jax.config import build, defaults
from sparsefl_jax.config.defaults import freeze
from sparsefl_jax.runs import folder as run_folder
from sparsefl_jax.runs import setup
from sparsefl_jax.runs.checkpoint import Snapshot
from sparsefl_jax.simulation import systems
from tests.refusals import refused
from tests.tiny import tiny_config

HEAD = "tier,share,gflops,mbit_down,mbit_up"


def table(folder, *lines):
    path = folder / "phones.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("name", "counts"),
    [("mobile", [6, 14, 20]), ("iot", [20, 20]), ("tifl", [8, 8, 8, 8, 8])],
)
def test_presets_deal_their_shares(name, counts):
    system = systems.make_system(name, 40, seed=1)
    assert np.bincount(system.tier).tolist() == counts
    assert all((v > 0).all() for v in system.device) and (system.available == 1).all()
    other = systems.make_system(name, 40, seed=2)
    assert other.tier.tolist() != system.tier.tolist()


def test_a_table_of_tiers(tmp_path):
    name = table(
        tmp_path,
        "tier, share, gflops, mbit_down, mbit_up, latency, available",
        "old, 0.25, 0.5, 2, 1, 3, 1 0",
        "new, 0.75, 4, 20, 10, , .5 .25 0",
    )
    system = systems.make_system(name, 8, deadline=9.0)
    old = system.tier == 0
    assert system.tiers == ("old", "new") and old.sum() == 2
    assert set(system.device.flops[old]) == {5e8} and system.deadline == 9.0
    assert set(system.device.down[~old]) == {2e7} and set(system.device.up[old]) == {
        1e6
    }
    assert set(system.device.latency[old]) == {3.0}
    assert not system.device.latency[~old].any()
    assert system.available[old][0].tolist() == [1, 0, 1, 0, 1, 0]
    assert system.available[~old][0].tolist() == [0.5, 0.25, 0, 0.5, 0.25, 0]


def test_a_trace_has_a_row_for_each_client(tmp_path):
    name = table(
        tmp_path, "client,gflops,mbit_down,mbit_up", "1,2,1,1", "0,3,1,1", "2,1,9,1"
    )
    system = systems.make_system(name, 3)
    assert system.device.flops.tolist() == [3e9, 2e9, 1e9]
    assert system.tiers == ("all",)
    assert systems.slowest_first(system).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    "lines, said",
    [
        ([HEAD, "a,0.5,1,1,1"], "shares of sum 0.5, expected 1"),
        ([HEAD, "", "a,1,x,1,1"], "line 3: could not convert string to float: 'x'"),
        ([HEAD, "a,.5,1,1,1", "b,.5,1,1,1,1"], "line 3: 6 cells, expected 5"),
        ([HEAD + ",speed", "a,1,1,1,1,1"], "unknown field `speed`"),
        (["gflops,mbit_down,mbit_up", "1,1,1"], "share or client, and not both"),
        (["client,gflops,mbit_down,mbit_up", "0,1,1,1"], "1 rows of 1 clients, exp"),
        ([HEAD, "a,0.99,1,1,1", "b,0.01,1,1,1"], "leaves no client of num_clients=4"),
    ],
)
def test_refuses_a_table(tmp_path, lines, said):
    name = table(tmp_path, *lines)
    refused(lambda: systems.make_system(name, 4), said)


def test_refuses_what_is_no_system():
    refused(lambda: systems.make_system("mobil", 4), "did you mean 'mobile'?")
    refused(lambda: systems.make_system("no/such.csv", 4), "no/such.csv")
    both = {"deadline": 1.0, "quantile": 0.5}
    refused(lambda: systems.make_system("iot", 4, **both), "quantile=0.5 beside")


def test_over_selection_draws_more_but_for_a_cohort_of_one():
    config = defaults.default_config()
    config.deadline.over = 1.3
    assert [build._num_drawn(config, size) for size in (10, 1, 15)] == [13, 1, 20]


@pytest.mark.parametrize("seed", range(3))
def test_budgets_go_to_the_slowest_and_are_drawn_apart_from_the_samples(seed):
    """The partition has the stream of the seed, and the splits have the next two."""
    config = defaults.default_config()
    config.seed, config.num_clients, config.budgets = seed, 40, ((0.1, 0.5), (1.0, 0.5))
    slow = build.build_budgets(freeze(config)) < 1
    system = systems.make_system("iot", 40, seed=seed)
    old = system.tier > 0
    assert slow.sum() == old.sum() == 20
    dealt = np.arange(40) // 20
    drawn = [np.random.default_rng(key) for key in (seed, [seed, 1], [seed, 2])]
    drawn = [rng.permutation(dealt).tolist() for rng in drawn]
    for one in (slow, old):
        assert (1 * one).tolist() not in drawn and (1 - one).tolist() not in drawn
    assert slow.tolist() != old.tolist() != (~slow).tolist()
    ordered = build.build_budgets(freeze(config), system) < 1
    assert ordered.tolist() == old.tolist()


def test_other_devices_or_budgets_are_not_gone_on_with(tmp_path):
    """A table may have the name of the old one, and the configuration be the same."""
    data = build.build_data(freeze(tiny_config(tmp_path)))
    at = Snapshot(0, 4, None, 0, 0.0, hours=1.0)

    def start(gflops, budgets, began=None):
        name = table(tmp_path, HEAD, f"old,1,{gflops},2,1")
        given = {"system": systems.make_system(name, 8), "budgets": budgets}
        saved = began and SimpleNamespace(snapshot=at, about={"data": began})
        return run_folder.start(saved, setup.Setup([], None, data, **given))[1]

    one, other = np.array([0.5, 1.0]), np.array([1.0, 0.5])
    began = start(1, one)
    assert start(1, one, began) == began
    for gflops, budgets, facts, said in (
        (9, one, began, "system"),
        (1, other, began, "budgets"),
        (1, one, start(1, None), "budgets"),  # nor if it is not known who had them
    ):
        with pytest.raises(ValueError, match=f"checkpoint: {said} changed"):
            start(gflops, budgets, facts)
