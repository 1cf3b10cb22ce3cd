"""Every benchmark at tiny settings: its counts and its files."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from benchmarks import (
    __main__,
    cohort,
    contract,
    density,
    measure,
    methods,
    population,
    profile,
    scaling,
    segments,
    throughput,
    workload,
)
from benchmarks.accelerators import Target
from sparsefl_jax import models
from sparsefl_jax.runs.setup import trace
from sparsefl_jax.simulation import initial_state

pytestmark = pytest.mark.slow

TINY = workload.Workload("mlp", 8, 12, 4, widths=(4,), batch_size=8)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Compiles quickly, because no test is about speed."""
    jax.config.update("jax_disable_most_optimizations", True)
    monkeypatch.setattr(measure, "matmul_rate", lambda **_: 1e11)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def environments(monkeypatch):
    """Runs what has a process of its own in this one, as processes start slowly."""
    given = []

    def inside(function, *arguments, **environment):
        given.append(environment)
        return json.loads(json.dumps(function(*json.loads(json.dumps(arguments)))))

    monkeypatch.setattr(measure, "apart", inside)
    return given


def written(name, folder, *arguments) -> list[dict]:
    """Reads the rows that a benchmark writes as JSON beside its table."""
    __main__.main(name, ["--repeats", "2", "--out", str(folder), *arguments])
    told = json.loads((folder / f"{name}.json").read_text())
    assert {"devices", "processor", "jax", "commit", "date"} <= told["machine"].keys()
    assert told["machine"]["repeats"] == 2
    assert "| --- |" in (folder / f"{name}.md").read_text()
    return told["results"]


def test_a_table_has_the_columns_of_all_rows(tmp_path, capsys):
    rows = [{"a": 0.12345, "b": 1234567}, {"a": "x", "c": None}]
    measure.publish("one", tmp_path, {"repeats": 3}, rows)
    *_, first, second = (tmp_path / "one.md").read_text().splitlines()
    assert (first, second) == ("| 0.123 | 1,234,567 | - |", "| x | - | - |")
    assert "| a | b | c |" in capsys.readouterr().out
    assert json.loads((tmp_path / "one.json").read_text())["results"] == rows


def test_a_round_goes_on_where_the_one_before_ended():
    one = workload.prepare(TINY)
    call = workload.going(one)
    logs = [jax.device_get(call()) for _ in range(2)]
    assert one.steps == 4 * 2  # 12 samples by 8
    assert one.flops == 6 * (784 * 4 + 4 * 10) * 8
    assert [int(log.executed_steps[0]) for log in logs] == [8, 8]
    np.testing.assert_array_equal(logs[0].ids, logs[1].ids)
    assert logs[1].clients["loss"].sum() < logs[0].clients["loss"].sum()


def test_a_segment_has_rounds_and_seeds_of_their_own():
    one = workload.prepare(TINY._replace(rounds=3, seeds=2), "1")
    call = workload.going(one)
    first, second = (jax.device_get(call()) for _ in range(2))
    assert one.steps == 2 * 3 * 4 * 2  # seeds, rounds, clients, minibatches
    assert first.ids.shape == (2, 3, 4)
    assert first.executed_steps.tolist() == [[8, 8, 8], [8, 8, 8]]
    assert len({tuple(ids) for ids in first.ids.reshape(-1, 4)}) > 4  # drawn apart
    assert second.clients["loss"].mean() < first.clients["loss"].mean()


def test_segments_and_seeds(tmp_path, monkeypatch):
    """On a fake clock, which advances by a second between two readings."""
    clock, calls, prepare = itertools.count(), [], workload.prepare

    def counted(*args, **kwargs):
        one = prepare(*args, **kwargs)
        step = lambda *state: calls.append(one.stage.num_rounds) or one.step(*state)  # noqa: E731
        return one._replace(step=step)

    monkeypatch.setattr(workload, "prepare", counted)
    monkeypatch.setattr(segments.time, "perf_counter", lambda: next(clock))
    monkeypatch.setitem(workload.SETUPS, "mlp", TINY)
    options = ["--setup", "mlp", "--lengths", "1", "4", "--rounds", "5"]
    __main__.main("segments", [*options, "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "segments.json").read_text())["results"]
    assert calls == 6 * [1] + 2 * 3 * [4]  # five and two, and one that is not timed
    columns = "rounds a segment", "seeds together", "rounds of each", "steps/s"
    assert [[row[column] for column in columns] for row in rows] == [
        [1, 1, 5, 5 * 8],
        [4, 1, 8, 8 * 8],
        [4, 3, 8, 3 * 8 * 8],
    ]
    each = [row["ms a round and seed"] for row in rows]
    assert each == pytest.approx([1e3 / 5, 1e3 / 8, 1e3 / 24])


def test_throughput(tmp_path, monkeypatch):
    tiny = TINY._replace(method=workload.FIVE["mlp_fedsparsify"].method)
    monkeypatch.setitem(workload.SETUPS, "mlp", tiny)
    (r,) = written("throughput", tmp_path, "--only", "mlp")
    gflops = r["steps/s: best"] * 6 * (784 * 4 + 4 * 10) * 8 / 1e9
    assert (r["set-up"], r["clients, cohort, batch"]) == ("mlp", "8, 4, 8")
    assert r["GFLOP/s"] == pytest.approx(gflops)
    assert r["fraction"] == pytest.approx(gflops / 100)
    assert r["steps/s: best"] >= r["steps/s: median"] > 0 < r["compile s"]


def test_set_ups_and_ones_own_networks_take_turns(tmp_path, monkeypatch):
    """On a fake clock: a round of 8 steps takes 1 s, in nnx 2 s, of SpaFL 4 s."""

    def in_turns(calls, repeats):
        lasts = {"gru, nnx": 2.0, "lenet5_spafl": 4.0}
        return {name: np.full(repeats, lasts.get(name, 1.0)) for name in calls}

    monkeypatch.setattr(measure, "in_turns", in_turns)
    made = SimpleNamespace(steps=8)
    monkeypatch.setattr(workload, "prepare", lambda setup, chunk: made)
    monkeypatch.setattr(workload, "going", lambda one: None)
    tiny = dict.fromkeys(("lenet5_fedavg", "lenet5_spafl"), TINY)
    monkeypatch.setattr(throughput, "SETUPS", tiny)
    monkeypatch.setattr(throughput, "OWN", {"gru": TINY})
    found = written("throughput", tmp_path, "--compare", *tiny)
    found += written("throughput", tmp_path, "--own")
    assert [list(row.values()) for row in found] == [
        ["lenet5_fedavg", 8, 1],
        ["lenet5_spafl", 2, 0.25],
        ["gru, linen", 8, 1],
        ["gru, nnx", 4, 0.5],
    ]


@pytest.mark.usefixtures("environments")
def test_memory_does_not_grow_with_the_cohort(tmp_path, monkeypatch):
    small = TINY._replace(clients=256, samples=8, widths=(32,))
    monkeypatch.setitem(cohort.MODELS, "tiny", small)
    arguments = "--models", "tiny", "--cohorts", "8", "256"
    few, many = written("cohort", tmp_path, *arguments)
    assert (few["clients a round"], many["clients a round"]) == (8, 256)
    rate = 256 * many["rounds/s: best"]
    assert many["steps/s: best"] == pytest.approx(rate)
    model = 4 * (784 * 32 + 32 + 32 * 10 + 10)
    few, many = (1e6 * r["temporaries, MB"] for r in (few, many))
    assert many - few < 248 * 1024 < 3 * model < few


@pytest.mark.usefixtures("environments")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_population_is_kept_where_it_should_be(tmp_path, monkeypatch):
    cases = [
        population.Case("stateless", 100, 3),
        population.Case("host", 100, 3, "host"),
        population.Case("disk", 5000, 3, "disk"),
    ]
    monkeypatch.setattr(population, "CASES", cases)
    monkeypatch.setattr(population, "ROUNDS", 2)
    told = written("population", tmp_path)
    model = 4 * (784 * 3 + 3 + 3 * 10 + 10)
    kept = [r["kept by each, KiB"] for r in told]
    assert kept == [0, model / 2**10, model / 2**10]
    # Three segments of two rounds of 20 clients: at most 120 of 5000 have a row.
    files = [2**20 * r["files, MiB"] for r in told]
    assert files[:2] == [0, 0] and 40 * model <= files[2] < 1000 * model
    assert all(r["peak, MiB"] > 50 for r in told)  # JAX alone needs more
    images = population.IMAGES * 28 * 28 / 2**20
    assert all(r["arrays on devices, MiB"] > images for r in told)


def test_a_profile_finds_the_layers(tmp_path, monkeypatch):
    """Pretends that every operation lasts 16 seconds."""
    ran, traced = [], profile.traced

    def timed(*args):
        ran.extend(traced(*args))
        return [(name, 16.0) for name, _ in ran]

    monkeypatch.setattr(profile, "traced", timed)
    monkeypatch.setitem(workload.SETUPS, "mlp", TINY)
    told = written("profile", tmp_path, "--setup", "mlp")
    seconds = {(r["layer"], r["pass"]): r["ms a step"] / 1e3 for r in told}
    layers = {(name, way) for name in ("fc1", "fc2") for way in ("forward", "backward")}
    assert layers | {("rest", "-")} <= seconds.keys()
    # A device runs half of the two steps of four clients in two rounds.
    assert sum(seconds.values()) == pytest.approx(16 * len(ran) / 8)
    assert sum(r["share, %"] for r in told) == pytest.approx(100)
    assert all(each >= 0 for _, each in ran) and sum(each for _, each in ran) > 0


def test_a_process_of_its_own_has_its_own_devices():
    told = measure.apart(scaling.timed, 1, 1, "mlp", 1, XLA_FLAGS=scaling.flags(1))
    assert (told["devices"], told["clients a round"]) == (1, 1)
    with pytest.raises(SystemExit):
        measure.apart(scaling.timed, 2, 1, "mlp", 1, XLA_FLAGS=scaling.flags(1))


SCALED = [
    *(("weak", 1, 2), ("weak", 2, 4)),
    *(("strong", 1, 4), ("strong", 2, 4)),
]


def scaled(told):
    """Returns the rows' kinds and sizes, and checks what they are relative to."""
    for one, two in (told[:2], told[2:]):
        speed_up = two["steps/s: best"] / one["steps/s: best"]
        assert (one["speed-up"], one["efficiency"]) == (1, 1)
        assert two["speed-up"] == pytest.approx(speed_up, nan_ok=True)
        assert two["efficiency"] == pytest.approx(speed_up / 2, nan_ok=True)
    return [(r["scaling"], r["devices"], r["clients a round"]) for r in told]


def test_devices_get_as_many_clients_each_or_share_them(
    tmp_path, monkeypatch, environments
):
    monkeypatch.setitem(workload.SETUPS, "mlp", TINY)
    arguments = "--counts", "1", "2", "--clients", "2"
    told = written("scaling", tmp_path, *arguments)
    assert scaled(told) == SCALED
    assert environments == 2 * [{"XLA_FLAGS": scaling.flags(n)} for n in (1, 2)]
    assert told[1]["steps/s: best"] == pytest.approx(8e3 / told[1]["ms a round: best"])
    with pytest.raises(SystemExit, match="counts=3, expected at most 2 devices"):
        scaling.timed(3, 4, "mlp", 1)


def test_rounds_compile_for_devices_that_are_not_there(tmp_path, monkeypatch):
    """On the CPU's two devices in their place, which take a second a round."""

    def make(name):
        count = {"v5e:1x1": 1, "v5e:2x1": 2}[name]
        return Target(name, jax.devices()[:count], 10**9, None)

    compile_for = scaling.targets.compile_for

    def with_seconds(*args):
        return [one._replace(seconds=1.0) for one in compile_for(*args)]

    monkeypatch.setattr(scaling.accelerators, "make", make)
    monkeypatch.setattr(scaling.targets, "compile_for", with_seconds)
    monkeypatch.setitem(workload.SETUPS, "mlp", TINY)
    arguments = "--target", "v5e", "--counts", "1", "2", "--clients", "2"
    told = written("scaling", tmp_path, *arguments)
    assert scaled(told) == SCALED
    assert [r["speed-up"] for r in told] == [1, 2, 1, 1]
    moved = [r["collectives, MB a round"] for r in told]
    assert moved[0] == moved[2] == "-"
    model = 4 * (784 * 4 + 4 + 4 * 10 + 10)  # bytes, summed over devices
    for text in (moved[1], moved[3]):
        size = 1e6 * sum(float(each.split()[1]) for each in text.split(", "))
        assert 0.99 * model <= size < 1.3 * model


def test_bits_and_flops_follow_the_density(tmp_path, monkeypatch):
    tiny = TINY._replace(samples=8)
    monkeypatch.setattr(density, "Workload", lambda *_: tiny._replace(method=_[-1]))
    dense, sparse = written("density", tmp_path, "--densities", "1", "0.1")
    kernels, biases = (784 * 4, 4 * 10), 4 + 10
    mask = density.masked(workload.make_model(tiny, workload.make_data(tiny)), 0.1).mask
    assert all(mask[layer]["bias"].all() for layer in mask)
    alive = sum(int(mask[layer]["kernel"].sum()) for layer in mask)
    assert abs(alive - 0.1 * sum(kernels)) < 70  # four standard deviations
    mbit = 4 * 32e-6  # a value of four clients
    assert dense["Mbit up"] == pytest.approx(mbit * (sum(kernels) + biases))
    assert sparse["Mbit up"] == sparse["Mbit down: later"]
    assert sparse["Mbit up"] == pytest.approx(mbit * (alive + biases))
    positions = sparse["Mbit down: first"] - sparse["Mbit down: later"]
    assert positions == pytest.approx(4e-6 * sum(kernels))
    share = (alive + biases) / (sum(kernels) + biases)
    assert sparse["of dense, down + up"] == pytest.approx(share)
    assert sparse["density"] == pytest.approx(alive / sum(kernels))
    passes = 6e-9 * 4 * 8  # GFLOP of a multiply-add, clients, samples
    assert dense["GFLOP at the masks"] == pytest.approx(passes * sum(kernels))
    assert sparse["GFLOP at the masks"] == pytest.approx(passes * alive)
    assert (dense["of dense"], dense["times dense"]) == (1, 1)
    assert sparse["of dense"] == pytest.approx(alive / sum(kernels))


@pytest.mark.parametrize("name", sfl.ALGORITHMS)
def test_every_method_can_be_timed(name):
    kwargs = methods.arguments(name, 2)
    data = workload.make_data(TINY)
    model = workload.make_model(TINY, data)
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.1)
    method = sfl.ALGORITHMS[name](model, optimizer, **kwargs)
    sparse = initial_state.initial_model(jax.random.key(0), model)
    trace(sfl.Stage(method, 1, 4, 1, 8), sparse, data)


def test_positions_of_real_masks(tmp_path):
    arguments = "--model", "mlp", "--rounds", "2", "--densities", "0.5", "0.02"
    told = written("positions", tmp_path, *arguments)
    kinds = [(r["mask of"], r["density"]) for r in told]
    assert kinds == [(m, d) for m in ("weights", "update") for d in (0.5, 0.02)]
    for r in told:
        assert r["bitmap"] == pytest.approx(1 / r["density"], rel=1e-3)
        layers = 0.98  # the layers differ in density, which a code of each layer uses
        odds = (1 - r["density"]) / r["density"]
        share = -np.log2(r["density"]) - odds * np.log2(1 - r["density"])
        assert r["packed"] < share / layers
        assert r["packed"] < r["golomb"] < r["coo"]
        assert r["golomb / packed"] > 1


def test_contract(tmp_path, monkeypatch, environments):
    given = iter([[3.0, 4.0], [5.0, 8.0]])
    monkeypatch.setattr(contract, "checked", lambda name: next(given))
    (r,) = written("contract", tmp_path, "--only", "fedavg")
    assert list(r.values()) == ["fedavg", 3.0, 4.0, 6.0]
    assert environments == [{"JAX_ENABLE_COMPILATION_CACHE": "false"}] * 2


def test_methods(tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "Workload", lambda *_, momentum: TINY)
    (r,) = written("methods", tmp_path, "--only", "fedprox")
    assert r["method"] == "fedprox" and r["ms a round: best"] > 0 < r["times FedAvg"]
    assert r["compile: times FedAvg's"] > 0 < r["compile s"]


def test_every_network_has_a_usual_batch():
    missing = models.MODELS.keys() - workload.NETWORKS.keys()
    tokens = {"char_gru", "encoder", "pretrained_encoder"}
    assert missing == tokens  # benchmarks draw images and features


def test_compaction(tmp_path, monkeypatch):
    monkeypatch.setitem(workload.SETUPS, "mlp", TINY._replace(widths=None))
    arguments = "--only", "mlp", "--samples", "20", "--density", "0.25"
    (r,) = written("compaction", tmp_path, *arguments)
    left = 32 + 1  # a constant replaces the removed units
    small = 784 * left + left + left * left + left + left * 10 + 10
    assert r["parameters"] == f"118,282 -> {small:,}"
    assert r["kept by layer, %"] == "25, 25, 100"
    assert r["inference, ratio"] > 0 < r["training, ratio"]
