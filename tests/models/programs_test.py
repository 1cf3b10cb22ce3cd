"""Form and chunk on accelerators follow the record of whole programs."""

import json
import math
from types import SimpleNamespace

import pytest

from benchmarks import programs as benchmark
from benchmarks import workload
from sparsefl_jax.models import convolution
from sparsefl_jax.runs.plan import plan
from sparsefl_jax.runs.setup import Setup

RECORD = json.loads(benchmark.TABLE.read_text())


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


@pytest.mark.parametrize(("platform", "chunk"), [("tpu", 1), ("gpu", 4)])
def test_a_plan_has_the_chunk_of_its_platform(platform, chunk):
    """An MLP of 3e7 multiply-adds a step; two devices, eight clients a round."""
    given = workload.Workload("mlp", 16, 300, 8, batch_size=256)
    data = workload.make_data(given)
    model = workload.make_model(given, data)
    stage = workload.make_stage(given, model, 1)
    devices = [SimpleNamespace(platform=platform)] * 2
    setup = Setup([stage], model, data, devices=devices, memory_gb=10.0)
    (stage,) = plan(setup).stages
    assert stage.memory.chunk == chunk
