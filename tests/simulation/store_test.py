"""Clients' rows on the host or disk: the same run, bit for bit, in less memory."""

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.simulation import initial_state, placement, rows
from sparsefl_jax.system import hardware, processes
from tests.tiny import federation

pytestmark = pytest.mark.slow

COHORT, WIDTH, INPUTS, CLASSES = 3, 5, 6, 4
METHODS = {
    # Rows of packed masks.
    "nst": lambda *parts: sfl.nst(*parts, density=0.5, prune_rate_decay=False),
    "spafl": lambda *parts: sfl.spafl(*parts, alpha=0.1, keep_optimizer=True),
}


def make_world(num_clients):
    """Returns clients of six images each, an MLP, and the arguments of methods."""
    given = [6] * num_clients, 10 * num_clients, CLASSES, (2, 3, 1), (WIDTH,)
    return federation(*given, learning_rate=0.1, momentum=0.9)


@pytest.fixture(scope="module")
def world():
    """Returns seven clients, an odd number on two devices."""
    return make_world(7)


def segments(world, method, key, rounds=6, **settings):
    data, model, parts = world
    stage = sfl.Stage(METHODS[method](*parts), rounds, COHORT, batch_size=4)
    return sfl.segments(key, [stage], model, data, **settings)


def everyone(state):
    """Returns a state as NumPy arrays, with the rows of all clients."""
    clients = state.clients
    if isinstance(clients, rows.Store):
        clients = clients.take(np.arange(len(state.last_round)))
    return jax.device_get(state._replace(clients=clients))


def whole(told):
    """Returns all records, the last state as NumPy, and the ends of segments."""
    told = list(told)
    records = [record for segment in told for record in segment.records]
    state = everyone(told[-1].snapshot.state)
    return records, state, [segment.snapshot.round for segment in told]


@pytest.mark.parametrize(
    "where, method, rounds, every",
    [
        ("host", "nst", 6, 2),
        ("host", "spafl", 6, 3),
        ("disk", "spafl", 2, 2),
        ("disk", "nst", 2, 1),
    ],
)
def test_rows_elsewhere_give_what_those_on_the_device_give(
    world, key, where, method, rounds, every
):
    # Three rounds ask for more rows than there are clients, two for all but one; two
    # rounds do not reach all clients, but SpaFL evaluates all.
    there, here = (
        whole(segments(world, method, key, rounds, eval_every=every, client_store=s))
        for s in ("device", where)
    )
    assert there[2] == here[2] == list(range(every, rounds + 1, every))
    assert there[0] == here[0]
    jax.tree.map(np.testing.assert_array_equal, there[1], here[1])
    assert any(len(np.unique(v, axis=0)) > 2 for v in jax.tree.leaves(here[1].clients))


def test_the_device_holds_a_working_set(key, monkeypatch):
    world, held, fetch = make_world(40), [], processes.fetch
    there = whole(segments(world, "spafl", key, 4, eval_every=4, client_store="device"))
    row = rows.num_bytes(there[1].clients) // 40

    def watched(tree):
        kernels = [v for v in jax.live_arrays() if v.shape[1:] == (INPUTS, WIDTH)]
        held.append(sum(v.shape[0] for v in kernels))
        return fetch(tree)

    monkeypatch.setattr(processes, "fetch", watched)
    # An eighth of the memory holds four rows: a cohort's three, on two devices.
    monkeypatch.setattr(hardware, "memory", lambda _: 8 * 4 * row)
    here = whole(segments(world, "spafl", key, 4, eval_every=4))
    assert there[2] == [4] and here[2] == [1, 2, 3, 4]
    assert max(held) == 2 * 4  # weights and their momentum, of four rows
    assert there[0] == here[0]
    jax.tree.map(np.testing.assert_array_equal, there[1], here[1])


@pytest.mark.parametrize("where", ["host", "disk"])
@pytest.mark.parametrize("groups", [[[2], [6, 0], [1, 3, 4, 5]], [range(7)]])
def test_first_rows_do_not_depend_on_who_else_is_asked_for(world, key, where, groups):
    def init_client(key, received, info):
        del received
        mask = jax.random.bernoulli(key, 0.5, (9,))
        return {"mask": mask, "w": jax.random.normal(key, (3, 2)) * info.num_examples}

    data, model, parts = world
    algorithm = METHODS["nst"](*parts).replace(init_client=init_client)
    plan = placement.make_plan(sfl.Stage(algorithm, 1, COHORT), {})
    population = placement.make_population(plan, data)
    sparse = initial_state.initial_model(key, model)
    there = initial_state.start(key, plan, sparse, population.info)
    here = initial_state.start(key, plan, sparse, population.info, where=where)
    for group in map(np.array, groups):
        want = jax.tree.map(lambda v, group=group: v[group], there.clients)
        jax.tree.map(np.testing.assert_array_equal, here.clients.take(group), want)
    jax.tree.map(np.testing.assert_array_equal, everyone(here), everyone(there))
    assert len(np.unique(there.clients["w"], axis=0)) == 7


def test_a_run_may_change_its_store_where_it_goes_on(world, key, tmp_path):
    """What is saved of it are the rows of those who took part; others start as here."""
    there = whole(segments(world, "nst", key, eval_every=1, client_store="device"))
    records, resume, counts = [], None, []
    # The initial server would make another network than that of the run.
    other = initial_state.initial_model(jax.random.key(5), world[1])
    for where in ("disk", "host", "disk", "host", "disk", "disk"):
        settings = {"eval_every": 1, "client_store": where, "resume": resume}
        settings |= {"initial": other} if resume else {}
        segment = next(segments(world, "nst", key, **settings))
        records += segment.records
        checkpoint.save(tmp_path, segment.snapshot, segment.models, {})
        saved = checkpoint.read(tmp_path)
        resume = saved.snapshot
        counts.append(saved.about["clients"]["count"])
    assert records == there[0] and counts[0] == COHORT
    state = everyone(segment.snapshot.state)
    jax.tree.map(np.testing.assert_array_equal, there[1], state)


def test_auto_takes_the_host_where_rows_would_fill_half_of_the_memory(monkeypatch):
    even = {"w": jax.ShapeDtypeStruct((8, 25), np.float32)}  # 800 bytes
    odd = {"w": jax.ShapeDtypeStruct((9, 25), np.float32)}  # 900, twice on two devices
    assert rows.choose("auto", even, 1700, 2) == "device"
    assert rows.choose("auto", odd, 1700, 2) == "host"
    assert rows.choose("auto", odd, 1700, 1) == "host"
    assert rows.choose("host", {}, 1700, 2) == "device"  # nothing to keep
    monkeypatch.setattr(hardware, "host_memory", lambda: 1100)
    assert rows.choose("auto", odd, 1700, 2) == "disk"
    monkeypatch.setattr(hardware, "host_memory", lambda: 1200)
    assert rows.choose("auto", odd, 1700, 2) == "host"
    # 212 bytes: two rows.
    assert rows.most_rounds(even, 1, 1700) == 2
    assert rows.most_rounds(even, 3, 1700) == 1
