"""The rules of the benchmark: its tries, its configurations, and the choice."""

import itertools
import json
import math
import pickle

import jax
import numpy as np
import pandas as pd
import pytest

from benchmarks.v2 import rules, run
from benchmarks.v2.rules import DECAY, MOMENTUM, RATE, Method
from sparsefl_jax import models
from sparsefl_jax.config import build, defaults
from sparsefl_jax.config.defaults import freeze
from tests.tiny import network as tiny_network

OWN = {"algorithm.scope": ("global", "leaf"), "algorithm.power": (1.0, 2.0, 3.0)}
PAIRS = [(w, name) for w, names in rules.METHODS.items() for name in names]


def beyond(best, method):
    return rules.beyond(best, rules.tries(method), method.own)


FOUND = {RATE: 0.1, MOMENTUM: 0.9, "algorithm.stale": "reset", DECAY: 0.01}


def configured(name, settings=None, workload="fashion", seed=10, **options):
    """Returns the configuration of a method of the benchmark."""
    method = rules.METHODS[workload][name]
    settings = settings or {RATE: 0.1}
    options = {"seed": seed} | options
    return rules.configuration(workload, name, method, settings, **options)


def test_each_eighth_of_the_range_has_a_rate_and_each_value_its_share():
    """Eighths of .01 to 1 on a log scale end at .01 * 100^(k/8); five rates follow."""
    tried = rules.tries(Method(OWN))
    rates = [each[RATE] for each in tried]
    for part, rate in enumerate(rates[:8]):
        low, high = (0.01 * 100 ** ((part + k) / 8) for k in (0, 1))
        assert 0.98 * low <= rate <= 1.02 * high  # two digits
    assert rates[8:] == [0.12, 0.18, 0.27, 0.41, 0.62]
    assert [each[MOMENTUM] for each in tried].count(0.9) == 4
    assert not any(each[MOMENTUM] for each in tried[8:])
    for field, size in (("algorithm.scope", 2), ("algorithm.power", 3)):
        for at in range(0, 13 - size + 1, size):  # all values in each block of rates
            assert len({each[field] for each in tried[at : at + size]}) == size
    assert [each[RATE] for each in rules.tries(Method())] == rates
    assert MOMENTUM not in rules.tries(Method(momentum=False))[0]


def test_a_winner_at_an_edge_is_extended_by_a_step():
    """Powers 2 and 3 have the ratio 3/2: 4.5 follows. What has no order has no edge.

    A step of the rate is 100^(1/8) = 1.778.
    """
    middle = rules.tries(Method(OWN))[3]
    best = middle | {"algorithm.power": 3.0}
    (further,) = beyond(best, Method(OWN))
    assert further == best | {"algorithm.power": 4.5}
    assert not beyond(middle | {"algorithm.power": 2.0}, Method(OWN))
    shares = {"algorithm.prune_rate": (0.25, 0.5, 0.75)}  # 1.1 is none
    best = middle | {"algorithm.prune_rate": 0.75}
    assert not beyond(best, Method(shares))
    whole = {"algorithm.r_int": (1, 5, 20)}  # 80 follows, and nothing comes before 1
    for value, found in ((20, [80]), (1, [])):
        best = middle | {"algorithm.r_int": value}
        steps = beyond(best, Method(whole))
        assert [step["algorithm.r_int"] for step in steps] == found
    lowest, *_, highest = rules.tries(Method())[:8]
    for edge, ratio in ((lowest, 1 / 1.778), (highest, 1.778)):
        (further,) = beyond(edge, Method())
        assert math.isclose(further[RATE], ratio * edge[RATE], rel_tol=0.05)


def test_a_configuration_spends_a_share_of_the_budget():
    settings = {RATE: 0.3, MOMENTUM: 0.9, "first_stage.epochs": 2}
    config = configured("spdst", settings, seed=100, share=0.25)
    assert (config.fit.gbit, config.fit.most, config.fit.evaluations) == (0.5, 112, 150)
    assert (config.until.gbit, config.seed, config.metric) == (0.5, 100, "pooled")
    assert (config.num_clients, config.cohort_size, config.epochs) == (100, 10, 2)
    assert (config.val_fraction, config.system) == (0.1, None)
    assert (config.partition.name, config.partition.alpha) == ("dirichlet", 0.1)
    assert (config.optimizer.learning_rate, config.optimizer.momentum) == (0.3, 0.9)
    assert freeze(config).first_stage["density"] == config.density == 0.05
    assert (config.first_stage.epochs, config.algorithm.name) == (2, "spdst")
    assert freeze(configured("pqsu")).algorithm["density"] == 0.2


def test_the_controls_are_what_they_are_called():
    """Of the whole network's weights, 5, 11 and 20 %; a tenth of the rate at the end.

    118,282 weights are 784 * 128 + 128 * 128 + 128 * 10 and 266 biases.
    """
    whole = 784 * 128 + 128 * 128 + 128 * 10 + 266
    method = rules.METHODS["fashion"][rules.SMALL]
    sizes = []
    for widths in method.own["model.widths"]:
        config = configured(rules.SMALL, {RATE: 0.1, "model.widths": list(widths)})
        model = models.build("mlp", 10, (28, 28, 1), widths=config.model.widths)
        params = jax.tree.leaves(model.shapes()[0])
        sizes.append(round(100 * sum(math.prod(p.shape) for p in params) / whole))
    assert sizes == [5, 11, 20]
    config = configured("fedavg_decay", {RATE: 0.3, DECAY: 0.1})
    assert config.final_learning_rate == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("workload", "parameters"), [("fashion", 118_282), ("cifar10", 89_946)]
)
def test_the_dense_rounds_are_those_that_the_budget_pays(workload, parameters):
    """Ten clients, both ways, 32 bits a parameter."""
    task = rules.WORKLOADS[workload]
    assert task.dense == int(1e9 * task.gbit / (10 * 2 * 32 * parameters))


def test_tuning_sees_no_seed_that_counts_and_version_1_has_seen_none_of_them():
    for task in rules.WORKLOADS.values():
        assert not {*task.seeds} & {rules.FIRST_SEED, *task.tuning_seeds, *range(10)}
        assert rules.FIRST_SEED not in task.tuning_seeds
    assert [*rules.WORKLOADS["fashion"].seeds] == [*range(10, 20)]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Writes to a folder of the test; returns what has been asked of `played`."""
    monkeypatch.setattr(run, "RESULTS", tmp_path)
    asked = []

    def use(score):
        def played(tasks):
            for key, (*arguments, options) in pickle.loads(pickle.dumps(tasks)).items():
                config = rules.configuration(*arguments, **options)
                asked.append((key, config))
                accuracy = score(config)
                rounds = np.arange(1, 21)
                evals = {"rounds": rounds, "gbit": config.fit.gbit * rounds / 20}
                table = pd.DataFrame(evals | {"accuracy": accuracy})
                table = table.assign(validation=accuracy)
                row = dict.fromkeys(run.ENDED, 1) | {"diverged": False, "data": "0a"}
                yield key, row, table.reindex(columns=run.EVALUATIONS[2:])

        monkeypatch.setattr(run, "played", played)
        return asked

    return use


def test_the_best_two_tries_and_one_beyond_the_edge_run_on_three_seeds(results):
    """The first rate is best on the first seed, the second on the three others."""
    method, rates = Method(), [each[RATE] for each in rules.tries(Method())]

    def score(config):
        best = rates[0] if config.seed == 100 else rates[1]
        off = math.log(config.optimizer.learning_rate / best)
        return 0.9 - (off if off > 0 else -2 * off) / 10  # below the rate is worse

    asked = results(score)
    assert run.tune("fashion", "pdst", method)[RATE] == rates[1]
    beyond = float(f"{rates[0] / 1.7783:.2g}")
    first = [(c.seed, c.fit.gbit, c.optimizer.learning_rate) for _, c in asked[:12]]
    once = dict.fromkeys(rates)  # 0.12 and 0.62 are also among the drawn ones
    assert first == [(100, 0.5, rate) for rate in [*once, beyond]]
    again = {(c.optimizer.learning_rate, c.seed, c.fit.gbit) for _, c in asked[12:]}
    two = {rate for rate, _, _ in again}
    assert again == set(itertools.product(two, (101, 102, 103), (2.0,)))
    assert two == {rates[0], rates[1]}
    count = len(asked)
    run.tune("fashion", "pdst", method)  # nothing is repeated
    assert len(asked) == count == 12 + 6
    assert len(run.read("fashion", "tries", run.TRIES)) == 18


def test_another_workload_keeps_what_was_found_but_for_the_rate(results):
    method = rules.METHODS["cifar10"]["stc"]
    with pytest.raises(ValueError, match="the method tuned on fashion='stc'"):
        run.tune("cifar10", "stc", method)
    kept = {RATE: 0.9, MOMENTUM: 0.9, "algorithm.stale": "reset"}
    (run.RESULTS / "fashion_settings.json").write_text(json.dumps({"stc": kept}))
    asked = results(lambda config: 1 - abs(config.optimizer.learning_rate - 0.3))
    expected = {RATE: 0.32, MOMENTUM: None, "algorithm.stale": "reset"}
    assert run.tune("cifar10", "stc", method) == expected  # one beyond the last
    assert {config.algorithm.stale for _, config in asked} == {"reset"}
    for _, config in asked:
        assert config.final_learning_rate == 0.1 * config.optimizer.learning_rate
    assert [config.seed for _, config in asked] == [100] * 5  # which decide


def test_a_row_has_the_checksum_of_its_rules_and_the_samples_of_the_others(results):
    asked, method = results(lambda config: 0.5), rules.METHODS["fashion"]["pdst"]
    with pytest.raises(ValueError, match="the method tuned by --tune='pdst'"):
        run.evaluate("fashion", {"pdst": method})
    path = run.RESULTS / "fashion_settings.json"
    path.write_text(json.dumps({"pdst": {RATE: 0.1}, "stc": {RATE: 0.1}}))
    for _ in range(2):  # the second time nothing is left to run
        run.evaluate("fashion", {"pdst": method})
        assert [config.seed for _, config in asked] == [*range(10, 20)]
    runs = run.read("fashion", "runs", run.RUNS)
    assert set(runs["rules"]) == {rules.checksum("fashion", method, {RATE: 0.1})}
    assert (set(runs["density"]), set(runs["data"])) == ({0.05}, {"0a"})
    evals = run.read("fashion", "evaluations", run.EVALUATIONS)
    assert len(evals) == 200 and evals["validation"].notna().all()
    path.write_text(json.dumps({"pdst": {RATE: 0.2}, "stc": {RATE: 0.1}}))
    with pytest.raises(ValueError, match="pdst has rows by other rules"):
        run.evaluate("fashion", {"pdst": method})
    run.write("fashion", "runs", runs.assign(data="0b"))
    with pytest.raises(ValueError, match="checksum 0a on seed 10, expected 0b"):
        run.evaluate("fashion", {"stc": rules.METHODS["fashion"]["stc"]})


def small_config(rate):
    config = defaults.default_config()
    config.dataset, config.model.name = "fashion_mnist_sample", "mlp"
    config.num_clients, config.cohort_size, config.val_fraction = 20, 2, 0.1
    config.optimizer.learning_rate = rate
    config.fit = {"gbit": 0.05, "most": 4, "evaluations": 4, "pilot": 2}
    return config


def test_a_run_gives_a_row_and_its_evaluations_also_if_it_diverges():
    """Two clients, both ways, 32 bits a weight: 0.01514 Gbit a round; 3 in 0.05."""
    row, evals = run.play(small_config(0.1))
    assert (row["diverged"], row["rounds"], len(row["data"])) == (False, 3, 8)
    assert evals["gbit"].tolist() == pytest.approx(
        [128e-9 * 118_282 * n for n in (1, 2, 3)]
    )
    assert evals[["accuracy", "validation"]].notna().all(axis=None)
    assert row["pilot_seconds"] > 0 and evals["alive"].tolist() == [1, 1, 1]
    row, evals = run.play(small_config(1e20))
    assert row["diverged"] and evals["accuracy"].isna().tolist()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "name"), PAIRS)
def test_all_configurations_are_valid(workload, name):
    method, again = rules.METHODS[workload][name], workload != "fashion"
    tried = rules.rates_again(method, FOUND) if again else rules.tries(method)
    further = () if again else (s for t in tried for s in beyond(t, method))
    for settings in [*tried, *further]:
        config = configured(name, settings, workload)
        plain = freeze(config)
        clients = config.num_clients or 100
        system = build.build_system(plain, clients)
        budgets = build.build_budgets(plain, system)
        model = tiny_network(plain.model["name"])
        build.build_stages(plain, model, budgets, system)
