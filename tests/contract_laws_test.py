"""Checks that every law fails on a method that breaks it."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import pytest

from sparsefl_jax.algorithms import fedavg, nst, spdst
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import laws, message_laws, small_world
from sparsefl_jax.wire.packets import Packet
from tests.broken_methods import BROKEN, carrying, no_work, remembered, signs

ONCE = {names: change for change, names in reversed(BROKEN.items())}  # by default
del ONCE["fresh"], ONCE["chunks seeds"]  # another breaks it too; it compiles long


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, marks=[] if change in ONCE.values() else pytest.mark.slow)
        for change in BROKEN
    ],
    ids=lambda change: change.__name__,
)
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
    "init": (lambda server: {"model": server, "n": 0}, "init['n'] is int"),
    "init_client": (lambda row: {"n": 0}, "init_client['n'] is int"),
    "broadcast": (lambda down: tuple(down.values()), "broadcast is tuple, expected"),
    "update": (lambda answer: answer[:2], "update returned 2 values, expected (uplink"),
    "update ": (
        lambda answer: ({"delta": answer[0]["delta"].values}, *answer[1:]),
        "update: uplink['delta'] is dict, expected a dict[str, Packet]",
    ),
    "broadcast ": (
        lambda down: down | {"more": Packet({}, fresh=jnp.ones(9, bool))},
        "broadcast: fresh of packet 'more' is bool[9], expected one bool",
    ),
    "broadcast  ": (
        lambda down: down | {"more": Packet({}, sent=jnp.float32(0.5))},
        "broadcast: sent of packet 'more' is float32[], expected one bool",
    ),
    "broadcast   ": (
        lambda down: down | {"more": Laden({}, note=jnp.ones(9))},
        "broadcast['more'] is Laden, expected a dict[str, Packet]",
    ),
    "aggregate": (
        lambda answer: answer[0],
        "aggregate returned Server, expected (server,",
    ),
    "deploy": (lambda models: models["global"], "deploy is SparseModel, expected"),
    "deploy ": (lambda models: {}, "deploy returned {}, expected a model"),
    "undelivered": (
        lambda row: {"loss": jnp.float32(0)},
        "undelivered returned {'loss': ShapeDtypeStruct(shape=(), dtype=float32)",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_of_another_kind_is_named(name):
    change, said = ANSWERS[name]

    def odd(model, optimizer):
        whole = fedavg(model, optimizer)
        function = getattr(whole, name.strip())
        changed = {name.strip(): lambda *args: change(function(*args))}
        return whole._replace(**changed)

    with pytest.raises(laws.ContractError) as error:
        laws.check_algorithm(odd)
    assert f"law 'signature', odd: {said}" in str(error.value)


def test_what_one_function_keeps_for_another_is_named():
    def keeping(model, optimizer):
        return remembered(fedavg(model, optimizer))

    said = "keeping: a function uses what another one computed and did not return"
    with pytest.raises(laws.ContractError, match=said):
        laws.check_algorithm(keeping)


@pytest.mark.parametrize(
    "law",
    [
        "signature",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("wire", "known")),
    ],
)
def test_numbers_from_aggregate_and_packets_not_sent_are_no_breach(law):
    """Nor is a packet for 0 bits that holds samples but is not sent."""

    def fine(model, optimizer):
        whole = fedavg(model, optimizer)

        whole = carrying(
            whole, "total", lambda _, data, *__: Packet(data.x[0], sent=False, bits=0)
        )

        def aggregate(*args):
            server, metrics = whole.aggregate(*args)
            return server, metrics | {"rate": 0.5}

        def update(*args):
            return list(whole.update(*args))

        return whole._replace(update=update, aggregate=aggregate)

    laws.LAWS[law](small_world.make_world(fine, {}))


@pytest.mark.slow
def test_training_as_in_an_evaluation_is_work_too():
    def unseen(model, optimizer):
        def apply(params, stats, x, *, train, weight=None, key=None):
            return model.apply(params, stats, x, train=False)

        return no_work(fedavg(model._replace(apply=apply), optimizer))

    # 9 samples in batches of 4, of which padding is none
    said = "client 3 in round 0: work.forward.*kernel.* is 0, and the network ran 9"
    with pytest.raises(laws.ContractError, match=said):
        laws.LAWS["work"](small_world.make_world(unseen, {}))


@pytest.mark.slow
def test_a_pass_that_is_computed_again_for_its_gradient_counts_once():
    def recomputing(model, optimizer):
        def apply(params, stats, x, **options):
            forward = functools.partial(model.apply, **options)
            return jax.checkpoint(forward)(params, stats, x)

        return fedavg(model._replace(apply=apply), optimizer)

    laws.LAWS["work"](small_world.make_world(recomputing, {}))


@pytest.mark.slow
def test_an_assumption_stands_in_the_place_of_bits():
    """Free positions pass where the packet gives a reason, and only there."""

    def assuming(model, optimizer):
        whole = fedavg(model, optimizer)
        free = {"index": "none", "assumed": "a table printed without positions"}
        return carrying(whole, "signs", lambda delta, *_: signs(delta, **free))

    laws.LAWS["known"](small_world.make_world(assuming, {}))


@pytest.mark.slow
def test_a_mask_that_follows_from_the_downlink_is_free():
    """Clients send the change of those weights that came down above 0."""

    def answering(model, optimizer):
        whole = fedavg(model, optimizer)

        def update(key, ctx, downlink, *args):
            uplink, *rest = whole.update(key, ctx, downlink, *args)
            mask = jax.tree.map(lambda w: w > 0, downlink["params"].values)
            values = masks.apply(uplink["delta"].values, mask)
            return uplink | {"delta": Packet(values, mask, index="none")}, *rest

        return whole._replace(update=update)

    laws.LAWS["known"](small_world.make_world(answering, {}))


def test_what_is_taken_on_trust_is_named():
    """The reason of a packet, and two bits of each leaf's arithmetic code."""

    def trusting(model, optimizer):
        whole = spdst(model, optimizer, index="packed")
        why = {"bits": 0, "assumed": "a table printed without it"}

        def broadcast(*args):
            return whole.broadcast(*args) | {"more": Packet(jnp.zeros(3), **why)}

        return whole._replace(broadcast=broadcast)

    world = small_world.make_world(trusting, {})
    facts, _, *lines = message_laws.trusted(world)
    assert "set of its labels" in facts and lines == [
        "down/more is free in part: a table printed without it",
        "down/weights is charged up to 4 bits less than its code takes",
    ]


@pytest.mark.slow
def test_a_client_that_keeps_the_union_itself_is_not_charged_for_it():
    """NST that prunes nothing: every mask that goes up is the one that came down."""
    world = small_world.make_world(nst, {"density": 1.0, "prune_rate": 0.0})
    laws.LAWS["fresh"](world)
    assert not any(log.up["weights"].fresh.any() for log in small_world.path(world)[1])


@pytest.mark.slow
def test_laws_catch_a_broken_simulator():
    """Servers that depend on the order, all rows, earlier calls or the segment.

    They do so where a call ends in round 2 or later, and there a log counts too much.
    """
    world = small_world.make_world(fedavg, {"keep_optimizer": True})
    small_world.path(world)
    segment, calls = small_world.segment(world, 1, 1), itertools.count(1)

    def damaged(by):
        def run(key, population, state, rounds, ids, count):
            change = by(state, ids, count) * (rounds[-1] > 1)
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
        with pytest.raises(laws.ContractError, match=f"law '{law}'"):
            laws.LAWS[law](world)
    chunked = small_world.segment(world, 2, 2)

    def gossip(key, population, state, rounds, ids, count):
        rows = jnp.sum(jax.tree.leaves(state.clients)[0])
        state, log = chunked(key, population, state, rounds, ids, count=count)
        none = jnp.where(rounds[-1] > 1, 0 * rows, 0.0)
        server = jax.tree.map(lambda v: v + none, state.server)
        return state._replace(server=server), log

    world.shared["segment", 2, 2] = gossip
    with pytest.raises(laws.ContractError, match="law 'bystanders'"):
        laws.LAWS["bystanders"](world)
    counts = small_world.path(world)[1][2].up
    delta = counts["delta"]
    counts["delta"] = delta._replace(entries=delta.entries + 1)
    with pytest.raises(laws.ContractError, match=r"law 'bytes'.*log.up of round 2"):
        laws.LAWS["bytes"](world)


def test_laws_are_all_broken_once():
    elsewhere = {"signature", "order", "resume", "segments", "bystanders", "bytes"}
    assert set(" ".join(BROKEN.values()).split()) | elsewhere == set(laws.LAWS)


def test_check_algorithm_says_what_holds_unless_told_not_to(monkeypatch, capsys):
    def law_one(world):
        """Checks that one holds."""

    monkeypatch.setattr(laws, "LAWS", {"one": law_one})
    monkeypatch.setattr(message_laws, "masks_stand", lambda world: True)
    monkeypatch.setattr(message_laws, "trusted", lambda world: ["a packet is free"])
    with pytest.raises(ValueError, match="num_rounds=3"):
        laws.check_algorithm(nst, num_rounds=3, density=0.5)
    laws.check_algorithm(nst, num_rounds=6, density=0.5)
    printed = capsys.readouterr()
    told = "one holds", "on trust: a packet is free", "masks did not change in 6 rounds"
    assert printed.out == "" and all(words in printed.err for words in told)
    laws.check_algorithm(nst, progress=False, density=0.5)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(message_laws, "masks_stand", lambda world: False)
    laws.check_algorithm(nst, density=0.5)
    assert "masks did not" not in capsys.readouterr().err


def late(model, optimizer, *, first=0):
    """FedAvg on a mask that turns around in round `first`, and is not paid for."""
    whole = spdst(model, optimizer)

    def broadcast(key, ctx, server):
        down = whole.broadcast(key, ctx, server)
        packet, turned = down["weights"], ctx.round >= first
        mask = jax.tree.map(lambda m: m ^ (turned & (m.ndim > 1)), packet.mask)
        return down | {"weights": dataclasses.replace(packet, mask=mask)}

    return whole._replace(broadcast=broadcast)


@pytest.mark.slow
def test_a_mask_that_moves_late_is_seen_in_a_longer_world():
    short, long = (
        small_world.make_world(late, {"first": 5}, num_rounds=n) for n in (4, 6)
    )
    laws.LAWS["fresh"](short)
    with pytest.raises(laws.ContractError, match="round 5 has a new mask"):
        laws.LAWS["fresh"](long)
    assert message_laws.masks_stand(short) and not message_laws.masks_stand(long)
    assert not message_laws.masks_stand(small_world.make_world(fedavg, {}))  # dense
