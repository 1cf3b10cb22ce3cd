"""Form and chunk on accelerators follow the record of whole programs."""

import json
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from benchmarks import programs as benchmark
from benchmarks import workload
from sparsefl_jax.core.types import ClientInfo
from sparsefl_jax.models import convolution
from sparsefl_jax.runs.plan import plan
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import initial_state
from sparsefl_jax.simulation.placement import Plan, on_host
from sparsefl_jax.simulation.round_program import make_client_fn

RECORD = json.loads(benchmark.TABLE.read_text())


def world(*sizes, **options):
    """Returns a stage, its network and its data."""
    given = workload.Workload(*sizes, **options)
    data = workload.make_data(given)
    model = workload.make_model(given, data)
    return workload.make_stage(given, model, 1), model, data


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_the_form_is_the_fastest_over_all_networks_of_the_record(platform):
    each = [one["ms"] for one in RECORD[platform]["rounds"].values()]
    each = [ms for ms in each if set(benchmark.FORMS) <= ms.keys()]
    totals = {form: math.prod(ms[form] for ms in each) for form in benchmark.FORMS}
    layer = convolution.Layer(32, 8, 8, 16, 16, 3)
    form = min(totals, key=totals.get)
    assert set(convolution.choose(layer, platform)[:3]) == {form}


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_clients_run_in_turn_where_that_is_faster_in_the_record(platform):
    form = convolution.UNDER_VMAP.get(platform, "plain")
    for name, one in RECORD[platform]["rounds"].items():
        ms = one["ms"]
        faster = ms[benchmark.IN_TURN] < ms.get(form, ms["plain"])
        assert convolution.in_turn(platform, one["macs"]) == faster, name
        assert convolution.in_turn("cpu", one["macs"])


@pytest.mark.parametrize("chunk", [1, 2])
def test_clients_in_turn_run_in_the_form_that_was_timed(chunk):
    """Plain convolutions; under vmap patches."""
    device = jax.sharding.AbstractDevice("any", None, "gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("clients",), abstract_device=device)
    stage, model, data = world("lenet5_caffe", 4, 4, 2, batch_size=2)
    devices = SimpleNamespace(devices=np.array([SimpleNamespace(platform="gpu")]))
    plan = Plan(stage, devices, chunk, layers=None, frozen=model.frozen)
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


@pytest.mark.parametrize(("platform", "chunk"), [("tpu", 1), ("gpu", 4)])
def test_a_plan_has_the_chunk_of_its_platform(platform, chunk):
    """An MLP of 3e7 multiply-adds a step; two devices, eight clients a round."""
    stage, model, data = world("mlp", 16, 300, 8, batch_size=256)
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
    assert one["ms"].keys() == {*benchmark.FORMS, benchmark.IN_TURN}
    # 5x5 kernels on 24x24 and 8x8 places, two dense layers; two samples.
    macs = 24 * 24 * 25 * 20 + 8 * 8 * 25 * 20 * 50 + 800 * 500 + 500 * 10
    assert (one["parameters"], one["macs"]) == (430_500, 2 * macs)
