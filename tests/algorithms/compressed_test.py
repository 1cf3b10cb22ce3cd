"""Compressed FedAvg: small rounds by hand, memories, and what a client replays.

The clients' training is replaced by updates that a test gives.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import compressed
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.testing import small_world
from sparsefl_jax.training import local
from sparsefl_jax.wire import compressors
from sparsefl_jax.wire.packets import Packet
from tests.algorithms import rounds
from tests.reference.averaging_by_hand import flat
from tests.reference.by_hand import bits
from tests.reference.regrowth_by_hand import best
from tests.refusals import refused

SIZES = (1, 3, 2)
PARAMS = {"a": np.zeros((2, 3), np.float32), "b": np.ones(5, np.float32)}
RNG = np.random.default_rng(0)
ROUNDS = 6
DELTAS = [  # [round][client]
    [
        {k: np.float32(RNG.normal(size=v.shape)) for k, v in PARAMS.items()}
        for _ in SIZES
    ]
    for _ in range(ROUNDS)
]
ALL = [(0, 1, 2)] * ROUNDS
OPTIMIZER = local.make_optimizer()
MODEL = small_world.tiny_model()._replace(init=lambda key: (PARAMS, {}))


pytestmark = pytest.mark.usefixtures("given_updates")


def play(method, cohorts=ALL, sizes=SIZES, lost=()):
    """Yields (server before, clients, downlinks, uplinks, server) of each round."""
    starts = [SparseModel(jax.tree.map(jnp.asarray, PARAMS), None, {})] * 3
    how = {"sizes": sizes, "lost": lost}
    data = lambda round, i: (DELTAS[round][i], {})  # noqa: E731
    for *told, _ in rounds.play(method, starts, data, cohorts, **how):
        yield told


def make(**given):
    return compressed(MODEL, OPTIMIZER, **given)


def shapes(**given):
    """Returns what `play` yields of a first round, without running it."""
    return jax.eval_shape(lambda: next(play(make(**given))))


# --- Compressors of vectors; a tree is the vector of all entries, float64.


def vector(tree):
    """Returns all entries of a tree, in its order."""
    return np.float64(flat(tree))


def top(density):
    """Returns top-k over all entries."""
    return lambda x, sizes: np.where(largest(x, density), x, 0)


def ternary(density):
    """Returns STC of each leaf."""

    def one(x):
        kept = largest(x, density)
        return np.where(kept, np.abs(x[kept]).mean() * np.sign(x), 0)

    def code(x, sizes):
        return np.concatenate([one(v) for v in np.split(x, np.cumsum(sizes)[:-1])])

    return code


def few(density, bits):
    """Returns top-k over all entries, in 2^(bits - 1) magnitudes of each leaf."""

    def one(x):
        size = np.abs(x[x != 0])
        if not size.size:
            return x
        grid = np.linspace(size.min(), size.max(), 2 ** (bits - 1))
        nearest = grid[np.abs(np.abs(x)[:, None] - grid).argmin(1)]
        return np.sign(x) * nearest

    def code(x, sizes):
        kept = np.split(top(density)(x, sizes), np.cumsum(sizes)[:-1])
        return np.concatenate([one(v) for v in kept])

    return code


def largest(x, density):
    """Returns where the k largest are, of equal ones the first, and none are zeros."""
    return best(np.abs(x), int(np.ceil(density * x.size)), x != 0)


def close(tree, want, atol=2e-6):
    np.testing.assert_allclose(vector(tree), want, rtol=0, atol=atol)


# --- Rounds


START = vector(PARAMS)
LEAVES = (6, 5)


def vectors(trees):
    return np.stack([vector(tree) for tree in trees])


def mean(updates, weights=SIZES):
    return np.average(updates, axis=0, weights=weights)


def test_error_feedback_by_hand():
    method, code = make(up="topk", density=0.3), top(0.3)
    residual, rounds = np.zeros((3, 11)), play(method, ALL[:2])
    for deltas, (before, clients, _, _, server) in zip(DELTAS, rounds, strict=False):
        pending = vectors(deltas) + residual
        sent = np.stack([code(p, LEAVES) for p in pending])
        residual = pending - sent
        for client, e in zip(clients, residual, strict=True):
            close(client.memory, e)
        close(server.params, vector(before.params) + mean(sent))


def test_random_k_by_hand():
    _, clients, downs, ups, server = next(play(make(up="randomk", density=0.3)))
    seeds = {int(down["seed"].values) for down in downs.values()}
    masks = vectors(up["delta"].mask for up in ups.values())
    assert len(seeds) == 1 and masks.sum(1).tolist() == [4, 4, 4]  # of 11
    assert (masks == masks[0]).all()
    kept = masks * vectors(DELTAS[0])
    close(server.params, START + mean(kept))
    close(clients[1].memory, vector(DELTAS[0][1]) - kept[1])
    assert int(server.seed) not in seeds
    method = make(up="randomk", density=0.3, feedback="none")
    *_, ups, server = next(play(method))
    kept = vectors(up["delta"].values for up in ups.values())
    close(server.params, START + 11 / 4 * mean(kept), atol=1e-5)


def test_an_index_is_read_by_the_way_that_knows_it():
    *_, ups, server = shapes(up="qsgd", down="stc", index="coo")
    both = ups[0]["delta"], server.step.message["delta"]
    assert tuple(packet.index for packet in both) == ("none", "coo")


def test_qsgd_keeps_a_residual_on_request_alone():
    """That of 4 bits and more than 49 entries a norm would grow without bound."""
    for given, kept in (({}, 0), ({"feedback": "ef"}, len(LEAVES))):
        _, clients, *_ = shapes(up="qsgd", **given)
        assert len(jax.tree.leaves(clients[0].memory)) == kept


def test_majority_by_hand():
    method = make(up="majority", server_optimizer=optax.sgd(0.1))
    _, clients, _, ups, server = next(play(method, sizes=(1, 5, 1)))
    assert not jax.tree.leaves(clients[0].memory)
    votes = np.where(vectors(DELTAS[0]) >= 0, 1, -1)  # samples do not count
    close(server.params, START + 0.1 * np.sign(votes.sum(0)))  # of three
    assert ups[0]["delta"].bits == 1 and set(ups[0]) == {"delta", "stats"}


@pytest.mark.parametrize("start", ["zero", "gradient"])
def test_ef21_by_hand_and_the_server_holds_the_mean_of_the_estimates(start):
    """The first gradient travels whole."""
    given = {"feedback": "ef21", "clients": 3, "start": start}
    method = make(up="stc", density=0.3, **given)
    cohorts, held = [(0, 2), (1, 2), (0, 1)], np.zeros((3, 11))
    begun = set() if start == "gradient" else {0, 1, 2}
    played = play(method, cohorts)
    for deltas, cohort, one in zip(DELTAS, cohorts, played, strict=False):
        before, clients, _, ups, server = one
        for i in cohort:
            new, names = vector(deltas[i]), {"whole"}
            if i in begun:
                new = held[i] + ternary(0.3)(new - held[i], LEAVES)
                names = {"delta", "scale"}
            sent = {name for name, packet in ups[i].items() if packet.sent}
            assert sent == {"stats", *names}
            if start == "gradient":
                assert (ups[i]["whole"].bits, ups[i]["whole"].mask) == (32, None)
            held[i] = new
            close(clients[i].memory, held[i])
        begun |= set(cohort)
        close(server.estimate, held.mean(0))
        close(server.params, vector(before.params) + held.mean(0))


@pytest.mark.parametrize(
    ("name", "given", "code"),
    [("stc", {}, ternary(0.3)), ("topk", {"bits": 3}, few(0.3, 3))],
)
def test_feedback_both_ways_by_hand(name, given, code):
    """Steps of few bits have 17 binary digits, of which 2^-17 = 8e-6 is the last."""
    method = make(up=name, down=name, density=0.3, **given)
    residual, wait, atol = np.zeros((3, 11)), 0.0, 2e-5
    rounds = play(method, ALL[:3])
    for deltas, (before, clients, downs, _, server) in zip(
        DELTAS, rounds, strict=False
    ):
        close(downs[0]["params"].values, vector(before.params), atol=0)
        pending = vectors(deltas) + residual
        sent = np.stack([code(p, LEAVES) for p in pending])
        residual = pending - sent
        wait = wait + mean(sent)
        move = code(wait, LEAVES)
        wait = wait - move
        close(server.params, vector(before.params) + move, atol)
        close(server.step.residual, wait, atol)
        for client, e in zip(clients, residual, strict=True):
            close(client.memory, e, atol)


def test_the_bits_of_few_bits_both_ways_by_hand():
    """4 of 11 entries travel, with 2 bits and two floats in each of two leaves.

    With `coo` their positions take 3 + 3 bits and 3 an entry. Client 0 gets the model,
    then a step; client 1, which missed a round, all entries that have changed.
    """
    method = make(up="topk", down="topk", density=0.3, bits=2, index="coo")
    few_bits = 4 * 2 + 2 * 64 + 6 + 4 * 3
    told = [*play(method, [(0, 1), (0,), (0, 1)])]
    for _, _, _, ups, _ in told:
        assert {bits(up) for up in ups.values()} == {few_bits}
    assert bits(told[0][2][1]) == 32 * 11
    assert bits(told[1][2][0]) == bits(told[2][2][0]) == few_bits
    moved = vector(told[2][0].params) != vector(told[0][0].params)
    assert bits(told[2][2][1]) == 6 + moved.sum() * (32 + 3)


def way_of(message):
    """Returns how a client gets the present model, and checks that it is one way."""
    sent = {n for n in ("full", "patch") if n in message and message[n].sent}
    steps = {n for n in ("delta", "scale") if n in message and message[n].sent}
    assert len(sent) + bool(steps) == 1
    assert steps in (set(), {"delta", "scale"} & set(message))
    return sent.pop() if sent else "step"


@pytest.mark.parametrize(
    ("down", "given"),
    [
        ("stc", {"density": 0.3}),
        pytest.param("sign", {}, marks=pytest.mark.slow),
        ("topk", {"density": 0.3, "bits": 5, "rounding": "unbiased"}),
    ],
)
def test_a_client_replays_the_model_from_what_travels(down, given):
    method = make(up="sign", down=down, **given)
    coder, held, seen = compressors.build(down, given), {}, {}
    cohorts = [(0, 1), (0,), (0, 2), (2, 0), (1, 0), (1, 2)]
    for before, _, downs, *_ in play(method, cohorts):
        for i, message in downs.items():
            way = way_of(message)
            if way == "full":
                held[i] = message["full"].values
            elif way == "patch":
                patch = message["patch"]
                stale = vector(held[i]) != vector(before.params)
                np.testing.assert_array_equal(vector(patch.mask), stale)
                held[i] = jax.tree.map(jnp.where, patch.mask, patch.values, held[i])
            else:
                held[i] = jax.tree.map(jnp.add, held[i], coder.decode(message))
            seen.setdefault(i, []).append(way)
            close(held[i], vector(before.params), atol=0)  # bit for bit
    late = "full" if down == "sign" else "patch"
    assert seen == {
        0: ["full", "step", "step", "step", "step"],
        1: ["full", late, "step"],  # missed three rounds
        2: ["full", "step", late],  # missed one
    }


@pytest.mark.parametrize("down", ["stc", pytest.param("sign", marks=pytest.mark.slow)])
def test_a_client_around_a_round_that_nobody_was_heard_in_adds_no_step_twice(down):
    """Round 1 is lost: its step is 0, and what has been left out waits for the next."""
    given = {"density": 0.3} if down == "stc" else {}
    method = make(up="none", down=down, server_optimizer=optax.sgd(1, 0.9), **given)
    coder, held = compressors.build(down, given), None
    for round, told in enumerate(play(method, [(0,)] * 4, lost=[(1, 0)])):
        before, _, downs, _, server = told
        if round:
            held = jax.tree.map(jnp.add, held, coder.decode(downs[0]))
        else:
            held = downs[0]["full"].values
        close(held, vector(before.params), atol=0)  # bit for bit
        if round == 1:
            assert vector(before.step.residual).any()
            for name in ("params", "opt_state"):
                old, new = (vector(getattr(s, name)) for s in (before, server))
                np.testing.assert_array_equal(new, old)
            close(server.step.residual, vector(before.step.residual), atol=0)


def test_a_client_that_missed_a_round_may_forget():
    cohorts = [(0, 1), (1,), (0, 1)]
    for stale in ("keep", "reset"):
        method = make(up="topk", density=0.3, stale=stale)
        *_, (_, before, *_), (_, clients, *_) = play(method, cohorts)
        for i in (0, 1):
            pending = vector(DELTAS[2][i])
            if i == 1 or stale == "keep":
                pending += vector(before[i].memory)
            close(clients[i].memory, pending - top(0.3)(pending, LEAVES))


def test_a_lost_uplink_leaves_the_memory_as_it_was():
    method = make(up="topk", density=0.3, keep_optimizer=True)
    played = play(method, ALL[:2])
    (_, first, *_), (_, second, *_) = played
    kept = method.drop_uplink(None, first[0], second[0]._replace(opt_state="moved"))
    close(kept.memory, vector(first[0].memory), atol=0)
    assert kept.opt_state == "moved"
    assert not np.allclose(vector(first[0].memory), vector(second[0].memory))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"down": "randomk"}, "down='randomk', expected one of topk, stc, sign"),
        ({"up": "stc", "bits": 4}, "bits=4, expected None with up='stc', down=None"),
        ({"bits": 1}, "bits=1, expected one of 2, 3, 4, 5, 6, 7, 8, 32"),
        ({"rounding": "unbiased"}, "rounding='unbiased', expected one of nearest"),
        ({"up": "majority", "feedback": "ef"}, "feedback='ef', expected one of none"),
        ({"up": "majority"}, "server_optimizer=None, expected one"),
        ({"feedback": "ef21"}, "clients=None, expected"),
        ({"clients": 5}, "clients=5, expected one of None"),
        ({"start": "gradient"}, "start='gradient', expected one of zero"),
        ({"feedback": "none", "stale": "reset"}, "stale='reset', expected one of keep"),
    ],
)
def test_what_has_no_effect_together_is_refused(given, said):
    refused(lambda: make(**given), said)


def test_a_compressor_of_ones_own():
    def half(key, update):
        halved = jax.tree.map(lambda v: v / 2, update)
        return {"delta": Packet(halved)}

    own = compressors.none()._replace(encode=half)
    *_, server = next(play(make(up=own, feedback="none")))
    close(server.params, START + mean(vectors(DELTAS[0])) / 2)
    shared = own._replace(shared=True)
    refused(lambda: make(down=shared), "expected one without a shared key")
