"""The points of `studies/benchmark.py`, counted by hand, and the choice of settings."""

import json

import pytest

from sparsefl_jax.algorithms import ALGORITHMS
from sparsefl_jax.runs import fit_rounds
from sparsefl_jax.runs.config import build
from sparsefl_jax.runs.config.defaults import values
from sparsefl_jax.studies import points as on_disk
from studies import benchmark
from tests.tiny import network


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """Pretends that tuning chose a rate of .1 and the second value for all."""
    settings = {
        name: {"settings": {benchmark.RATE: 0.1, method.field: method.values[1]}}
        for name, method in benchmark.METHODS.items()
    }
    file = tmp_path / "benchmark.json"
    file.write_text(json.dumps(settings))
    monkeypatch.setattr(benchmark, "CHOSEN", file)
    return file


def test_every_method_has_the_same_six_tries_on_a_seed_of_their_own():
    """Twelve methods times three rates times two values; no seed is evaluated later."""
    points = benchmark.get_study("tune")
    assert len(points) == 12 * 3 * 2
    assert {tuple(point.seeds) for point in points} == {(3,)}
    assert {p.config.density for p in points} == {None, 0.05}
    assert {p.config.val_fraction for p in points} == {0.1}
    tried = {p.name: p.config for p in points if p.name.startswith("jmwst-")}
    assert {(c.optimizer.learning_rate, c.algorithm.r_int) for c in tried.values()} == {
        (rate, r_int) for rate in (0.03, 0.1, 0.3) for r_int in (1, 5)
    }


def test_the_core_spends_equal_bits_with_the_chosen_settings(chosen):
    """FedAvg and SpaFL have no density, ten methods have three: 32 points, 96 runs."""
    points = {point.name: point for point in benchmark.get_study()}
    assert len(points) == 2 + 10 * 3
    assert sum(len(point.seeds) for point in points.values()) == 96
    assert {tuple(point.seeds) for point in points.values()} == {(0, 1, 2)}
    for config in (point.config for point in points.values()):
        assert (config.fit.gbit, config.fit.most, config.metric) == (2, 600, "clients")
        assert (config.until.gbit, config.system) == (2, "mobile")
        assert (config.num_clients, config.cohort_size, config.epochs) == (100, 10, 2)
        assert (config.partition.name, config.partition.alpha) == ("dirichlet", 0.1)
        assert config.optimizer.learning_rate == 0.1
        assert (config.optimizer.clip, config.optimizer.momentum) == (0, None)
    spdst = points["spdst-density=0.01"].config
    assert spdst.first_stage.density == spdst.density == 0.01
    assert spdst.first_stage.epochs == 2
    stc = points["stc-density=0.2"].config.algorithm
    assert (stc.up, stc.down, stc.density, stc.stale) == ("stc", "stc", 0.2, "reset")
    assert points["feddst-density=0.05"].config.algorithm.adjust_until == 520 // 2


@pytest.mark.slow
def test_the_rest_has_all_methods_densities_and_data(chosen):
    """Ten at two more densities; 32 at Dirichlet .5, and on CIFAR-10; the others."""
    points = benchmark.get_study("more")
    sparse_others, dense_others = 15, 9
    assert len(points) == 10 * 2 + 32 + 32 + sparse_others * 3 + dense_others
    at = {point.name: point.config for point in points}
    assert at["fedavg-alpha=0.5"].partition.alpha == 0.5
    assert at["topk-cifar10-density=0.01"].model.name == "small_cnn"
    assert len(benchmark.get_study("tune_more")) == (sparse_others + dense_others) * 6
    run = {p.config.algorithm.name for p in points}
    run |= {p.config.first_stage.get("name") for p in points}
    assert ALGORITHMS.keys() - run == {
        *("local_only", "ditto", "finetune"),  # personal models, in no table
        *("scaffold", "magnitude", "fedrolex", "fiarse"),  # not declared
    }


def test_clients_alone_train_as_spafls_do(chosen):
    (point,) = benchmark.get_study("alone")
    config = point.config
    assert (config.algorithm.name, config.algorithm.alpha) == ("local_only", 0.0005)
    assert (config.num_rounds, config.fit.gbit, config.metric) == (600, None, "clients")
    assert tuple(point.seeds) == (0, 1, 2)


def test_what_was_not_tuned_is_refused(chosen):
    kept = json.loads(chosen.read_text())
    del kept["stc"], kept["spafl"]
    chosen.write_text(json.dumps(kept))
    with pytest.raises(
        ValueError, match=r"^benchmark\.json has no settings of spafl, st"
    ):
        benchmark.get_study()
    chosen.unlink()
    with pytest.raises(ValueError, match=r"no settings of fedavg, spdst, .* tune them"):
        benchmark.get_study()
    with pytest.raises(ValueError, match=r"benchmark\.py:all, expected nothing, more"):
        benchmark.get_study("all")


def write_try(folder, name, score=None, by="validation"):
    """Writes a try that has ended, with a score or, as one that diverged, without."""
    if score is None:
        (folder / "failed").mkdir(exist_ok=True)
        (folder / "failed" / f"{name}.txt").write_text("the loss is not finite")
        return
    run = folder / name / "seed_3"
    run.mkdir(parents=True)
    best = {"score": score, "accuracy": 1 - score, "chosen_by": by}
    (run / "summary.json").write_text(json.dumps({"best": best}))


def test_the_validation_split_chooses(tmp_path, chosen):
    """The test accuracy, which falls as the score rises, does not count."""
    names = [
        f"spafl-rate={r}-alpha={a}" for r in (0.03, 0.1, 0.3) for a in (2e-3, 5e-4)
    ]
    for name, score in zip(names, [0.5, 0.6, 0.7, 0.7, None], strict=False):
        write_try(tmp_path, name, score)
    with pytest.raises(ValueError, match="the tries of spafl have not all ended"):
        benchmark.choose(tmp_path)
    write_try(tmp_path, names[5], 0.4)
    found = benchmark.choose(tmp_path)
    assert found == {
        "spafl": {
            "settings": {"optimizer.learning_rate": 0.1, "algorithm.alpha": 0.002},
            "scores": dict(zip(names, [0.5, 0.6, 0.7, 0.7, None, 0.4], strict=True)),
        }
    }
    benchmark.main(str(tmp_path))
    kept = json.loads(chosen.read_text())
    assert kept["spafl"] == found["spafl"]
    assert kept["stc"]["settings"]["algorithm.stale"] == "reset"  # of before


def test_tries_that_cannot_choose_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected the folder of a tuning study"):
        benchmark.choose(tmp_path)
    names = [name for name, _ in benchmark._tried("nst", benchmark.METHODS["nst"])]
    for name in names:
        write_try(tmp_path, name)
    with pytest.raises(ValueError, match="all tries of nst failed"):
        benchmark.choose(tmp_path)
    write_try(tmp_path, names[0], 0.9, by="test")
    with pytest.raises(ValueError, match="chosen by test"):
        benchmark.choose(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["tune", "", "tune_more", "more"])
def test_all_points_are_valid(part, chosen):
    on_disk.check(points := benchmark.get_study(part))
    assert all(fit_rounds.wanted(point.config) for point in points)
    for config in (values(point.config) for point in points):
        system = build.build_system(config, config.num_clients)
        budgets = build.build_budgets(config, system)
        build.build_stages(config, network(config.model["name"]), budgets, system)
