"""Rows travel to the devices that train them and back, and nowhere else."""

import re

import jax
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import sparsefl_jax as sfl
from sparsefl_jax.simulation import exchange, initial_state, placement, round_program


def carried(rows, places, new):
    """Returns the rows read and the rows after writing, by the devices of a mesh."""
    mesh = Mesh(np.array(jax.devices()[: len(places)]), ("clients",))
    held, dealt = exchange.spec(rows, len(places)), P("clients")

    def both(rows, new, way):
        mine = jax.tree.map(lambda v: v[0], new)
        read = jax.tree.map(lambda v: v[None], exchange.read(rows, way))
        return read, exchange.write(rows, mine, way)

    @jax.jit
    def run(rows, places, new):
        way = exchange.routes(places, rows)
        specs = (held, dealt, P()), (dealt, held)
        return exchange.per_device(both, mesh, *specs)(rows, new, way)

    return run(rows, places, new)


@pytest.mark.parametrize(
    "num_rows, places",
    [
        (6, [[3, 6, 0]]),
        (6, [[4, 1, 3, 5], [0, 2, 6, 6]]),  # the first needs three of the second's rows
        (6, [[0, 1, 2], [3, 4, 5]]),  # each trains what it holds
        (5, [[4, 0, 5], [2, 5, 1]]),  # an odd number: each device holds all rows
    ],
)
def test_rows_are_read_and_written_as_numpy_would(num_rows, places):
    rng, places = np.random.default_rng(0), np.array(places, np.int32)
    real = places < num_rows

    def draw(*lead):
        weights = rng.normal(size=(*lead, 3, 2)).astype(np.float32)
        weights[..., 0, 0] = -0.0
        weights[..., 0, 1] = np.nan
        mask = rng.integers(256, size=(*lead, 5)).astype(np.uint8)
        return {"mask": mask, "weights": weights}

    rows, new = draw(num_rows), draw(*places.shape)
    told = *jax.device_get(carried(rows, places, new)), new
    for name, old in rows.items():
        bits = np.uint32 if name == "weights" else np.uint8  # also the sign of zero
        old = old.view(bits)
        read, after, sent = (v[name].view(bits) for v in told)
        np.testing.assert_array_equal(read[real], old[places[real]])
        expected = old.copy()
        expected[places[real]] = sent[real]
        np.testing.assert_array_equal(after, expected)


CLIENTS, COHORT, KERNEL, IMAGE = 8, 4, (128, 37), (8, 8, 2)


def compiled(devices, chunk, clients=CLIENTS, width=KERNEL[1], classes=3):
    """Returns SpaFL's compiled program for given devices, from shapes alone."""
    x = np.zeros((4 * clients, *IMAGE), np.uint8)
    y = np.arange(len(x), dtype=np.int32) % 3
    data = sfl.from_arrays(x, y, x_test=x, y_test=y, num_clients=clients)
    model = sfl.models.build("mlp", classes, IMAGE, widths=(width,))
    method = sfl.spafl(model, sfl.training.make_optimizer())
    stage = sfl.Stage(method, 1, COHORT, batch_size=2)
    layers = jax.tree.map(lambda m: m > 0, model.macs)
    plan = placement.make_plan(stage, layers, devices, chunk)
    everywhere = NamedSharding(plan.mesh, P())

    def shape(leaf, sharding=everywhere):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    population = placement.on_host(data)
    sparse = jax.eval_shape(
        lambda: initial_state.initial_model(jax.random.key(0), model)
    )
    state = initial_state.shapes(method, sparse, population.info)
    state = jax.tree.map(shape, state, placement.shardings(plan, state))
    rounds = shape(np.zeros(2, np.int32)), shape(np.zeros((2, COHORT), np.int32))
    inputs = jax.eval_shape(lambda: jax.random.key(0)), population
    inputs = jax.tree.map(shape, inputs)
    return (
        jax.jit(round_program.make_segment(plan), donate_argnums=2)
        .lower(*inputs, state, *rounds)
        .compile()
    )


def results(program, *operations):
    """Returns the shapes that operations of a program result in."""
    found = re.findall(r" = (.*?) ([\w-]+)\(", program.as_text())
    return [s for s, name in found if name.removesuffix("-start") in operations]


@pytest.mark.parametrize("chunk", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_nobody_receives_a_cohort_s_rows_and_no_store_is_copied(chunk):
    program = compiled(jax.devices()[:2], chunk)
    kernel = f"{KERNEL[0]},{KERNEL[1]}]"
    gathered = results(program, "all-gather", "all-reduce", "reduce-scatter")
    assert gathered and not [s for s in gathered if kernel in s]
    assert any(kernel in s for s in results(program, "all-to-all"))
    held = f"f32[{CLIENTS // 2},{kernel}"
    assert not [s for s in results(program, "copy", "gather", "scatter") if held in s]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_tpus_copy_neither_the_store_nor_the_images(monkeypatch, devices):
    pytest.importorskip("libtpu", reason="libtpu, which compiles for TPU, is absent")
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    found = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    clients, width = 8192, 128
    sizes = clients, width, 128  # leaves of other widths are padded to 128 by row
    program = compiled(list(found.devices)[:devices], "auto", *sizes)
    gathered = results(program, "all-gather", "all-reduce", "reduce-scatter")
    assert not [s for s in gathered if f"{KERNEL[0]},{width}]" in s]
    held = clients // devices * KERNEL[0] * width * 4
    assert program.memory_analysis().temp_size_in_bytes < held / 20
