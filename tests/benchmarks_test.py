"""Every benchmark at tiny settings: its counts and its files."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from benchmarks import (
    cohort,
    compaction,
    contract,
    density,
    measure,
    methods,
    population,
    positions,
    profile,
    roofline,
    scaling,
    throughput,
    whole,
    workload,
)
from benchmarks.accelerators import Target
from sparsefl_jax import models
from sparsefl_jax.runs.plan import checks
from sparsefl_jax.simulation import initial_state

pytestmark = pytest.mark.slow

TINY = workload.Workload("mlp", 8, 12, 4, widths=(4,), batch_size=8)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Compiles quickly, because no test is about speed."""
    jax.config.update("jax_disable_most_optimizations", True)
    monkeypatch.setattr(measure, "matmul_rate", lambda **_: 1e11)
    monkeypatch.setattr(measure, "copy_rate", lambda: 1e10)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def written(module, name, folder, monkeypatch, *arguments) -> dict:
    """Reads the JSON that a benchmark writes beside its table and its plot."""
    argv = [name, "--repeats", "2", "--out", str(folder), *arguments]
    monkeypatch.setattr(sys, "argv", argv)
    module.main()
    told = json.loads((folder / f"{name}.json").read_text())
    assert {"devices", "processor", "jax", "commit", "date"} <= told["machine"].keys()
    assert told["machine"]["repeats"] == 2
    assert "| --- |" in (folder / f"{name}.md").read_text()
    assert (folder / f"{name}.png").stat().st_size > 5_000
    return told["results"]


def test_calls_take_turns_and_the_first_of_each_is_not_timed():
    seen = []
    calls = {name: lambda name=name: seen.append(name) for name in "ab"}
    seconds = measure.in_turns(calls, 3)
    assert "".join(seen) == "ab" + "ba" + "ab" + "ba"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}
    told = measure.summary([0.5, 0.25, 4.0])
    want = {"median_seconds": 0.5, "minimum_seconds": 0.25, "repeats": 3}
    assert told == want


def test_rates_and_memory_are_measured(monkeypatch):
    monkeypatch.undo()
    assert 1e6 < measure.copy_rate(2**16, 0.01) < 1e13
    assert measure.peak_memory() > 50e6  # JAX alone needs more


def test_the_set_ups_of_published_work():
    told = {
        name: (s.model, s.method, s.clients, s.drawn, s.batch)
        for name, s in throughput.FIVE.items()
    }
    purging = told["mlp_fedsparsify"][1]
    assert purging.func is sfl.fedsparsify_global
    assert told == {
        "pfl": ("simple_cnn", sfl.fedavg, 1000, 50, 10),
        "femnist": ("femnist_cnn", sfl.fedavg, 3400, 10, 20),
        "resnet18_100": ("resnet18", sfl.fedavg, 100, 10, 32),
        "lenet5_spafl": ("lenet5_caffe", sfl.spafl, 100, 10, 64),
        "mlp_fedsparsify": ("mlp", purging, 100, 10, 32),
    }
    assert throughput.FIVE["pfl"].samples == 50


def test_a_round_goes_on_where_the_one_before_ended():
    one = workload.prepare(TINY)
    call = workload.going(one)
    logs = [jax.device_get(call()) for _ in range(2)]
    assert one.steps == 4 * 2  # 12 samples by 8
    assert one.flops == 6 * (784 * 4 + 4 * 10) * 8
    assert [int(log.executed_steps[0]) for log in logs] == [8, 8]
    np.testing.assert_array_equal(logs[0].ids, logs[1].ids)
    assert logs[1].clients["loss"].sum() < logs[0].clients["loss"].sum()


def test_throughput(tmp_path, monkeypatch):
    tiny = TINY._replace(method=throughput.FIVE["mlp_fedsparsify"].method)
    monkeypatch.setitem(throughput.SETUPS, "mlp", tiny)
    told = written(throughput, "throughput", tmp_path, monkeypatch, "--only", "mlp")
    (r,) = told.values()
    assert r["steps_per_second"] == pytest.approx(8 / r["minimum_seconds"])
    assert r["steps_per_second_median"] == pytest.approx(8 / r["median_seconds"])
    gflops = r["steps_per_second"] * 6 * (784 * 4 + 4 * 10) * 8 / 1e9
    assert r["gflops"] == pytest.approx(gflops)
    assert r["fraction"] == pytest.approx(gflops / 100)
    assert r["compile_seconds"] > 0


def test_a_whole_run_is_timed_from_its_start(tmp_path, monkeypatch):
    def inside(_, arguments, **environment):
        assert environment == {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        *how, begun = arguments
        told = whole.run(*how, begun - 100)  # as if the process had started then
        return {"result": told, "machine": measure.machine()}

    monkeypatch.setitem(throughput.SETUPS, "mlp", TINY)
    monkeypatch.setattr(measure, "apart", inside)
    arguments = "--only", "mlp", "--rounds", "5", "--eval_every", "2"
    r, again = written(whole, "whole", tmp_path, monkeypatch, *arguments)
    rounds, seconds = zip(*r["course"], strict=True)
    assert rounds == (2, 4, 5) and r["steps_per_round"] == 8
    assert r["tests"] == 10_000
    assert 100 < seconds[0] <= seconds[1] <= seconds[2] == r["seconds"]
    assert 0 < r["compile_seconds"] < seconds[2] - 100
    assert whole.rate(r | {"course": [(2, 10.0), (4, 11.0), (5, 11.5)]}) == 2.0
    assert whole.rate(r | {"course": [(2, 10.0)]}) is None


def test_memory_does_not_grow_with_the_cohort(tmp_path, monkeypatch):
    def inside(_, arguments):
        return {"result": cohort.run(*arguments), "machine": measure.machine()}

    small = TINY._replace(clients=256, samples=8, widths=(32,))
    monkeypatch.setitem(cohort.MODELS, "tiny", small)
    monkeypatch.setitem(cohort.MODELS, "mlp", small)
    monkeypatch.setattr(measure, "apart", inside)  # a process takes seconds to start
    arguments = "--models", "tiny", "--cohorts", "8", "256"
    few, many = written(cohort, "cohort", tmp_path, monkeypatch, *arguments)
    assert (few["cohort"], many["cohort"]) == (8, 256)
    assert many["steps_per_second"] == pytest.approx(256 * many["rounds_per_second"])
    model = 4 * (784 * 32 + 32 + 32 * 10 + 10)
    grown = (few["planned_bytes"], many["planned_bytes"])
    grown = grown[1]["temporaries"] - grown[0]["temporaries"]
    assert grown < 248 * 1024 < 3 * model < few["planned_bytes"]["temporaries"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_population_is_kept_where_it_should_be(tmp_path, monkeypatch):
    def inside(_, arguments):
        told = population.run(*arguments)
        return {"result": told, "machine": measure.machine()}

    cases = [
        population.Case("stateless", 100, 3),
        population.Case("host", 100, 3, "host"),
        population.Case("disk", 5000, 3, "disk"),
    ]
    monkeypatch.setattr(population, "CASES", cases)
    monkeypatch.setattr(population, "ROUNDS", 2)
    monkeypatch.setattr(measure, "apart", inside)  # a process takes seconds to start
    told = written(population, "population", tmp_path, monkeypatch)
    model = 4 * (784 * 3 + 3 + 3 * 10 + 10)
    assert [r["row"] for r in told] == [0, model, model]
    # Three segments of two rounds of 20 clients: at most 120 of 5000 have a row.
    assert told[0]["files"] == told[1]["files"] == 0
    assert 40 * model <= told[2]["files"] < 1000 * model
    assert all(r["peak"] >= r["base"] > 0 for r in told)


def test_a_profile_finds_the_layers(tmp_path, monkeypatch):
    """Pretends that every operation lasts 16 seconds."""
    ran, traced = [], profile.traced

    def timed(*args):
        ran.extend(traced(*args))
        return [(name, 16.0) for name, _ in ran]

    monkeypatch.setattr(profile, "traced", timed)
    monkeypatch.setitem(profile.SETUPS, "mlp", TINY)
    told = written(profile, "profile", tmp_path, monkeypatch, "--setup", "mlp")
    seconds = {(r["layer"], r["pass"]): r["seconds"] for r in told}
    layers = {(name, way) for name in ("fc1", "fc2") for way in ("forward", "backward")}
    assert layers | {("rest", "-")} <= seconds.keys()
    # A device runs half of the two steps of four clients in two rounds.
    assert sum(seconds.values()) == 16 * len(ran) / 8
    assert all(v > 0 and v % 2 == 0 for v in seconds.values())
    assert all(each >= 0 for _, each in ran) and sum(each for _, each in ran) > 0


def test_a_process_of_its_own_has_its_own_devices():
    inner = 1, {"weak": 1}, "mlp", 32, 1
    told = measure.apart("scaling", inner, XLA_FLAGS=scaling.flags(1))
    assert told["machine"]["devices"].startswith("1 x")
    assert [(r["kind"], r["steps"]) for r in told["result"]] == [("weak", 1)]


def test_devices_get_as_many_clients_each_or_share_them(tmp_path, monkeypatch):
    def inside(_, arguments, **environment):
        return {"result": scaling.run(*arguments), "machine": measure.machine()}

    monkeypatch.setitem(scaling.SETUPS, "mlp", TINY)
    monkeypatch.setattr(measure, "apart", inside)  # a process takes seconds to start
    arguments = "--counts", "1", "2", "--clients", "2"
    told = written(scaling, "scaling", tmp_path, monkeypatch, *arguments)
    known = [(r["kind"], r["devices"], r["cohort"], r["steps"]) for r in told]
    weak, strong = [(1, 2, 4), (2, 4, 8)], [(1, 4, 8), (2, 4, 8)]
    assert known == [("weak", *r) for r in weak] + [("strong", *r) for r in strong]
    with pytest.raises(SystemExit, match="counts=3, expected at most 2 devices"):
        scaling.run(3, {"weak": 4}, "mlp", None, 1)


def test_rounds_compile_for_devices_that_are_not_there(tmp_path, monkeypatch):
    """On the CPU's two devices in their place."""

    def make(name):
        count = {"v5e:1x1": 1, "v5e:2x1": 2}[name]
        return Target(name, jax.devices()[:count], 10**9, None)

    monkeypatch.setattr(scaling.accelerators, "make", make)
    monkeypatch.setitem(scaling.SETUPS, "mlp", TINY)
    arguments = "--target", "v5e", "--counts", "1", "2", "--clients", "2"
    told = written(scaling, "scaling", tmp_path, monkeypatch, *arguments)
    known = [(r["kind"], r["devices"], r["cohort"], r["steps"]) for r in told]
    weak, strong = [(1, 2, 4), (2, 4, 8)], [(1, 4, 8), (2, 4, 8)]
    assert known == [("weak", *r) for r in weak] + [("strong", *r) for r in strong]
    moved = [sum(r["collectives"].values()) for r in told]
    model = 4 * (784 * 4 + 4 + 4 * 10 + 10)  # bytes, summed over devices
    assert moved[0] == moved[2] == 0
    assert all(model <= n < 1.3 * model for n in (moved[1], moved[3]))


def test_bits_and_flops_follow_the_density(tmp_path, monkeypatch):
    tiny = TINY._replace(samples=8)
    monkeypatch.setattr(density, "Workload", lambda *_: tiny)
    arguments = "--densities", "0.1"
    told = written(density, "density", tmp_path, monkeypatch, *arguments)
    dense, sparse = told["by_density"]
    kernels, biases = (784 * 4, 4 * 10), 4 + 10
    mask = density.masked(workload.make_model(tiny, workload.make_data(tiny)), 0.1).mask
    assert all(mask[layer]["bias"].all() for layer in mask)
    alive = sum(int(mask[layer]["kernel"].sum()) for layer in mask)
    assert abs(alive - 0.1 * sum(kernels)) < 70  # four standard deviations
    assert dense["bits_up"] == 4 * 32 * (sum(kernels) + biases)
    assert sparse["bits_up"] == sparse["bits_down"] == 4 * 32 * (alive + biases)
    assert sparse["bits_down_first"] - sparse["bits_down"] == 4 * sum(kernels)
    assert sparse["bits_of_dense"] == pytest.approx(
        (alive + biases) / (sum(kernels) + biases)
    )
    assert sparse["density"] == pytest.approx(alive / sum(kernels))
    passes = 6 * 4 * 8  # FLOPs of a multiply-add, clients, samples
    assert dense["flops"] == dense["flops_dense"] == passes * sum(kernels)
    assert sparse["flops"] == pytest.approx(passes * alive)
    assert sparse["flops_executed"] == dense["flops_dense"]  # the hardware's work


@pytest.mark.parametrize("name", sfl.ALGORITHMS)
def test_every_method_can_be_timed(name):
    kwargs = methods.arguments(name, 2)
    data = workload.make_data(TINY)
    model = workload.make_model(TINY, data)
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.1)
    method = sfl.ALGORITHMS[name](model, optimizer, **kwargs)
    sparse = initial_state.initial_model(jax.random.key(0), model)
    checks.trace(sfl.Stage(method, 1, 4, 1, 8), sparse, data)


def test_positions_of_real_masks(tmp_path, monkeypatch):
    arguments = "--model", "mlp", "--rounds", "2", "--densities", "0.5", "0.02"
    told = written(positions, "positions", tmp_path, monkeypatch, *arguments)
    kinds = [(r["mask"], r["density"]) for r in told]
    assert kinds == [(m, d) for m in ("weights", "update") for d in (0.5, 0.02)]
    for r in told:
        bits, density = r["bits"], r["density"]
        assert bits["bitmap"] == pytest.approx(1 / density, rel=1e-3)
        layers = 0.98  # the layers differ in density, which a code of each layer uses
        share = -np.log2(density) - (1 - density) / density * np.log2(1 - density)
        assert bits["packed"] < share / layers
        assert bits["packed"] < bits["golomb"] < bits["coo"]


def test_contract(tmp_path, monkeypatch):
    told = written(contract, "contract", tmp_path, monkeypatch, "--only", "fedavg")
    figures = told["fedavg"]
    assert figures["repeats"] == 2 and figures["cpu_seconds"] > 0
    assert 0 < figures["minimum_seconds"] <= figures["median_seconds"]


def test_methods(tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "Workload", lambda *_, momentum: TINY)
    only = "--only", "fedprox"
    told = written(methods, "methods", tmp_path, monkeypatch, *only)
    (r,) = told.values()
    assert r["repeats"] == r["fedavg"]["repeats"] == 2
    ratio = r["compile_seconds"] / r["fedavg_compile_seconds"]
    assert r["compile_times_fedavg"] == pytest.approx(ratio)


def test_roofline(tmp_path, monkeypatch):
    monkeypatch.setattr(roofline, "Workload", lambda *_: TINY)
    told = written(roofline, "roofline", tmp_path, monkeypatch, "--only", "mlp")
    assert told["rates"] == {"matmul_flops": 1e11, "copy_bytes": 1e10}
    r = told["networks"]["mlp"]
    assert r["parameters"] == 784 * 4 + 4 + 4 * 10 + 10
    moved = r["steps_per_second"] * 6 * 4 * r["parameters"]
    assert r["of_copy"] == pytest.approx(moved / 1e10)
    flops = r["steps_per_second"] * 6 * 8 * (784 * 4 + 4 * 10)
    assert r["of_matmul"] == pytest.approx(flops / 1e11)


def test_every_network_has_a_usual_batch():
    missing = models.MODELS.keys() - workload.NETWORKS.keys()
    tokens = {"char_gru", "encoder", "pretrained_encoder"}
    assert missing == tokens  # benchmarks draw images and features


def test_compaction(tmp_path, monkeypatch):
    monkeypatch.setitem(compaction.SETUPS, "mlp", TINY._replace(widths=None))
    arguments = "--only", "mlp", "--samples", "20", "--density", "0.25"
    (r,) = written(compaction, "compaction", tmp_path, monkeypatch, *arguments)
    left = 32 + 1  # a constant replaces the removed units
    small = 784 * left + left + left * left + left + left * 10 + 10
    assert r["parameters"] == [118_282, small]
    assert r["kept"] == [25, 25, 100]
    seconds = r["inference"]["masked"]["median_seconds"]
    assert r["inference"]["masked_rate"] == pytest.approx(20 / seconds)
