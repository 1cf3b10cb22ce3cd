"""The virtual clock: seconds by hand, late and absent clients, whatever the chunk."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.config.fields import Limits
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import Context
from sparsefl_jax.data import cohorts
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.simulation import clock, round_program
from sparsefl_jax.simulation.clock import Clock, Device, System
from sparsefl_jax.training import local
from sparsefl_jax.wire import arithmetic, charges, packets
from tests.simulation.simulate_test import PARTS, X, linear, step, two_clients
from tests.tiny import federation

FAST, SLOW = (1e3, 1e2, 50.0, 0.5), (10.0, 40.0, 10.0, 1.0)  # FLOP/s, bit/s, bit/s, s
DEVICES = Device(*np.array([FAST, SLOW], np.float32).T)


@pytest.mark.parametrize("index", packets.INDEXES)
def test_the_device_counts_the_bits_of_the_host(index):
    rng = np.random.default_rng(0)
    for share in (0.0, 0.3):
        mask = {"a": rng.random((3, 3, 8, 16)) < share, "b": rng.random(7) < share}
        ones = jax.tree.map(lambda m: m.astype(np.uint8), mask)
        bits = 1 if index == "entropy" else 8
        for fresh in (True, False):
            packet = packets.Packet(ones, mask, fresh, bits=bits, index=index)
            told = packets.layout({"p": packet}), packets.count({"p": packet})
            want = charges.message_bits(*told).total
            got = charges.message_bits(*told, arithmetic.DEVICE).total
            assert got.dtype == jnp.float32 and got == want


def test_bits_on_the_device_do_not_overflow():
    values, mask = (jax.ShapeDtypeStruct((2**29,), v) for v in (np.float32, bool))
    packet = packets.Packet(values, mask, index="coo")
    count = packets.Count(np.array([2**29], np.int32), np.True_, np.True_)
    bits = charges.packet_bits(packet, count, arithmetic.DEVICE).total
    assert float(bits) == pytest.approx(2**29 * (32 + 29) + 30, rel=1e-6)


def a_round(method, deadline, *, chunk=1, devices=1, x=X, ids=(0, 1)):
    """Runs a round of clients of one and three samples; returns state and log."""
    told = None if deadline is None else Clock(DEVICES, np.float32(deadline))
    place, ids = jax.devices()[:devices], np.array([ids], np.int32)
    how = {"clock": told, "x": x, "devices": place, "chunk": chunk}
    run, begun = two_clients(method, ids, jnp.eye(2, dtype=bool), **how)
    state, log = run(*begun, np.zeros(1, np.int32), ids)
    return jax.device_get((state, jax.tree.map(lambda v: v[0], log)))


def spdst():
    return sfl.spdst(linear(), local.make_optimizer(learning_rate=0.5))


def test_the_seconds_of_each_tier_by_hand():
    """Half of 4 weights live: 6 passes of 2 FLOPs a sample, 64 bits and 4 positions.

    The positions come down in round 0 and do not go up, as the server knows them.
    """
    state, log = a_round(spdst(), np.inf)
    flops, down, up = 12, 2 * 32 + 4, 2 * 32
    want = [
        samples * flops / rate + down / r_down + up / r_up + latency
        for samples, (rate, r_down, r_up, latency) in ((1, FAST), (3, SLOW))
    ]
    np.testing.assert_allclose(log.clients.time.seconds, want, rtol=1e-6)
    assert not log.clients.time.late.any()
    # A clock without a deadline changes no bit of the rest.
    plain = a_round(spdst(), None)
    log = log._replace(clients=log.clients._replace(time=()))
    jax.tree.map(np.testing.assert_array_equal, (state, log), plain)


def test_a_late_client_adds_nothing_and_is_charged():
    """The slow client is late: the model is the one that the fast one has trained."""
    method = sfl.fedavg(
        linear(),
        local.make_optimizer(learning_rate=0.5, momentum=0.9),
        keep_optimizer=True,
    )
    x = X.copy()
    x[PARTS[1]] = np.nan  # whatever it has computed
    state, log = a_round(method, 10.0, devices=2, x=x)
    assert log.clients.time.late.tolist() == [False, True]
    want = step(np.zeros((2, 2)), PARTS[0])
    np.testing.assert_allclose(state.server.params["kernel"], want, atol=1e-6)
    assert log.clients.up["delta"].entries.tolist() == [[4], [4]]
    assert state.last_round.tolist() == [0, 0]
    rows = jax.tree.leaves(state.clients)[0]
    assert np.isfinite(rows[0]).all() and np.isnan(rows[1]).all()  # as it left it


def test_a_round_without_an_uplink_in_time_leaves_the_server_as_it_was():
    """Not even the step count of the server's optimizer moves."""
    optimizer = local.make_optimizer(learning_rate=0.5)
    method = sfl.fedavg(linear(), optimizer, server_optimizer=optax.adam(0.1))
    for deadline, steps in ((0.0, 0), (10.0, 1)):
        state, log = a_round(method, deadline)
        assert log.clients.time.late.all() == (not steps)
        assert state.server.opt_state[0].count == steps
        assert state.last_round.tolist() == [0, 0]


def test_a_place_without_a_client_changes_nothing():
    """Such a place runs as the last client, whose samples are not numbers here."""
    x = X.copy()
    x[PARTS[1]] = np.nan
    state, log = a_round(spdst(), np.inf, chunk=2, x=x, ids=(2, 0))
    assert state.last_round.tolist() == [0, -1]
    want = step(np.zeros((2, 2)), PARTS[0]) * np.eye(2)
    np.testing.assert_allclose(state.server.model.params["kernel"], want, atol=1e-6)
    clients = round_program.without_empty_places(log, 2).clients
    assert clients.ids.tolist() == [0]
    assert np.isfinite(clients.metrics["loss"]).all()
    logged = jax.tree.leaves((clients.down, clients.up, clients.time))
    assert {len(v) for v in logged} == {1}


def presence(available):
    available = np.array(available, float)
    return clock.presence(System(None, available, np.zeros(len(available), int), ("",)))


def test_only_who_is_there_is_drawn(key):
    """Of 9 clients the even ones are there in even rounds, 3 in odd ones."""
    available = np.zeros((9, 2))
    available[::2, 0] = available[[1, 4, 5], 1] = 1
    ids = cohorts.make_draw(key, Stage(None, 6, 4), 9, presence(available))(
        np.arange(6)
    )
    assert all(set(drawn) < {0, 2, 4, 6, 8} for drawn in ids[::2].tolist())
    assert all(sorted(drawn) == [1, 4, 5, 9] for drawn in ids[1::2].tolist())
    assert len({tuple(drawn) for drawn in ids[::2].tolist()}) > 1


def test_tiers_of_budgets_are_drawn_from_who_is_there(key):
    present = presence([[1], [0], [1], [1], [0], [0], [1], [1]])
    sampler = cohorts.stratified_sampler([0.5] * 4 + [1.0] * 4, 6, present)
    draw = cohorts.make_draw(key, Stage(None, 3, 6, sampler=sampler), 8, present)
    for drawn in draw(np.arange(2)).tolist():
        assert sorted(drawn) == [0, 2, 3, 6, 7, 8]


def test_chances_are_met(key):
    present = presence(np.full((4000, 1), 0.25))
    share = np.mean([present(key, round) for round in range(5)])
    assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 20000)
    assert presence(np.ones((3, 1))) is None


def test_a_lost_upload_leaves_the_loss_to_compare_with(key):
    method = sfl.pqsu(
        sfl.testing.tiny_model(), sfl.training.make_optimizer(), density=0.5
    )
    ctx = Context(jnp.int32(1), jnp.int32(0), None)
    before, after = ({"loss": jnp.float32(v)} for v in (2.0, 1.0))
    assert method.drop_uplink(ctx, before, after)["loss"] == 2.0
    plain = sfl.fedavg(sfl.testing.tiny_model(), sfl.training.make_optimizer())
    assert plain.drop_uplink(ctx, before, after)["loss"] == 1.0


def test_a_quantile_of_dense_rounds_is_a_deadline():
    """Clients of 1 to 4 samples need 9, 15, 21 and 27 s: 6 FLOPs each, 2 x 64 bits."""
    device = Device(np.ones(4), np.full(4, 64.0), np.full(4, 64.0), np.ones(4))
    system = System(device, np.ones((4, 1)), np.zeros(4, int), ("all",), quantile=0.7)
    stage, sizes = Stage(None, 1, 2, epochs=1), np.arange(1, 5)
    told = clock.of_stage(system, stage, 6, sizes, weights=2)
    assert float(told.deadline) == pytest.approx(6 * 3 + 1 + 1 + 1, rel=1e-4)
    assert told.deadline > 21  # whoever needs just so long is in time
    alone = clock.of_stage(system, stage._replace(cohort_size=1), 6, sizes, 2)
    assert alone.deadline == np.inf  # a round of one has to wait for it
    assert clock.of_stage(None, stage, 6, sizes, 2) is None


def told(closing, **settings):
    """Runs six rounds on fast and slow devices; returns its inputs too."""
    given = [6] * 8, 64, 2, (6,), (4,)
    data, model, parts = federation(*given, learning_rate=0.1, momentum=0.9)
    method = sfl.fedavg(*parts, keep_optimizer=True)
    tier = np.arange(8) % 2
    device = Device(*np.array([(1e6, 1e5, 1e5, 0.0), (1e5, 1e4, 1e4, 0.5)])[tier].T)
    available = np.array([[1.0, 1, 0], [1.0, 0, 0]])[tier]
    system = closing and System(device, available, tier, ("fast", "slow"), **closing)
    stages, key = [Stage(method, 6, 5, batch_size=4)], jax.random.key(0)
    return sfl.segments(key, stages, model, data, system=system, **settings)


DEADLINE = {"deadline": 0.4}


@pytest.fixture(scope="module")
def whole():
    *_, last = segments = list(told(DEADLINE, eval_every=1))
    return last.snapshot, [r for one in segments for r in one.records]


def test_records_tell_hours_and_who_is_left_out(whole):
    train = [r for r in whole[1] if r["phase"] == "train"]
    total = 0.0
    for t, record in enumerate(train):
        clients, seconds = record["clients"], record["seconds_by_client"]
        slow = [c % 2 for c in clients]
        assert [s > 0.4 for s in seconds] == slow
        assert record["dropped"] == sum(slow)
        assert record["tiers"]["slow"] == {"drawn": sum(slow), "dropped": sum(slow)}
        assert record["tiers"]["fast"] == {"drawn": slow.count(0), "dropped": 0}
        total += (0.4 if any(slow) else max(seconds, default=0.0)) / 3600
        assert record["hours_cumulative"] == pytest.approx(total)
        assert record["bits_up"] == 32 * 38 * len(clients)  # 6 * 4 + 4 + 4 * 2 + 2
        if t % 3 == 1:
            assert not any(slow)  # they sleep
        assert (record["loss"] is None) == (not clients)
    assert [len(r["clients"]) for r in train] == [5, 4, 0, 5, 4, 0]
    evals = [r for r in whole[1] if r["phase"] == "eval"]
    assert set(evals[-1]["tier_accuracy"]) == {"fast", "slow"}
    assert evals[-1]["hours_cumulative"] == train[-1]["hours_cumulative"]


@pytest.mark.slow
def test_a_run_goes_on_bit_for_bit_with_its_hours(whole, tmp_path):
    for segment in told(DEADLINE, eval_every=1):
        if segment.snapshot.round == 3:
            break
    checkpoint.save(tmp_path, segment.snapshot, segment.models, {})
    saved = checkpoint.read(tmp_path).snapshot
    assert saved.hours == segment.snapshot.hours > 0
    rest = list(told(DEADLINE, eval_every=1, resume=saved))
    assert [r for one in rest for r in one.records] == whole[1][6:]
    jax.tree.map(np.testing.assert_array_equal, rest[-1].snapshot.state, whole[0].state)


@pytest.mark.slow
def test_hours_end_a_run_in_the_round_that_reaches_them(whole):
    train = [r for r in whole[1] if r["phase"] == "train"]
    until = Limits(hours=train[3]["hours_cumulative"])
    *_, last = segments = list(told(DEADLINE, eval_every=6, until=until))
    assert last.snapshot.ended_by == "hours" and last.snapshot.round == 4
    records = [r for one in segments for r in one.records]
    assert [r for r in records if r["phase"] == "train"] == train[:4]
    with pytest.raises(ValueError, match=r"until\.hours=1 has no effect here"):
        list(told(None, until=Limits(hours=1.0)))
