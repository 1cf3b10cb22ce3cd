"""A run ends in the round that reaches a limit, and is unchanged until then."""

import jax
import jax.numpy as jnp
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.config.fields import Limits
from sparsefl_jax.runs import checkpoint
from sparsefl_jax.simulation.rows import Store
from sparsefl_jax.wire.packets import Packet
from tests.reference.by_hand import same
from tests.simulation.store_test import everyone
from tests.tiny import federation

pytestmark = pytest.mark.slow

SIZES = (3, 9, 4, 6, 12, 5, 6)  # samples of the clients: an odd number of them
COHORT, ROUNDS, EXTRA = 3, 8, 10_000
MACS = 6 * 5 + 5 * 4


def dear_at_times(*parts):
    """FedAvg with momentum that stays, whose every fourth downlink holds more.

    Half of what goes up is under a mask, another one every round. Beside the network's
    a client has ten times as many FLOPs of its own.
    """
    method = sfl.fedavg(*parts, keep_optimizer=True)

    def broadcast(key, ctx, server):
        rare = Packet(jnp.zeros(EXTRA, jnp.float32), sent=ctx.round % 4 == 3)
        return method.broadcast(key, ctx, server) | {"rare": rare}

    def update(key, ctx, downlink, client, batches):
        downlink = {k: v for k, v in downlink.items() if k != "rare"}
        uplink, client, told = method.update(key, ctx, downlink, client, batches)
        extra = told["count"] * jnp.float32(10 * 6 * MACS)
        told |= {"work": told["work"]._replace(extra=extra)}

        def every_other(v):
            place = jnp.arange(v.size, dtype=jnp.int32).reshape(v.shape)
            return (place + ctx.round) % 2 == 0

        delta = uplink["delta"].values
        masked = Packet(delta, jax.tree.map(every_other, delta), index="bitmap")
        return uplink | {"delta": masked}, client, told

    return method.replace(broadcast=broadcast, update=update)


@pytest.fixture(scope="module")
def world():
    given = SIZES, sum(SIZES), 4, (2, 3, 1), (5,)
    data, model, parts = federation(*given, learning_rate=0.1, momentum=0.9)
    return data, model, sfl.Stage(dear_at_times(*parts), ROUNDS, COHORT, batch_size=4)


def run(world, key, every=ROUNDS, **settings):
    """Returns the segments of a run with NumPy states, as long as possible."""
    data, model, stage = world
    for segment in sfl.segments(
        key, [stage], model, data, eval_every=every, **settings
    ):
        state, _ = segment.snapshot.state, segment.models  # which are kept
        snapshot = segment.snapshot._replace(state=everyone(state))
        yield segment._replace(snapshot=snapshot)


def trained(told):
    return [r for one in told for r in one.records if r["phase"] == "train"]


@pytest.fixture(scope="module")
def each(world):
    """Returns the same run round by round."""
    return list(run(world, jax.random.key(0), every=1))


@pytest.mark.parametrize(
    "name, last, where",
    [("gbit", 7, "host"), ("pflop", 5, "device"), ("gbit", 5, "disk")],
)
def test_a_limit_ends_a_run_in_the_round_that_reaches_it(
    world, key, each, name, last, where
):
    limit = trained(each)[last - 1][f"{name}_cumulative"]
    until = Limits(**{name: limit})
    told = list(run(world, key, until=until, client_store=where))
    assert told[-1].snapshot.ended_by == name and told[-1].snapshot.round == last
    assert trained(told) == trained(each)[:last]
    assert [r["round"] for one in told for r in one.records][-2:] == [last, last]
    here, there = told[-1].snapshot, each[last - 1].snapshot
    same(here.state, there.state)
    assert (here.bits, here.flops) == (there.bits, there.flops)
    assert told[-1].records[-1]["models"] == each[last - 1].records[-1]["models"]


@pytest.mark.parametrize("where", ["host", "disk"])
def test_rows_of_clients_in_rounds_left_out_are_not_written(world, key, each, where):
    data, model, stage = world
    settings = {"client_store": where, "eval_every": ROUNDS - 1}
    written, scatter = [], Store.scatter
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "scatter", lambda *a: written.append(a) or scatter(*a))
        told = list(sfl.segments(key, [stage], model, data, **settings))
    assert [one.snapshot.round for one in told] == [ROUNDS - 1, ROUNDS]
    last = set(trained(each)[-1]["clients"])
    assert set(written[-1][1].tolist()) == last


def test_a_limit_that_is_never_reached_changes_no_bit(world, key, each):
    until = Limits(gbit=trained(each)[-1]["gbit_cumulative"] + 1e-6, pflop=1.0)
    told, free = (list(run(world, key, 4, **how)) for how in ({"until": until}, {}))
    assert [one.snapshot.round for one in free] == [4, 8]
    ends = [one.snapshot.round for one in told]
    assert {4, 8} < set(ends)  # shorter segments, but these are ends as they were
    records = [[r for one in run for r in one.records] for run in (told, free)]
    assert records[0] == records[1]
    for one in free:
        other = told[ends.index(one.snapshot.round)]
        kept, want = ((s.snapshot.state, s.models, s.mask) for s in (other, one))
        same(kept, want)
    assert told[-1].snapshot.ended_by == "rounds"


@pytest.mark.parametrize("last, ends", [(6, [4, 5, 6]), (8, [8])])
def test_a_run_goes_on_with_a_higher_limit_or_none(
    world, key, each, tmp_path, last, ends
):
    low, high = (Limits(gbit=trained(each)[r - 1]["gbit_cumulative"]) for r in (3, 6))
    data, model, stage = world
    how = {"eval_every": ROUNDS, "client_store": "disk"}
    *_, ended = sfl.segments(key, [stage], model, data, until=low, **how)
    assert ended.snapshot.ended_by == "gbit"
    checkpoint.save(tmp_path, ended.snapshot, ended.models, {})
    resume = checkpoint.read(tmp_path).snapshot._replace(ended_by="")
    until = high if last == 6 else Limits()
    told = list(run(world, key, until=until, resume=resume))
    assert [one.snapshot.round for one in told] == ends
    assert trained(told) == trained(each)[3:last]
    same(told[-1].snapshot.state, each[last - 1].snapshot.state)
