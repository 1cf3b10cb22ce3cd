"""Memory: the estimate against compiled programs, the budget, and its end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.report import read_records
from sparsefl_jax.runs import cli, experiment, loop
from sparsefl_jax.runs.config import fields, objects
from sparsefl_jax.runs.plan import checks, liveness, memory_estimate
from sparsefl_jax.runs.setup import Setup
from sparsefl_jax.simulation import initial_state, placement, round_program
from sparsefl_jax.system import hardware
from tests.tiny import tiny_config

pytestmark = pytest.mark.slow

CLIENTS, SAMPLES, SHAPE = 8, 24, (6, 6, 1)


@pytest.fixture(scope="module")
def world():
    """Returns even clients, an MLP, and an optimizer with momentum."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS * SAMPLES, *SHAPE)).astype(np.float32)
    y = (np.arange(len(x)) % 4).astype(np.int32)
    parts = np.split(np.arange(len(x)), CLIENTS)
    data = sfl.from_arrays(x, y, x_test=x[:20], y_test=y[:20], partition=parts)
    model = sfl.build_model("mlp", 4, SHAPE, widths=(64, 32))
    optimizer = sfl.make_optimizer("sgd", momentum=0.9)
    return data, model, (model, optimizer)


def memory_of(world, chunk="auto", cohort=8, method=sfl.fedavg, **settings):
    data, model, parts = world
    stage = sfl.Stage(method(*parts), 2, cohort, 1, 8)
    return checks.run(Setup([stage], model, data, chunk=chunk, **settings))[0].memory


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x: (x @ x) @ x, 2 * 256),  # the first product dies with the second
        (lambda x: (x @ x, x @ x), 2 * 256),
        (lambda x: jnp.sum(jnp.exp(x) * 2.0), 4),  # all fused
        (lambda x: jnp.exp(x) @ x, 2 * 256),  # a product needs its operands
        (jax.jit(lambda x: jnp.tanh(x @ x)), 256),  # written in place
        # The carry is written in place, in addition to one product.
        (lambda x: jax.lax.fori_loop(0, 3, lambda i, a: a @ x, x), 2 * 256),
        (lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ x, lambda: x), None),
    ],
)
def test_liveness_by_hand(function, want):
    jaxpr = jax.make_jaxpr(function)(jnp.zeros((8, 8), jnp.float32)).jaxpr
    got = liveness.peak_bytes(jaxpr)
    if want is None:  # a branch's product, the result, and the predicate's scalars
        assert 256 <= got <= 256 + 32
    else:
        assert want <= got <= want + 16  # the loop's counters


@pytest.mark.parametrize("chunk", [1, 4])
def test_working_set_against_the_compiled_program(world, key, chunk):
    data, model, parts = world
    stage = sfl.Stage(sfl.fedavg(*parts), 1, 8, 1, 8)
    plan = placement.make_plan(stage, {}, jax.devices()[:1], chunk)
    population = placement.make_population(plan, data)
    sparse = jax.eval_shape(lambda k: checks.initial_model(k, model), key)
    state = initial_state.shapes(stage.algorithm, sparse, population.info)
    ids = np.arange(chunk, dtype=np.int32)[None]
    steps, never = np.array([3], np.int32), np.full((1, chunk), -1, np.int32)
    lowered = jax.jit(round_program.make_chunk_fn(plan)).lower(
        key, np.int32(0), state.server, population, steps, state.clients, never, ids
    )
    told = lowered.compile().memory_analysis()
    real = told.temp_size_in_bytes + told.output_size_in_bytes
    memory = memory_of(world, chunk, devices=jax.devices()[:1])
    assert 0.8 <= memory.parts()["working set"] / real <= 1.8
    summed = memory.parts()["sum"]  # beside it the logs come out
    assert 0.8 * told.output_size_in_bytes < summed < told.output_size_in_bytes


def test_parts_add_up_and_grow_with_chunk_devices_and_batch(world):
    one, two = (memory_of(world, chunk="4", devices=jax.devices()[:n]) for n in (1, 2))
    assert one.chunk == two.chunk == 4 and (one.share, two.share) == (8, 4)
    assert one.total() == sum(one.parts().values())
    assert one.parts(3)["working set"] == 3 * one.batched
    assert two.parts()["working set"] == 2 * one.parts()["working set"]
    assert two.parts()["server"] == 2 * one.parts()["server"]
    data, model, parts = world
    large = sfl.Stage(sfl.fedavg(*parts), 2, 8, 1, 24)
    (told,) = checks.run(Setup([large], model, data, devices=jax.devices()[:1]))
    assert told.memory.client > one.client


def test_a_budget_chooses_the_largest_chunk_that_fits(world):
    alone = memory_of(world)
    assert alone.chunk == 1  # one client per core, as on CPUs without a budget
    whole = memory_of(world, memory_gb=1.0)
    assert whole.chunk == whole.share == 4
    for chunk in (1, 2, 3):
        gb = (whole.total(chunk) + 10) / 1e9
        assert memory_of(world, memory_gb=gb).chunk == chunk
    assert memory_of(world, chunk="2", memory_gb=1.0).chunk == 2
    assert memory_of(world, chunk="99").chunk == 4


def test_what_does_not_fit_is_refused_before_compilation(world):
    whole = memory_of(world, memory_gb=1.0)
    gb = (whole.total(1) - 10) / 1e9
    with pytest.raises(ValueError, match=r"memory_gb=.* largest part is \w+.*: try"):
        memory_of(world, memory_gb=gb)
    gb = (whole.total(3) - 10) / 1e9
    with pytest.raises(ValueError, match="chunk=3, expected at most 2"):
        memory_of(world, chunk=3, memory_gb=gb)
    rows = memory_of(world, method=sfl.spafl)
    with pytest.raises(ValueError, match=r"try --config\.client_store=host"):
        parts = rows.fixed | {"clients": 10**9}
        memory_estimate.choose(rows._replace(fixed=parts), "auto", 10**8)
    there = rows._replace(fixed=parts, client_store={"where": "host", "working": 4})
    with pytest.raises(ValueError, match="clients.*try a smaller cohort_size or model"):
        memory_estimate.choose(there, "auto", 10**8)
    config = objects.default_config()
    config.memory_gb = -1.0
    with pytest.raises(ValueError, match="memory_gb=-1.0, expected above 0"):
        fields.check(config)


def test_an_accelerator_has_its_own_limit(world, monkeypatch):
    class Device:
        platform, process_index = "gpu", 0

        def __init__(self, limit):
            self.limit = limit

        def memory_stats(self):
            return {"bytes_limit": self.limit}

    assert memory_estimate.budget(None, jax.devices()) is None
    limit = memory_estimate.budget(None, [Device(1000), Device(3000)])
    assert limit == pytest.approx(0.9 * 4000)
    memory = memory_of(world, memory_gb=1.0)
    tight = memory.total(2) + 10
    assert memory_estimate.choose(memory, "auto", tight, strict=False) == 2
    assert memory_estimate.choose(memory, "3", tight, strict=False) == 3  # as asked


def fail_in_round(monkeypatch, round, error):
    """Makes segments from a round on fail as XLA does."""
    make = round_program.make_segment

    def failing(plan):
        segment = make(plan)

        def run(key, population, state, rounds, *rest):
            if plan.chunk > 1 and rounds[0] >= round:
                raise error
            return segment(key, population, state, rounds, *rest)

        return run

    monkeypatch.setattr(round_program, "make_segment", failing)


def test_out_of_memory_keeps_the_run_and_names_the_chunk(tmp_path, monkeypatch):
    config = tiny_config(tmp_path)
    config.first_stage, config.algorithm = {}, {"name": "fedavg"}
    config.cohort_size, config.chunk, config.checkpoint_minutes = 8, "4", 0.0
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9")
    with monkeypatch.context() as patch:
        fail_in_round(patch, 2, error)
        with pytest.raises(MemoryError, match=r"stage 0 with chunk=4.*chunk=2 takes"):
            experiment.run(config, tmp_path / "a", progress=False)
    records = read_records(tmp_path / "a" / "metrics.jsonl")
    assert [record["round"] for record in records] == [1, 2, 2]
    config.chunk = "2"
    summary = experiment.run(config, tmp_path / "a", resume=True, progress=False)
    records = read_records(tmp_path / "a" / "metrics.jsonl")
    assert [record["round"] for record in records] == [1, 2, 2, 3, 4, 4]
    assert summary["stages"][0]["chunk"] == 2


def test_other_errors_of_the_runtime_stay_what_they_are(world):
    memory = memory_of(world)
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
        memory_estimate.explained(memory, 0),
    ):
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug")


def test_a_real_failure_to_allocate(world):
    memory = memory_of(world)
    said = r"stage 1 with chunk=1.*largest part is working set, .*B: try"
    with (
        pytest.raises(MemoryError, match=said),
        memory_estimate.explained(memory, 1),
    ):  # more than an address space holds
        jnp.ones((2**20, 2**20, 2**8), jnp.float32).block_until_ready()


def test_the_command_tells_it_in_one_line(capsys):
    class App:
        @staticmethod
        def run(main, flags_parser):
            main([])

    def main(argv):
        raise MemoryError("out of memory in stage 0 with chunk=4; --config.chunk=2")

    with pytest.raises(SystemExit) as stopped:
        cli.guarded(App, None, main)
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said == "error: out of memory in stage 0 with chunk=4; --config.chunk=2\n"


def test_summary_tells_memory_and_compilation(tmp_path):
    summary = experiment.run(tiny_config(tmp_path), tmp_path / "a", progress=False)
    for stage in summary["stages"]:
        assert set(stage["memory"]) == {*memory_estimate.REMEDIES}
        assert stage["chunk"] == 1 and stage["compile_seconds"] > 0
    told = summary["memory"]
    totals = [sum(stage["memory"].values()) for stage in summary["stages"]]
    assert told["estimated"] == max(totals) and told["process"] > 10**8
    assert told["devices"] is None  # CPUs do not report it
    spent = sum(stage["compile_seconds"] for stage in summary["stages"])
    assert spent < summary["seconds"]
    table = sfl.report.summary_table(summary)
    assert "of it compilation" in table and "working set" in table


def test_a_budget_sends_rows_to_the_host_and_bounds_a_segments_working_set(key):
    """60 rows against 50 rows' bytes: a quarter of these is six rows, twice."""
    x = np.zeros((180, 6), np.float32)
    data = sfl.from_arrays(x, np.arange(180) % 3, num_clients=60)
    model = sfl.build_model("mlp", 3, (6,), widths=(128, 128))
    optimizer = sfl.make_optimizer("sgd", learning_rate=0.1)
    stage = sfl.Stage(sfl.spafl(model, optimizer), 12, 1)

    def cut(memory_gb):
        settings = {"eval_every": 12, "memory_gb": memory_gb}
        (told,) = checks.run(Setup([stage], model, data, **settings))
        ends = [
            segment.snapshot.round
            for segment in loop.segments(key, [stage], model, data, **settings)
        ]
        return told.memory.client_store, ends

    store, ends = cut(1.0)
    assert store["where"] == "device" and ends == [12]
    store, ends = cut(50 * store["bytes"] / 60 / 1e9)
    assert store["where"] == "host" and store["working"] == 6 and ends == [6, 12]


def test_what_the_host_can_not_hold_is_refused_before_compilation(world, monkeypatch):
    data, model, parts = world
    memory = memory_of(world, method=sfl.spafl)
    told = memory.parts()
    needed = sum(told.values()) - told["working set"] // 2 - 1

    def host(size):
        monkeypatch.setattr(hardware, "host_memory", lambda: size)

    def checked(**settings):
        return memory_of(world, method=sfl.spafl, client_store="device", **settings)

    host(needed + 10)
    assert checked().fixed == memory.fixed
    host(needed - 10)
    for settings, told in (({}, "is clients, "), ({"memory_gb": 1.0}, "smaller chunk")):
        with pytest.raises(ValueError, match=f"has .* expected at least .*{told}"):
            checked(**settings)
    # A population of 10 GB per device; zeros are lazy, so nothing is allocated.
    x = np.broadcast_to(np.zeros((1, *SHAPE), np.float32), (7 * 10**7, *SHAPE))
    large = data._replace(x=x)
    host(2 * 10**10)
    stage = sfl.Stage(sfl.fedavg(*parts), 2, 8, 1, 8)
    with pytest.raises(
        ValueError, match="has 20.0 GB .* is population, .* try fewer tr"
    ):
        checks.run(Setup([stage], model, large))
    # A batch larger than the data: an epoch's order has 2**31 entries.
    host(10**9)
    stage = stage._replace(batch_size=2**31 - 1)
    with pytest.raises(
        ValueError, match="part is working set, .* try a smaller chunk, b"
    ):
        checks.run(Setup([stage], model, data))


def test_rows_on_the_host_are_held_there_and_those_on_the_disk_are_not(monkeypatch):
    class Accelerator:
        platform = "gpu"

    store = {"where": "host", "bytes": 900, "working": 2}
    memory = memory_estimate.Memory({"server": 10**6}, 10, 10, 1, 1, store)
    monkeypatch.setattr(hardware, "host_memory", lambda: 900)
    memory_estimate.check_host(memory, [Accelerator()])
    monkeypatch.setattr(hardware, "host_memory", lambda: 899)
    with pytest.raises(
        ValueError, match="is clients, 900 B: try --config.client_store"
    ):
        memory_estimate.check_host(memory, [Accelerator()])
    there = memory._replace(client_store=store | {"where": "disk"})
    memory_estimate.check_host(there, [Accelerator()])
