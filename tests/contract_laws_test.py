"""Every law of `contract` on something that breaks it."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fedavg, heterofl, nst
from sparsefl_jax.sparsity import masks, top_k
from sparsefl_jax.testing import laws as contract
from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.packets import Packet


@pytest.fixture(autouse=True)
def _quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# One way to break each law; the keys of BROKEN are the laws that must see it.


def types(whole):
    """The statistics come back in another dtype."""

    def aggregate(key, round, server, total):
        server, metrics = whole.aggregate(key, round, server, total)
        half = jax.tree.map(lambda v: v.astype(jnp.bfloat16), server.stats)
        return server._replace(stats=half), metrics

    return whole._replace(aggregate=aggregate)


def impure_start(whole):
    """A client starts from random numbers that are not the key's."""
    rng = np.random.default_rng(0)

    def init_client(key, server, info):
        return {"noise": jnp.float32(rng.normal()) + info.budget}

    return whole._replace(init_client=init_client)


def impure_update(whole):
    """Every trace trains with another factor."""
    traces = itertools.count(1)

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        factor = jnp.float32(next(traces))
        delta = jax.tree.map(lambda v: v * factor, uplink["delta"].values)
        return uplink | {"delta": Packet(delta)}, client, metrics

    return whole._replace(update=update)


def reads_padding(whole):
    """The delta depends on all rows of x, and on steps that are shared."""

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = whole.update(key, ctx, downlink, client, batches)
        mean = jnp.mean(batches.x) / batches.num_steps.astype(jnp.float32)
        delta = jax.tree.map(lambda v: v + mean, uplink["delta"].values)
        return uplink | {"delta": Packet(delta)}, client, metrics

    return whole._replace(update=update)


def leaky_packet(whole):
    """The delta claims to be masked, by a mask that moves and is never paid for."""

    def update(key, ctx, *args):
        uplink, client, metrics = whole.update(key, ctx, *args)
        delta = uplink["delta"].values
        mask = jax.tree.map(
            lambda v: jnp.arange(v.size).reshape(v.shape) % 2 == ctx.round % 2, delta
        )
        packet = Packet(delta, mask, fresh=False, index="bitmap")
        return uplink | {"delta": packet}, client, metrics

    return whole._replace(update=update)


def carrying(whole, name, extra, read=None):
    """A packet more goes up: `extra(delta, batches)`; `read(delta, packet)` uses it."""

    def update(key, ctx, downlink, client, batches):
        uplink, *rest = whole.update(key, ctx, downlink, client, batches)
        packet = extra(uplink["delta"].values, batches)
        return uplink | {name: packet}, *rest

    def contribute(ctx, uplink):
        delta = uplink["delta"].values
        delta = read(delta, uplink[name]) if read else delta
        return whole.contribute(ctx, {"delta": Packet(delta), "stats": uplink["stats"]})

    return whole._replace(update=update, contribute=contribute)


def wide_codes(whole):
    """Codes that do not fit the bits that are charged for them."""
    codes = Packet(jnp.full((3,), 99, jnp.int32), bits=4)
    return carrying(whole, "codes", lambda delta, batches: codes)


def signs(delta, **settings):
    """Zeros on a mask that is the sign of the delta."""
    mask = jax.tree.map(lambda v: v > 0, delta)
    return Packet(jax.tree.map(jnp.zeros_like, delta), mask, bits=0, **settings)


def unsent(whole):
    """The model goes down for nothing, and is read all the same."""

    def broadcast(*args):
        down = whole.broadcast(*args)
        return {n: replace(packet, sent=False) for n, packet in down.items()}

    return whole._replace(broadcast=broadcast)


def remembered(whole):
    """`contribute` reads what `update` kept for it outside of the message."""
    kept = {}

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        kept.update(uplink)
        return {}, client, metrics

    def contribute(ctx, uplink):
        del uplink
        return whole.contribute(ctx, kept)

    return whole._replace(update=update, contribute=contribute)


def unsent_mask(whole):
    """The mask of a packet that is not sent is read all the same."""

    def read(delta, packet):
        return jax.tree.map(lambda v, m: v + 0.01 * m, delta, packet.mask)

    unsent = {"sent": False, "index": "bitmap"}
    return carrying(whole, "signs", lambda delta, _: signs(delta, **unsent), read)


def free_labels(whole):
    """How many samples a client has of every class."""

    def counts(delta, batches):
        return Packet(jnp.bincount(batches.y, length=small_world.CLASSES), bits=0)

    return carrying(whole, "counts", counts)


def free_mask(whole):
    """A mask that nothing is charged for tells of what was trained."""
    return carrying(whole, "signs", lambda delta, batches: signs(delta, index="none"))


def free_top_k(whole):
    """The natural line of a top-k method, whose positions nobody pays for."""

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        delta = uplink["delta"].values
        magnitude = jax.tree.map(jnp.abs, delta)
        mask = top_k.largest_overall(magnitude, 20, masks.everything(delta))
        packet = Packet(masks.apply(delta, mask), mask, index="none")
        return uplink | {"delta": packet}, client, metrics

    return whole._replace(update=update)


def free_magnitudes(whole):
    """A free mask tells which features of a client's samples are large."""

    def large(delta, batches):
        mask = jnp.mean(jnp.abs(batches.x), 0) > 0.8
        return Packet(jnp.zeros(mask.shape), mask, bits=0, index="none")

    return carrying(whole, "features", large)


def turned_back(whole):
    """Two masks take turns, and are charged for only the first time."""

    def update(key, ctx, *args):
        uplink, client, metrics = whole.update(key, ctx, *args)
        delta = uplink["delta"].values
        mask = jax.tree.map(
            lambda v: jnp.arange(v.size).reshape(v.shape) % 2 == ctx.round % 2, delta
        )
        values, first = masks.apply(delta, mask), ctx.round < 2
        packet = Packet(values, mask, fresh=first, index="bitmap")
        return uplink | {"delta": packet}, client, metrics

    return whole._replace(update=update)


def charged_again(whole):
    """A mask that never changes is charged in every round, down and back up."""

    def fixed(packet):
        mask = jax.tree.map(lambda v: jnp.arange(v.size) % 2 < 1, packet.values)
        mask = jax.tree.map(lambda m, v: m.reshape(v.shape), mask, packet.values)
        return replace(
            packet, values=masks.apply(packet.values, mask), mask=mask, index="bitmap"
        )

    def broadcast(*args):
        down = whole.broadcast(*args)
        return down | {"params": fixed(down["params"])}

    return whole._replace(broadcast=broadcast)


def charged_back(whole):
    """A client is charged for sending back the very mask that it was sent."""
    down = charged_again(whole)

    def broadcast(key, ctx, server):
        message = down.broadcast(key, ctx, server)
        first = ctx.last_round < 0
        return message | {"params": replace(message["params"], fresh=first)}

    def update(key, ctx, downlink, client, batches):
        uplink, client, metrics = whole.update(key, ctx, downlink, client, batches)
        mask = downlink["params"].mask
        delta = masks.apply(uplink["delta"].values, mask)
        return uplink | {"delta": Packet(delta, mask, index="coo")}, client, metrics

    return whole._replace(broadcast=broadcast, update=update)


def free_of_charge(whole):
    """What was trained is called common knowledge."""

    def update(*args):
        uplink, client, metrics = whole.update(*args)
        free = {n: replace(packet, bits=0) for n, packet in uplink.items()}
        return free, client, metrics

    return whole._replace(update=update)


BROKEN = {
    "types": types,
    "start": impure_start,
    "chunks jit seeds": impure_update,
    "wire": unsent,
    "wire ": unsent_mask,
    "known": free_of_charge,
    "known ": free_labels,
    "known  ": free_mask,
    "known   ": free_top_k,
    "known    ": free_magnitudes,
    "fresh": charged_again,
    "fresh ": charged_back,
    "fresh  ": turned_back,
    "padding": reads_padding,
    "zeros fresh": leaky_packet,
    "bytes": wide_codes,
}


@pytest.mark.parametrize("laws", BROKEN)
def test_law_catches_a_broken_method(laws):
    def broken(model, optimizer):
        return BROKEN[laws](fedavg(model, optimizer))

    world = small_world.make_world(broken, {})
    for law in laws.split():
        with pytest.raises(contract.ContractError, match=f"law '{law}', broken: "):
            contract.LAWS[law](world)


ANSWERS = {  # by function: what it returns in place of its answer, and what is told
    "init": (lambda server: {"model": server, "n": 0}, "init['n'] is int"),
    "init_client": (lambda row: {"n": 0}, "init_client['n'] is int"),
    "broadcast": (lambda down: tuple(down.values()), "broadcast is tuple, expected"),
    "update": (lambda told: told[:2], "update returned 2 values, expected (uplink"),
    "update ": (
        lambda told: ({"delta": told[0]["delta"].values}, *told[1:]),
        "update: uplink['delta'] is dict, expected a dict[str, Packet]",
    ),
    "aggregate": (lambda told: told[0], "aggregate returned Server, expected (server,"),
    "deploy": (lambda models: models["global"], "deploy is SparseModel, expected"),
    "deploy ": (lambda models: {}, "deploy returned {}, expected a model"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_of_another_kind_is_named(name):
    change, told = ANSWERS[name]

    def odd(model, optimizer):
        whole = fedavg(model, optimizer)
        function = getattr(whole, name.strip())
        changed = {name.strip(): lambda *args: change(function(*args))}
        return whole._replace(**changed)

    with pytest.raises(contract.ContractError) as error:
        contract.check_algorithm(odd)
    assert f"law 'signature', odd: {told}" in str(error.value)


def test_what_one_function_keeps_for_another_is_named():
    def keeping(model, optimizer):
        return remembered(fedavg(model, optimizer))

    told = "keeping: a function uses what another one computed and did not return"
    with pytest.raises(contract.ContractError, match=told):
        contract.check_algorithm(keeping)


def test_numbers_from_aggregate_and_packets_not_sent_are_no_breach():
    """Neither is a packet for 0 bits that only tells of samples while not sent."""

    def fine(model, optimizer):
        whole = fedavg(model, optimizer)

        whole = carrying(
            whole, "total", lambda _, data: Packet(data.x[0], sent=False, bits=0)
        )

        def aggregate(*args):
            server, metrics = whole.aggregate(*args)
            return server, metrics | {"rate": 0.5}

        def update(*args):
            return list(whole.update(*args))

        return whole._replace(update=update, aggregate=aggregate)

    world = small_world.make_world(fine, {})
    for law in ("signature", "wire", "known"):
        contract.LAWS[law](world)


def test_an_assumption_stands_in_the_place_of_bits():
    """What a packet assumes to be free passes, and only with the word."""

    def assuming(model, optimizer):
        whole = fedavg(model, optimizer)
        said = {"index": "none", "assumed": "a table printed without positions"}
        return carrying(whole, "signs", lambda delta, batches: signs(delta, **said))

    contract.LAWS["known"](small_world.make_world(assuming, {}))


@pytest.mark.slow
def test_a_client_that_keeps_the_union_itself_is_not_charged_for_it():
    """NST where nothing is pruned: every mask is the one that came down."""
    world = small_world.make_world(nst, {"density": 1.0, "prune_rate": 0.0})
    contract.LAWS["fresh"](world)
    assert not any(log.up["weights"].fresh.any() for log in small_world.path(world)[1])


def test_label_sets_are_taken_as_known():
    """HeteroFL sends its label set; no law asks for it, as its docstring says."""

    def silent(model, optimizer):
        whole = heterofl(model, optimizer)

        def update(*args):
            uplink, client, metrics = whole.update(*args)
            del uplink["classes"]
            return uplink, client, metrics

        return whole._replace(update=update)

    contract.LAWS["known"](small_world.make_world(silent, {}))


@pytest.mark.slow
def test_laws_catch_a_broken_simulator():
    """Servers that look at who came first, at all rows, earlier calls, the segment."""
    world = small_world.make_world(fedavg, {"keep_optimizer": True})
    small_world.path(world)
    segment, calls = small_world.segment(world, 1, 1), itertools.count(1)

    def damaged(by):
        def run(key, population, state, rounds, ids, count):
            change = by(state, ids, count)
            state, log = segment(key, population, state, rounds, ids, count=count)
            moved = jax.tree.map(lambda v: v + change, state.server)
            return state._replace(server=moved), log

        return run

    damages = {
        "order": lambda state, ids, count: jnp.float32(ids[0, 0]),
        "resume": lambda state, ids, count: jnp.float32(next(calls)),
        "segments": lambda state, ids, count: jnp.float32(count - 1),
    }
    for law, by in damages.items():
        world.shared["segment", 1, 1] = damaged(by)
        with pytest.raises(contract.ContractError, match=f"law '{law}'"):
            contract.LAWS[law](world)
    chunked = small_world.segment(world, 2, 1)

    def gossip(key, population, state, rounds, ids, count):
        rows = jnp.sum(jax.tree.leaves(state.clients)[0])
        state, log = chunked(key, population, state, rounds, ids, count=count)
        server = jax.tree.map(lambda v: v + 0 * rows, state.server)
        return state._replace(server=server), log

    world.shared["segment", 2, 1] = gossip
    with pytest.raises(contract.ContractError, match="law 'bystanders'"):
        contract.LAWS["bystanders"](world)


def test_laws_are_all_broken_once():
    elsewhere = {"signature", "order", "resume", "segments", "bystanders"}
    assert set(" ".join(BROKEN).split()) | elsewhere == set(contract.LAWS)


def test_check_algorithm_names_law_method_and_leaf():
    def half_precise(model, optimizer):
        return types(fedavg(model, optimizer))

    with pytest.raises(AssertionError, match=r"'types', half_precise.*mean.*bfloat16"):
        contract.check_algorithm(half_precise)
