"""Checks that every law fails on a method that breaks it."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsefl_jax as sfl
from sparsefl_jax.algorithms import fedavg, nst, spdst
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import laws, small_world
from sparsefl_jax.wire.packets import Packet, settle_flags
from tests.broken_methods import (
    BROKEN,
    carrying,
    charged_always,
    lazy_delta,
    momentum_begun_anew,
    signs,
)
from tests.networks import mostly_slow

ONCE = {names: change for change, names in reversed(BROKEN.items())}  # by default
del ONCE["fresh"], ONCE["chunks seeds"]  # another breaks it too; it compiles long
ONCE["late, as to optimizers"] = momentum_begun_anew


@mostly_slow(BROKEN, [*ONCE.values()], "change")
def test_law_catches_a_broken_method(change):
    def broken(model, optimizer):
        return change(fedavg(model, optimizer))

    world = small_world.make_world(broken, {})
    for law in BROKEN[change].split():
        with pytest.raises(laws.ContractError, match=f"law '{law}', broken: "):
            laws.LAWS[law](world)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Laden(Packet):
    """A packet with an array that no code writes."""

    note: jax.Array = dataclasses.field(kw_only=True)


ANSWERS = {  # by function: what it returns instead, and what the error says
    "init": (lambda server: {"name": "mine"}, "init fails with TypeError: "),
    "broadcast": (
        lambda down: tuple(down.values()),
        "broadcast: message is tuple, expected a dict",
    ),
    "update": (
        lambda answer: answer[:2],
        "update returned (dict, EmptyState), expected (uplink",
    ),
    "update ": (
        lambda answer: ({"delta": answer[0]["delta"].values}, *answer[1:]),
        "update: uplink: 'delta' is dict, expected a Packet",
    ),
    "broadcast ": (
        lambda down: down | {"more": Packet({}, fresh=jnp.ones(9, bool))},
        "broadcast: fresh of packet 'more' is bool[9], expected one bool",
    ),
    "broadcast  ": (
        lambda down: down | {"more": Laden({}, note=jnp.ones(9))},
        "broadcast: 'more' is Laden, expected a Packet",
    ),
    "deploy": (lambda models: {}, "deploy returned [], expected a dict of Spar"),
    "drop_uplink": (
        lambda row: {"loss": jnp.float32(0)},
        "drop_uplink returned {'loss': ShapeDtypeStruct(shape=(), dtype=float32)",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_of_another_kind_is_named(name):
    change, said = ANSWERS[name]

    def odd(model, optimizer):
        whole = fedavg(model, optimizer)
        function = getattr(whole, name.strip())
        changed = {name.strip(): lambda *args: change(function(*args))}
        return whole.replace(**changed)

    with pytest.raises(laws.ContractError) as error:
        laws.check_algorithm(odd)
    assert f"law 'signature', odd: {said}" in str(error.value)


def twice(whole, choose):
    """Trains twice in odd rounds, as `choose` has it, and counts both."""

    def update(key, ctx, downlink, *args):
        up, client, metrics = whole.update(key, ctx, downlink, *args)
        up = settle_flags(up)

        def both():
            old, first = downlink["params"].values, up["delta"].values
            moved = {"params": Packet(jax.tree.map(jnp.add, old, first))}
            more, _, further = whole.update(key, ctx, up | moved, *args)
            return settle_flags(more), client, jax.tree.map(jnp.add, metrics, further)

        return choose(ctx.round % 2 == 1, both, lambda: (up, client, metrics))

    return whole.replace(update=update)


def left_out(whole):
    """Trains twice in odd rounds alone."""
    return twice(whole, jax.lax.cond)


def ten_passes(model, optimizer):
    """Trains on the mean of ten passes, each with another key."""

    def apply(params, stats, x, *, train, weight=None, key=None):
        keys, options = jax.random.split(key, 10), {"train": train, "weight": weight}
        passes = (model.apply(params, stats, x, key=k, **options) for k in keys)
        return jax.tree.map(lambda *v: sum(v) / 10, *passes)

    return fedavg(model._replace(apply=apply), optimizer)


def thrown_away(model, optimizer):
    """Trains twice in all rounds, and takes the second result in odd ones."""

    def pick(use, both, once):
        return jax.tree.map(functools.partial(jnp.where, use), both(), once())

    return twice(fedavg(model, optimizer), pick)


def along_a_line(model, optimizer):
    """Takes a derivative on its first batch besides, and counts that batch once."""
    whole = fedavg(model, optimizer)

    def update(key, ctx, downlink, client, batches):
        params, stats = downlink["params"].values, downlink["stats"].values
        uplink, client, metrics = whole.update(key, ctx, downlink, client, batches)
        x, first = batches.x[batches.order[0, 0]], jnp.sum(batches.weight[0, 0])

        def logits(params):
            return model.apply(params, stats, x, train=False)

        _, (slope, _) = jax.jvp(logits, (params,), (params,))
        delta = jax.tree.map(lambda v: v + jnp.sum(slope), uplink["delta"].values)
        work = jax.tree.map(lambda v: v + first, metrics["work"])
        return uplink | {"delta": Packet(delta)}, client, metrics | {"work": work}

    return whole.replace(update=update)


def answering(whole):
    """Sends the change of those weights that came down above 0, and no positions."""

    def update(key, ctx, downlink, *args):
        uplink, *rest = whole.update(key, ctx, downlink, *args)
        mask = jax.tree.map(lambda w: w > 0, downlink["params"].values)
        values = masks.apply(uplink["delta"].values, mask)
        return uplink | {"delta": Packet(values, mask, index="none")}, *rest

    return whole.replace(update=update)


def unsent(whole):
    """Holds samples in a packet for 0 bits that is not sent."""
    held = {"sent": False, "bits": 0}
    return carrying(whole, "total", lambda _, data, *__: Packet(data.x[0], **held))


def assuming(whole):
    """Sends positions for nothing, and says why that may be."""
    free = {"index": "none", "assumed": "a table printed without positions"}
    return carrying(whole, "signs", lambda delta, *_: signs(delta, **free))


HONEST = {
    charged_always: "fresh",
    lazy_delta: "wire known",
    answering: "known",
    assuming: "known",
    unsent: "signature wire known",
    left_out: "work",
}


@mostly_slow(HONEST, [charged_always, lazy_delta], "change")
def test_an_honest_method_passes(change):
    def honest(model, optimizer):
        return change(fedavg(model, optimizer))

    world = small_world.make_world(honest, {})
    for law in HONEST[change].split():
        laws.LAWS[law](world)


@pytest.mark.parametrize(
    "method, said",
    [
        pytest.param(
            thrown_away, "unless `lax.cond` leaves it out", marks=pytest.mark.slow
        ),
        # client 3 has 9 samples in batches of 4
        (ten_passes, "client 3 in round 0: work.forward.* is 9, .* ran 90;"),
        (along_a_line, "client 3 in round 0: work.forward.* is 13, .* ran 17;"),
    ],
)
def test_every_pass_that_a_program_runs_is_work(method, said):
    with pytest.raises(laws.ContractError, match=said):
        laws.LAWS["work"](small_world.make_world(method, {}))


@pytest.mark.slow
def test_a_pass_that_is_computed_again_for_its_gradient_counts_once():
    def recomputing(model, optimizer):
        def apply(params, stats, x, **options):
            forward = functools.partial(model.apply, **options)
            return jax.checkpoint(forward)(params, stats, x)

        return fedavg(model._replace(apply=apply), optimizer)

    laws.LAWS["work"](small_world.make_world(recomputing, {}))


def images(sizes=(9, 40, 3, 27, 11, 5)):
    """Returns grey images of 4 x 20 pixels, of which client i has sizes[i]."""
    rng, parts = (
        np.random.default_rng(0),
        np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]),
    )
    x = rng.integers(256, size=(sum(sizes), 4, 20, 1)).astype(np.uint8)
    y = rng.integers(3, size=sum(sizes))
    return sfl.data.from_arrays(
        x, y, x_test=x[:9], y_test=y[:9], partition=parts, test_split="pooled"
    )


def flat_model(data, widths=()):
    """Returns one layer of 80 x 3 weights on images, or more layers."""
    model = sfl.models.build("mlp", data.num_classes, data.x.shape[1:], widths=widths)
    return model.with_preprocess(sfl.data.make_preprocess(data.mean, data.std))


def large_for_nothing(model, optimizer):
    """Sends the signs of the change of kernels above 128 weights for nothing."""
    whole = fedavg(model, optimizer)

    def update(*args):
        uplink, *rest = whole.update(*args)
        large = [v for v in jax.tree.leaves(uplink["delta"].values) if v.size > 128]
        signs = [jnp.sign(v) for v in large]
        return uplink | {"signs": Packet(signs, bits=0)}, *rest

    return whole.replace(update=update)


def test_a_method_that_cheats_on_large_layers_is_seen_on_such_a_network():
    data = images()
    laws.LAWS["known"](small_world.make_world(large_for_nothing, {}))
    own = small_world.make_world(
        large_for_nothing, {}, model=flat_model(data), data=data
    )
    with pytest.raises(laws.ContractError, match="'signs'.* values of 0 bits"):
        laws.LAWS["known"](own)


def test_a_world_of_own_clients():
    """It leaves out one of six, and the others stand as large as those of its own."""
    data = images()
    model = flat_model(data)
    world = small_world.make_world(fedavg, {}, model=model, data=data)
    assert world.population.info.num_examples.tolist() == [9, 3, 40, 11, 5]
    x, rows = world.population.x, world.population.index[1, :3]
    np.testing.assert_array_equal(x[rows], data.x[49:52])
    turned = small_world.population_of(world, "turned")
    assert turned.x.dtype == np.uint8 and (turned.x != x).mean() > 0.9
    for index, size in zip(world.population.index, (9, 3, 40, 11, 5), strict=True):
        own, other = (set(p.y[index[:size]]) for p in (world.population, turned))
        assert other == own
    with pytest.raises(ValueError, match="data=None, expected both model and data"):
        small_world.make_world(fedavg, {}, model=model)
    with pytest.raises(ValueError, match="num_rounds=3"):
        small_world.make_world(fedavg, {}, num_rounds=3)
    with pytest.raises(ValueError, match="number of clients in data=3, expected at"):
        few = images((3, 4, 5))
        small_world.make_world(fedavg, {}, model=model, data=few)


@pytest.mark.slow
@pytest.mark.parametrize("method", [fedavg, spdst])
def test_all_laws_hold_on_images(method):
    data = images()
    laws.check_algorithm(method, model=flat_model(data), data=data)


@pytest.mark.slow
def test_a_client_that_keeps_the_union_itself_is_not_charged_for_it():
    """NST that prunes nothing: every mask that goes up is the one that came down."""
    world = small_world.make_world(nst, {"density": 1.0, "prune_rate": 0.0})
    laws.LAWS["fresh"](world)
    assert not any(
        log.clients.up["weights"].fresh.any() for log in small_world.path(world)[1]
    )


@pytest.mark.slow
def test_laws_catch_a_broken_simulator():
    """Servers that depend on the order, all rows, earlier calls or the segment.

    They do so where a call ends in round 2 or later, and there a log counts too much.
    """
    world = small_world.make_world(fedavg, {"keep_optimizer": True})
    small_world.path(world)
    segment, calls = small_world.segment(world, False), itertools.count(1)

    def damaged(by):
        def run(key, population, state, rounds, ids, count, rates):
            change = by(state, ids, count) * (rounds[-1] > 1)
            given = key, population, state, rounds, ids, None, count, rates
            state, log = segment(*given)
            moved = jax.tree.map(lambda v: v + change, state.server)
            return state._replace(server=moved), log

        return run

    damages = {
        "order": lambda state, ids, count: jnp.float32(ids[0, 0]),
        "resume": lambda state, ids, count: jnp.float32(next(calls)),
        "segments": lambda state, ids, count: jnp.float32(count - 1),
    }
    for law, by in damages.items():
        world.shared["segment", False] = damaged(by)
        with pytest.raises(laws.ContractError, match=f"law '{law}'"):
            laws.LAWS[law](world)
    chunked = small_world.segment(world, True)

    def gossip(key, population, state, rounds, ids, count, rates):
        rows = jnp.sum(jax.tree.leaves(state.clients)[0])
        given = key, population, state, rounds, ids, None, count, rates
        state, log = chunked(*given)
        none = jnp.where(rounds[-1] > 1, 0 * rows, 0.0)
        server = jax.tree.map(lambda v: v + none, state.server)
        return state._replace(server=server), log

    world.shared["segment", True] = gossip
    with pytest.raises(laws.ContractError, match="law 'bystanders'"):
        laws.LAWS["bystanders"](world)
    counts = small_world.path(world)[1][2].clients.up
    delta = counts["delta"]
    counts["delta"] = delta._replace(entries=delta.entries + 1)
    with pytest.raises(
        laws.ContractError, match=r"law 'bytes'.*log.clients.up of round 2"
    ):
        laws.LAWS["bytes"](world)


def test_laws_are_all_broken_once():
    elsewhere = {"signature", "order", "resume", "segments", "bystanders", "bytes"}
    assert set(" ".join(BROKEN.values()).split()) | elsewhere == set(laws.LAWS)


def late(model, optimizer, *, first=0):
    """FedAvg on a mask that turns around in round `first`, and is not paid for."""
    whole = spdst(model, optimizer)

    def broadcast(key, ctx, server):
        down = whole.broadcast(key, ctx, server)
        packet, turned = down["weights"], ctx.round >= first
        mask = jax.tree.map(lambda m: m ^ (turned & (m.ndim > 1)), packet.mask)
        return down | {"weights": dataclasses.replace(packet, mask=mask)}

    return whole.replace(broadcast=broadcast)


@pytest.mark.slow
def test_a_mask_that_moves_late_is_seen_in_a_longer_world():
    short, long = (
        small_world.make_world(late, {"first": 5}, num_rounds=n) for n in (4, 6)
    )
    laws.LAWS["fresh"](short)
    with pytest.raises(laws.ContractError, match="round 5 has a new mask"):
        laws.LAWS["fresh"](long)
