"""Every algorithm through the same laws, and each through what only it must keep."""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import (
    complement,
    fedavg,
    fedpm,
    fedprox,
    fedsparsify_global,
    fedsparsify_local,
    fjord,
    grasp,
    hetero_jmwst,
    hetero_spdst,
    heterofl,
    jmwst,
    local_only,
    nst,
    pdst,
    pqsu,
    prunefl,
    prunefl_initial,
    sensitivity,
    snip,
    spafl,
    spdst,
)
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.testing import laws, plain_loop, small_world
from sparsefl_jax.wire.messages import unpack_model
from tests.by_hand import gradient as cross_entropy_gradient
from tests.complement_by_hand import DENSITY as KEPT
from tests.complement_by_hand import complements
from tests.fedpm_by_hand import trains_scores
from tests.fedsparsify_by_hand import (
    DENSITY,
    ROUNDS,
    purges_on_clients,
    purges_on_server,
)
from tests.pqsu_by_hand import uploads_what_helps
from tests.prunefl_by_hand import FEDERATED, SEARCH, accumulates, searches
from tests.snip_by_hand import flows, sensitive, votes_for
from tests.spafl_by_hand import ALPHA, trains_thresholds
from tests.work_by_hand import ELSEWHERE, WORK, multiplies

RATE, MOMENTUM = 0.1, 0.9  # of the world's clients in round 0
MU = 0.5  # of FedProx


class Row(NamedTuple):
    """A method, and what it must equal or keep that others need not: `own(world)`."""

    factory: Callable
    kwargs: dict
    own: Callable


@pytest.fixture(autouse=True)
def _quick_compilation(request):
    """The laws hold whatever the compiler does; unoptimised is a quarter cheaper."""
    slow = request.node.get_closest_marker("slow") is not None
    jax.config.update("jax_disable_most_optimizations", not slow)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# References, written out without the package's training loop.


def local_sgd(model, data, rate, velocity=None, pull=0.0):
    """Masked SGD with momentum over the valid samples of one epoch.

    `pull` is FedProx's mu, of the way back to where it starts.
    """
    params = masks.apply(model.params, model.mask)
    velocity = velocity or jax.tree.map(jnp.zeros_like, params)
    stats = model.stats
    for order, weight in zip(data.order[0], data.weight[0], strict=True):
        rows = order[np.asarray(weight) > 0]
        if not rows.size:
            break
        grads, stats = cross_entropy_gradient(params, stats, data.x[rows], data.y[rows])
        grads = jax.tree.map(
            lambda g, p, p0: g + pull * (p - p0), grads, params, model.params
        )
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
        params = jax.tree.map(lambda p, v: p - rate * v, params, velocity)
        params = masks.apply(params, model.mask)
    return params, stats, velocity


def headline(world, server):
    return next(iter(world.algorithm.deploy(world.key, server).values()))


def averaged(world, pull=0.0):
    """One round of FedAvg on the alive weights, from the state before round 0."""
    state = small_world.start(world)
    model, ids = headline(world, state.server), world.cohorts[0].tolist()
    weights = np.array([small_world.SIZES[i] for i in ids], np.float32)
    weights /= weights.sum()
    trained = [
        local_sgd(model, plain_loop.inputs(world, state, 0, i)[-1], RATE, pull=pull)[:2]
        for i in ids
    ]
    return jax.tree.map(
        lambda *v: sum(w * x for w, x in zip(weights, v, strict=True)), *trained
    )


def first_round(world):
    """Round 0 without the simulator: the messages and the new server."""
    state = small_world.start(world)
    key = jax.random.fold_in(jax.random.fold_in(world.key, 3), 0)
    passings = [
        plain_loop.client_by_wire(world)(*plain_loop.inputs(world, state, 0, i))
        for i in world.cohorts[0].tolist()
    ]
    server, _ = plain_loop.aggregate_jit(world)(
        key, np.int32(0), state.server, plain_loop.total(passings)
    )
    return passings, server


def assert_close(got, want, **tolerance):
    tolerance = {"rtol": 0, "atol": 1e-6} | tolerance
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, want)


def is_fedavg(world, server=None, pull=0.0):
    """The new model is the plain mean of what clients train within their mask."""
    model = headline(world, first_round(world)[1] if server is None else server)
    assert_close((model.params, model.stats), averaged(world, pull))


# What each row keeps or reduces to.


def fedavg_by_hand(world):
    is_fedavg(world, small_world.path(world)[0][1].server)


def adam_by_hand(world):
    """Bias correction makes Adam's first step the rate times the sign, nearly."""
    old, new = (small_world.path(world)[0][i].server.params for i in (0, 1))
    delta = jax.tree.map(jnp.subtract, averaged(world)[0], old)
    step = jax.tree.map(lambda d: 0.01 * d / (jnp.abs(d) + 1e-8), delta)
    assert_close(new, jax.tree.map(jnp.add, old, step), atol=1e-5)


def is_pulled(world):
    """FedAvg of clients whose gradient is that much longer; at mu = 0 FedAvg itself."""
    is_fedavg(world, pull=MU)
    is_fedavg(small_world.make_world(fedprox, {"mu": 0.0}))


def keeps_velocity(world):
    """Client 2 takes part in rounds 0 and 1 and goes on with its momentum."""
    states, velocity = small_world.path(world)[0], None
    for round in range(2):
        model = headline(world, states[round].server)
        data = plain_loop.inputs(world, states[round], round, 2)[-1]
        params, _, velocity = local_sgd(model, data, RATE * 0.9**round, velocity)
        place = world.cohorts[round].tolist().index(2)
        up = plain_loop.passings(world, round)[place].up
        if "delta" in up:
            params = jax.tree.map(jnp.subtract, params, model.params)
        sent = up["delta"].values if "delta" in up else unpack_model(up).params
        assert_close(sent, params)


def frozen(world):
    """Equals FedAvg within the mask; the mask and the uplink's size never change."""
    fedavg_by_hand(world)
    states, logs = small_world.path(world)
    for state, log in zip(states[1:], logs, strict=True):
        np.testing.assert_array_equal(log.mismatch, 0)
        np.testing.assert_array_equal(
            log.up["weights"].entries, np.tile(_counts(world, state), (3, 1))
        )


def _counts(world, state):
    return masks.counts(headline(world, state.server).mask, world.layers)


def frozen_and_dense(world):
    frozen(world)
    dense = small_world.make_world(pdst, {"density": 1.0})
    assert (
        float(
            masks.density(
                headline(dense, small_world.start(dense).server).mask, dense.layers
            )
        )
        == 1
    )
    is_fedavg(dense)


def adapts(world):
    """FedAvg within the mask in round 0; the rule, by hand, in those that follow."""
    fedavg_by_hand(world)
    accumulates(world)


def votes(world, every):
    """The server's mask moves in every `every`-th round only: Eq. 3, never raised."""
    is_fedavg(small_world.make_world(jmwst, {"density": 0.5, "prune_rate": 0.0}))
    states, logs = small_world.path(world)
    sizes = trees.layer_sizes(world.model.params, world.layers)
    for round, (state, log) in enumerate(zip(states[1:], logs, strict=True)):
        told = [unpack_model(p.up).mask for p in plain_loop.passings(world, round)]
        told = np.mean([masks.counts(mask, world.layers) for mask in told], 0)
        if round % every == 0:
            wanted = told * min(1, 0.5 * sizes.sum() / told.sum())
            alive = np.asarray(masks.counts(state.server.mask, world.layers))
            np.testing.assert_array_equal(alive, np.floor(wanted + 1e-4))
        assert round % every == 0 or log.mismatch == 0
        moved = [changed(passing) for passing in plain_loop.passings(world, round)]
        assert log.up["weights"].fresh.tolist() == moved
        assert any(moved) == (round % every == 0)
    assert logs[0].mismatch > 0


def changed(passing) -> bool:
    """Whether a client sends another mask than it got."""
    pair = (jax.tree.leaves(unpack_model(m).mask) for m in (passing.up, passing.down))
    return any((up != down).any() for up, down in zip(*pair, strict=True))


def unites(world):
    """The mean of all, zeros too, lives where any client does; at density 1: FedAvg."""
    for round, state in enumerate(small_world.path(world)[0][1:]):
        sent = [unpack_model(p.up) for p in plain_loop.passings(world, round)]
        weights = np.array(
            [small_world.SIZES[i] for i in world.cohorts[round]], np.float64
        )
        mean = jax.tree.map(
            lambda *v, w=weights: np.tensordot(w / w.sum(), np.stack(v), 1),
            *[model.params for model in sent],
        )
        union = jax.tree.map(lambda *m: np.any(m, axis=0), *[s.mask for s in sent])
        assert_close(state.server.model.params, mean)
        assert_close(state.server.model.mask, union)
        largest = max(_alive(world, model.mask) for model in sent)
        assert (
            largest < _alive(world, union) < trees.layer_sizes(mean, world.layers).sum()
        )
    is_fedavg(small_world.make_world(nst, {"density": 1.0, "prune_rate": 0.0}))


def hands_on(world):
    """The weights stay untouched; the mask is drawn at what Eq. 3 makes of answers."""
    sizes = np.asarray(trees.layer_sizes(world.model.params, world.layers), np.float64)
    for round, state in enumerate(small_world.path(world)[0][1:]):
        model = headline(world, state.server)
        assert_close(model.params, world.model.params, atol=0)
        told = [p.up["density"].values for p in plain_loop.passings(world, round)]
        mean = np.mean(told, 0)
        wanted = np.minimum(1, mean * 0.5 * sizes.sum() / (mean @ sizes))
        key = jax.random.fold_in(jax.random.fold_in(world.key, 3), round)
        drawn = masks.bernoulli(
            key, model.params, wanted.astype(np.float32), world.layers
        )
        assert_close(model.mask, drawn)
        assert len(np.unique(np.concatenate(told))) > 2  # Eq. 3 has something to do


def nests(world, factory):
    """Every layer of a small budget is the same part of what it is cut from, within the
    larger ones; equal budgets are FedAvg within the mask.
    """
    states, frozen = small_world.path(world)[0], factory is hetero_spdst
    size = float(trees.layer_sizes(world.model.params, world.layers).sum())
    held = np.asarray(masks.counts(world.model.mask, world.layers), np.float64)
    for round, state in enumerate(states):
        if round and not frozen:  # the largest mask is cut from the cohort's union
            sent = [
                unpack_model(p.up).mask for p in plain_loop.passings(world, round - 1)
            ]
            union = jax.tree.map(lambda *m: np.any(m, axis=0), *sent)
            held = np.asarray(masks.counts(union, world.layers), np.float64)
        deployed = world.algorithm.deploy(world.key, state.server)
        chain = [deployed[f"d{d}"].mask for d in TIERS["densities"]]
        for density, mask in zip(TIERS["densities"], chain, strict=True):
            cut = held * min(1, density * size / held.sum())
            whole = density == 0.5 and (frozen or not round)  # holds what it was given
            want = held if whole else np.floor(cut + 1e-4)
            np.testing.assert_array_equal(masks.counts(mask, world.layers), want)
        for small, large in itertools.pairwise(chain):
            jax.tree.map(lambda s, w: np.testing.assert_array_equal(s & ~w, False),
                         small, large)  # fmt: skip
    deployed = world.algorithm.deploy(world.key, states[0].server)
    for passing, index in zip(
        plain_loop.passings(world, 0), world.cohorts[0], strict=True
    ):
        budget = small_world.BUDGETS[index] if frozen else max(small_world.BUDGETS)
        assert_close(unpack_model(passing.down).mask, deployed[f"d{budget}"].mask)
    still = {} if frozen else {"prune_rate": 0.0}
    whole = small_world.make_world(factory, {"densities": (1.0,)} | still)
    info = whole.population.info._replace(budget=np.ones(5, np.float32))
    is_fedavg(whole._replace(population=whole.population._replace(info=info)))


def with_budgets(world, budgets):
    """The same world with other budgets for its five clients."""
    info = world.population.info._replace(budget=np.full(5, budgets, np.float32))
    return world._replace(population=world.population._replace(info=info))


def slices(world):
    """Prefixes of the hidden layer travel and nobody's entries stay; at width 1 the
    plain mean of all clients.
    """
    states = small_world.path(world)[0]
    for round in range(2):
        held = np.zeros(small_world.HIDDEN, bool)
        for index, passing in zip(
            world.cohorts[round], plain_loop.passings(world, round), strict=True
        ):
            units = np.arange(small_world.HIDDEN) < np.ceil(
                small_world.BUDGETS[index] * small_world.HIDDEN
            )
            held |= units
            mask = passing.down["params"].mask
            np.testing.assert_array_equal(mask["fc1"]["kernel"].all(0), units)
            np.testing.assert_array_equal(mask["fc1"]["kernel"].any(0), units)
            np.testing.assert_array_equal(mask["fc2"]["kernel"].all(1), units)
        old, new = (s.server.params["fc1"]["kernel"] for s in states[round : round + 2])
        np.testing.assert_array_equal((old != new).any(0), held)
    whole = with_budgets(small_world.make_world(heterofl, {"mask_classes": False}), 1.0)
    mean = small_world.make_world(fedavg, {"weighting": "uniform"})
    got, want = (
        small_world.run(w, small_world.start(w), 0)[0].server for w in (whole, mean)
    )
    assert_close((got.params, got.stats), (want.params, want.stats))


def drops_widths(world):
    """Entries beyond the largest budget stay; at a grid of width 1: FedAvg."""
    start, *_, end = small_world.path(world)[0]
    beyond = (
        np.arange(small_world.HIDDEN) >= max(small_world.BUDGETS) * small_world.HIDDEN
    )
    for name, axis in (("fc1", 1), ("fc2", 0)):
        old, new = (s.server.params[name]["kernel"] for s in (start, end))
        still = (old == new).all(1 - axis)
        np.testing.assert_array_equal(still, beyond)
    is_fedavg(small_world.make_world(fjord, {"widths": (1.0,)}))


def _alive(world, mask):
    return int(jnp.sum(masks.counts(mask, world.layers)))


HALF, TIERS = {"density": 0.5}, {"densities": (0.3, 0.4, 0.5)}

GRID = {"widths": (0.3, 0.4, 0.5)}

SCHEDULE = {"density": DENSITY, "rounds": ROUNDS}

TABLE = {
    "fedavg": Row(fedavg, {}, fedavg_by_hand),
    "fedadam": Row(fedavg, {"server_optimizer": optax.adam(0.01)}, adam_by_hand),
    "fedavg_keep": Row(fedavg, {"keep_optimizer": True}, keeps_velocity),
    "fedpm": Row(fedpm, {}, trains_scores),
    "fedprox": Row(fedprox, {"mu": MU}, is_pulled),
    "complement": Row(complement, {"density": KEPT}, complements),
    "fedsparsify_global": Row(fedsparsify_global, SCHEDULE, purges_on_server),
    "fedsparsify_local": Row(fedsparsify_local, SCHEDULE, purges_on_clients),
    "pdst": Row(pdst, HALF, frozen_and_dense),
    "spdst": Row(spdst, {}, frozen),
    "spdst_keep": Row(spdst, {"keep_optimizer": True}, keeps_velocity),
    "jmwst": Row(jmwst, HALF, functools.partial(votes, every=1)),
    "jmwst_2": Row(jmwst, HALF | {"r_int": 2}, functools.partial(votes, every=2)),
    "nst": Row(nst, HALF, unites),
    "sensitivity": Row(sensitivity, HALF, hands_on),
    "snip": Row(snip, HALF, functools.partial(votes_for, scores=sensitive)),
    "grasp": Row(grasp, HALF, functools.partial(votes_for, scores=flows)),
    "hetero_spdst": Row(
        hetero_spdst, TIERS, functools.partial(nests, factory=hetero_spdst)
    ),
    "hetero_jmwst": Row(
        hetero_jmwst, TIERS, functools.partial(nests, factory=hetero_jmwst)
    ),
    "prunefl": Row(prunefl, FEDERATED, adapts),
    "prunefl_initial": Row(prunefl_initial, SEARCH, searches),
    "spafl": Row(spafl, {"alpha": ALPHA}, trains_thresholds),
    "local_only": Row(local_only, {"alpha": ALPHA}, trains_thresholds),
    "heterofl": Row(heterofl, {}, slices),
    "fjord": Row(fjord, GRID, drops_widths),
    "fjord_round": Row(fjord, GRID | {"draw": "round"}, drops_widths),
    "fjord_distill": Row(fjord, GRID | {"distill": True}, drops_widths),
    "pqsu": Row(pqsu, HALF, uploads_what_helps),
}


# Another argument of a method that stands above: only with `-m slow`.
VARIANTS = (
    "fedadam",
    "fedavg_keep",
    "spdst_keep",
    "jmwst_2",
    "fjord_round",
    "fjord_distill",
)


def broken_laws(world) -> list[str]:
    found = []
    for law in laws.LAWS.values():
        try:
            law(world)
        except laws.ContractError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in VARIANTS else [])
        for name in TABLE
    ],
)
def test_method(name):
    row = TABLE[name]
    world = small_world.make_world(row.factory, row.kwargs)
    assert not broken_laws(world)
    row.own(world)
    if name not in ELSEWHERE:
        multiplies(world, WORK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_method_thoroughly(name):
    row = TABLE[name]
    assert not broken_laws(
        small_world.make_world(row.factory, row.kwargs, thorough=True)
    )
