"""Form and chunk on accelerators follow the table of whole programs."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from benchmarks import programs as benchmark
from benchmarks import workload
from sparsefl_jax.core.types import ClientInfo
from sparsefl_jax.models import convolution, programs
from sparsefl_jax.runs.plan import plan
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import initial_state
from sparsefl_jax.simulation.placement import Plan, on_host
from sparsefl_jax.simulation.round_program import make_client_fn

DENSE = {"plain": 1.0, "in turn": 5.0}
# `patches` wins the first, `canonical` both together: 2 * 8 < 4 * 5 < 1 * 90.
CONV = {"plain": 4.0, "canonical": 2.0, "patches": 1.0, "in turn": 0.5}
DEEP = {"plain": 5.0, "canonical": 8.0, "patches": 90.0, "in turn": 7.0}


def entry(parameters, macs, ms):
    return {"parameters": parameters, "macs": macs, "ms": ms}


@pytest.fixture
def table(monkeypatch):
    """Sets a table for TPUs; by no estimate of these is `plain` the fastest."""
    rounds = {
        "mlp": entry(10**5, 10**6, DENSE),
        "cnn": entry(10**5, 10**8, CONV),
        "deep": entry(10**7, 10**10, DEEP),
    }
    monkeypatch.setattr(programs, "table", lambda: {"tpu": {"rounds": rounds}})
    programs.form.cache_clear()
    convolution.choose.cache_clear()
    yield rounds
    programs.form.cache_clear()
    convolution.choose.cache_clear()


def world(*sizes, **options):
    """Returns a stage, its network and its data."""
    given = workload.Workload(*sizes, **options)
    data = workload.make_data(given)
    model = workload.make_model(given, data)
    return workload.make_stage(given, model, 1), model, data


def test_the_form_is_the_fastest_over_all_networks(table):
    assert programs.form("tpu") == "canonical"
    layer = convolution.Layer(32, 8, 8, 16, 16, 3)
    assert set(convolution.choose(layer, "tpu")[:3]) == {"canonical"}
    assert programs.form("gpu") == "plain"  # of which the table says nothing


@pytest.mark.parametrize(
    ("parameters", "macs", "in_turn"),
    [(10**5, 2 * 10**6, False), (10**5, 5 * 10**7, True), (10**7, 10**9, True)],
)
def test_the_nearest_network_says_who_runs_in_turn(parameters, macs, in_turn, table):
    """The deep one by 7 ms beside 8 ms in the form that runs; `plain` would take 5."""
    assert programs.in_turn("tpu", parameters, macs) == in_turn
    assert not programs.in_turn("gpu", parameters, macs)
    assert programs.in_turn("cpu", parameters, macs)


@pytest.mark.parametrize("chunk", [1, 2])
def test_clients_in_turn_run_in_the_form_that_was_timed(chunk, table):
    """Plain convolutions; under vmap patches, which win the table without `deep`."""
    del table["deep"]
    device = jax.sharding.AbstractDevice("any", None, "tpu")
    mesh = jax.sharding.AbstractMesh((1,), ("clients",), abstract_device=device)
    stage, model, data = world("lenet5_caffe", 4, 4, 2, batch_size=2)
    devices = SimpleNamespace(devices=np.array([SimpleNamespace(platform="tpu")]))
    plan = Plan(stage, devices, chunk, layers=None, observed=False, frozen=model.frozen)
    population = on_host(data)
    state = initial_state.shapes(
        stage.algorithm, initial_state.initial_shapes(model), population.info
    )
    one = ClientInfo(np.int32(0), np.int32(4), np.float32(1))
    round_and_steps = np.int32(0), np.int32(2)
    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.make_jaxpr(make_client_fn(plan))(
            jax.random.key(0),
            *round_and_steps,
            state.server,
            population,
            state.clients,
            np.int32(-1),
            one,
        )
    assert ("conv_general_dilated" in str(text)) == (chunk == 1)


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "chunk"), [("tpu", 1), ("gpu", 4)])
def test_a_plan_has_the_tables_chunk(platform, chunk, table):
    """An MLP of 1e6 multiply-adds a step; two devices, eight clients a round."""
    table["mlp"] = table["mlp"] | {"ms": CONV}
    stage, model, data = world("mlp", 16, 24, 8, batch_size=8)
    devices = [SimpleNamespace(platform=platform)] * 2
    setup = Setup([stage], model, data, devices=devices, memory_gb=10.0)
    (stage,) = plan(setup).stages
    assert stage.memory.chunk == chunk


@pytest.mark.slow
def test_all_programs_of_a_network_are_timed():
    """On the CPU, which the table does not need."""
    setup = workload.Workload("lenet5_caffe", 4, 4, 2, sfl.fedavg, batch_size=2)
    run = lambda *parts: benchmark.timed(*parts, repeats=1)  # noqa: E731
    _, one = benchmark.compare(setup, run)
    assert one["ms"].keys() == {*programs.FORMS, programs.IN_TURN}
    # 5x5 kernels on 24x24 and 8x8 places, two dense layers; two samples.
    macs = 24 * 24 * 25 * 20 + 8 * 8 * 25 * 20 * 50 + 800 * 500 + 500 * 10
    assert (one["parameters"], one["macs"]) == (430_500, 2 * macs)
