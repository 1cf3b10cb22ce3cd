"""Memory: by shape and of compiled programs, its limit, and running out of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.report import read_records
from sparsefl_jax.runs import experiment, programs, simulate
from sparsefl_jax.runs import plan as planning
from sparsefl_jax.runs.plan import plan
from sparsefl_jax.runs.setup import (
    Memory,
    Setup,
    explain,
    memory_limit,
    smaller,
)
from sparsefl_jax.system import hardware
from tests.refusals import refused
from tests.tiny import federation, tiny_config

pytestmark = pytest.mark.slow

CLIENTS, SAMPLES, SHAPE = 8, 24, (6, 6, 1)


@pytest.fixture(scope="module")
def world():
    """Even clients, an MLP, a loss and an optimizer with momentum."""
    return federation([SAMPLES] * CLIENTS, 20, 4, SHAPE, (64, 32), momentum=0.9)


def setup_of(world, chunk="auto", cohort=8, method=sfl.fedavg, batch=8, **settings):
    data, model, parts = world
    stage = sfl.Stage(method(*parts), 2, cohort, 1, batch)
    return Setup([stage], model, data, chunk=chunk, **settings)


def memory_of(world, *args, **settings):
    """Of the compiled stage, on one device unless told otherwise."""
    setup = setup_of(world, *args, **{"devices": jax.devices()[:1]} | settings)
    return programs.compile_stage(plan(setup), 0).memory


def test_parts_by_hand(world):
    """8 clients of 24 samples 6 x 6, and a network of 36-64-32-4."""
    weights = 37 * 64 + 65 * 32 + 33 * 4
    setup = setup_of(world, method=sfl.spafl, devices=jax.devices())
    (planned,) = plan(setup).stages
    # Samples and labels, the rows [8, 24], and three facts of each client: twice.
    population = 8 * 24 * (36 + 1) * 4 + 8 * 24 * 4 + 8 * 3 * 4
    # Each device evaluates its own clients' models, on any of the test samples.
    want = {"population": 2 * population, "test set": 2 * 20 * (36 + 1) * 4}
    parts = planned.memory.parts()
    assert {name: parts[name] for name in want} == want
    # A client keeps its weights and its thresholds, one for each of 64 + 32 filters.
    assert parts["clients"] >= 8 * 4 * weights
    assert parts["clients"] == planned.memory.client_store["bytes"]
    (planned,) = plan(setup_of(world, devices=jax.devices())).stages
    assert planned.memory.parts()["test set"] == 20 * (36 + 1) * 4  # divided
    server = planned.memory.parts()["server"]  # weights, and a byte for each mask entry
    assert 2 * 4 * weights <= server <= 2 * 5 * weights + 64
    assert planned.memory.working_set is None
    assert planned.memory.total() == sum(planned.memory.parts().values())


def test_the_working_set_grows_with_chunk_batch_and_devices(world):
    one, four = memory_of(world, "1"), memory_of(world, "4")
    assert (one.chunk, four.chunk) == (1, 4)
    assert one.fixed == four.fixed
    # Each of four clients has its own weights, momentum and gradient at least.
    weights = 4 * (37 * 64 + 65 * 32 + 33 * 4)
    assert four.working_set - one.working_set > 3 * 2 * weights
    assert memory_of(world, "4", batch=12).working_set > four.working_set  # two steps
    both = memory_of(world, "4", devices=jax.devices())
    assert both.parts()["server"] == 2 * four.parts()["server"]
    assert both.working_set > 1.5 * four.working_set
    assert both.total() == sum(both.parts().values())


def test_a_budget_reduces_the_chunk_until_the_program_fits(world, monkeypatch):
    """As on an accelerator."""
    monkeypatch.setattr(planning, "in_turn", lambda *step: False)
    whole = memory_of(world, memory_gb=1.0)
    assert whole.chunk == 8
    gb = (sum(whole.fixed.values()) + whole.working_set // 2) / 1e9
    less = memory_of(world, memory_gb=gb)
    assert 1 <= less.chunk <= 4 and less.total() <= 1e9 * gb
    assert memory_of(world, "2", memory_gb=1.0).chunk == 2
    assert memory_of(world, "99").chunk == 8


def test_shapes_that_do_not_fit_are_refused_before_compilation(world, monkeypatch):
    monkeypatch.setattr(programs, "compile_stage", None)
    with pytest.raises(
        ValueError, match="takes .*B, expected at most 10.0 kB .*server .*B"
    ):
        plan(setup_of(world, memory_gb=1e-5))
    setup = setup_of(world, method=sfl.spafl, client_store="device")
    (rows,) = plan(setup).stages
    parts = rows.memory.fixed | {"clients": 10**9}
    rows = rows.memory._replace(fixed=parts, chunk=1, working_set=0)
    with pytest.raises(ValueError, match=r"at most 100 MB .*clients 1\.00 GB"):
        smaller(rows, 10**8, setup)


def test_a_working_set_that_does_not_fit_is_refused(world):
    one = memory_of(world, "1")
    gb = (one.total() - 10) / 1e9
    with pytest.raises(ValueError, match=r"chunk=1 takes .*working set"):
        memory_of(world, memory_gb=gb)
    with pytest.raises(ValueError, match="chunk=4 takes .*working set"):
        memory_of(world, 4, memory_gb=gb + 0.3 * one.working_set / 1e9)


def test_an_accelerator_has_its_own_limit():
    class Device:
        platform, process_index = "gpu", 0

        def __init__(self, limit):
            self.limit = limit

        def memory_stats(self):
            return {"bytes_limit": self.limit}

    assert memory_limit(None, jax.devices()) is None
    limit = memory_limit(None, [Device(1000), Device(3000)])
    assert limit == pytest.approx(0.9 * 4000)
    tight = Memory({"server": 100}, {}, chunk=4, working_set=400)
    for chunk, want in (("auto", 2), ("4", 4)):  # a chunk that was set stays
        setup = Setup([], None, None, chunk=chunk)
        assert smaller(tight, 350, setup) == want
    said = "chunk=4 takes 500 B, expected at most 150 B (memory_gb, or what the devices"
    refused(lambda: smaller(tight, 150, Setup([], None, None)), said)


def fail_in_round(monkeypatch, round, error):
    """Lets the segments from a round on fail as XLA does."""
    compile_stage = programs.compile_stage

    def failing(*args):
        program = compile_stage(*args)

        def run(key, population, state, rounds, *rest):
            if program.plan.chunk > 1 and rounds[0] >= round:
                raise error
            return program.segment(key, population, state, rounds, *rest)

        return program._replace(segment=run)

    monkeypatch.setattr(programs, "compile_stage", failing)


def test_out_of_memory_keeps_the_run_and_names_the_chunk(tmp_path, monkeypatch):
    config = tiny_config(tmp_path)
    config.first_stage, config.algorithm = {}, {"name": "fedavg"}
    config.cohort_size, config.chunk, config.checkpoint_minutes = 8, "4", 0.0
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9")
    with monkeypatch.context() as patch:
        fail_in_round(patch, 2, error)
        with pytest.raises(
            MemoryError, match="stage 0 with chunk=4, expected a smaller"
        ):
            experiment.run(config, tmp_path / "a", progress=False)
    records = read_records(tmp_path / "a" / "metrics.jsonl")
    assert [record["round"] for record in records] == [1, 2, 2]
    config.chunk = "2"
    summary = experiment.run(config, tmp_path / "a", resume=True, progress=False)
    records = read_records(tmp_path / "a" / "metrics.jsonl")
    assert [record["round"] for record in records] == [1, 2, 2, 3, 4, 4]
    assert summary["stages"][0]["chunk"] == 2


def test_a_real_failure_to_allocate_and_other_errors_of_the_runtime(world):
    alone, error = memory_of(world), jax.errors.JaxRuntimeError("INTERNAL: a bug")
    said = "stage 1 with chunk=1, expected a smaller chunk or model"
    with pytest.raises(MemoryError, match=said), explain(alone, 1):
        # more than an address space holds
        jnp.ones((2**20, 2**20, 2**8), jnp.float32).block_until_ready()
    with pytest.raises(type(error), match="INTERNAL"), explain(alone, 0):
        raise error


def test_a_budget_sends_rows_to_the_host_and_bounds_a_segments_working_set(key):
    """60 rows against 50 rows' bytes: a quarter of these is six rows, twice."""
    x = np.zeros((180, 6), np.float32)
    data = sfl.from_arrays(x, np.arange(180) % 3, num_clients=60)
    model = sfl.models.build("mlp", 3, (6,), widths=(128, 128))
    optimizer = sfl.training.make_optimizer("sgd", learning_rate=0.1)
    stage = sfl.Stage(sfl.spafl(model, optimizer), 12, 1)

    def cut(memory_gb):
        settings = {"eval_every": 12, "memory_gb": memory_gb}
        (told,) = plan(Setup([stage], model, data, **settings)).stages
        segments = simulate.segments(key, [stage], model, data, **settings)
        ends = [segment.snapshot.round for segment in segments]
        return told.memory.client_store, told.pace.working, ends

    store, _, ends = cut(1.0)
    assert store["where"] == "device" and ends == [12]
    store, working, ends = cut(50 * store["bytes"] / 60 / 1e9)
    assert store["where"] == "host" and working == 6 and ends == [6, 12]


def test_what_the_host_cannot_hold_is_refused(world, monkeypatch):
    def host(size):
        monkeypatch.setattr(hardware, "host_memory", lambda: size)

    setup = setup_of(world, method=sfl.spafl, client_store="device")
    fixed = plan(setup).stages[0].memory.total()
    host(fixed - 10)
    with pytest.raises(ValueError, match="has .* expected at least .*clients .*B"):
        plan(setup)
    host(fixed + 10)
    planned = plan(setup)
    with pytest.raises(ValueError, match="has .* expected at least .*"):
        programs.compile_stage(planned, 0)
