"""FLASH's servers aggregate uneven clients' messages as in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import hetero_jmwst, hetero_spdst, jmwst, nst, sensitivity
from sparsefl_jax.core.algorithm import target
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.wire.packets import Packet, pack_up, unpack_model
from tests.reference.by_hand import bare, context, merged

SELECT = {"a": True, "b": True, "bias": False}
LAYERS = ("a", "b")
TIERS = {"densities": (0.15, 0.2)}
CONTEXTS = context(size=300), context(size=100)


def client_model(seed, alive):
    """Returns two layers of 100 weights, some of them alive, and a bias."""
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=100).astype(np.float32) for name in LAYERS}
    mask = {name: np.isin(np.arange(100), alive[name]) for name in LAYERS}
    params = {name: params[name] * mask[name] for name in LAYERS}
    params["bias"], mask["bias"] = np.full(3, seed, np.float32), np.ones(3, bool)
    return SparseModel(params, mask, {})


def sent(method, *models, round=0):
    """Returns the server after these uploads, by `contribute` and `aggregate`."""
    uplinks = (
        pack_up(jax.tree.map(jnp.asarray, model), model.mask, SELECT, index="coo")
        for model in models
    )
    start = jax.tree.map(jnp.ones_like, models[0])
    old = method.init(jax.random.key(0), start)
    return merged(method, old, *zip(CONTEXTS, uplinks, strict=True), round=round)[0]


def largest(values, count):
    """Returns the mask of the largest magnitudes."""
    return np.isin(np.arange(len(values)), np.argsort(-np.abs(values))[:count])


def stage_1(shapes, **kwargs):
    """Returns the mask of stage 1 from the layer densities of two clients."""
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    model = SparseModel(params, jax.tree.map(lambda p: p > 0, params), {})
    method = sensitivity(bare(params), None, prunable=tuple(shapes), **kwargs)
    server = method.init(jax.random.key(0), model)
    told = [0.5, 0.02, 0.1], [0.1, 0.08, 0.1]
    uplinks = ({"density": Packet(jnp.array(one))} for one in told)
    server, _ = merged(method, server, *zip(CONTEXTS, uplinks, strict=True))
    assert (server.model.params["a"] == 1).all()  # untouched, not masked
    return server.model.mask


# Means .3, .05, .1 over clients, not over examples, of 2, 80 and 18 % of the weights:
# .1 / .064 = 1.5625 and .5 / .064 = 7.8125; the excess over 1 is not redistributed.
WANTED = {0.1: (0.46875, 0.078125, 0.15625), 0.5: (1.0, 0.390625, 0.78125)}


@pytest.mark.parametrize("density", WANTED)
def test_stage_1_draws_equation_3(density):
    shapes = {"a": (100, 100), "b": (4000, 100), "c": (900, 100)}
    mask = stage_1(shapes, density=density)
    for name, want in zip(shapes, WANTED[density], strict=True):
        deviation = np.sqrt(want * (1 - want) / mask[name].size)
        assert abs(np.mean(mask[name]) - want) <= 5 * deviation


def test_groups_of_four_round_equation_3_to_the_nearest():
    """Of 2.44, 0.41 (at least 1) and 0.81. Groups differ."""
    density, kept = 0.13, (2, 1, 1)
    shapes = {"a": (20, 5), "b": (800, 5), "c": (180, 5)}
    mask = stage_1(shapes, density=density, group=4)
    for name, want in zip(shapes, kept, strict=True):
        groups = np.asarray(mask[name]).reshape(-1, 4, 5)
        np.testing.assert_array_equal(groups.sum(1), want)
        drawn = np.unique(np.moveaxis(groups, 1, 2).reshape(-1, 4), axis=0)
        assert (len(drawn) > 1) == (want < 4)


@pytest.mark.parametrize("factory", [nst, jmwst])
@pytest.mark.parametrize(
    ("density", "counts"),
    [
        (0.3, (20, 10)),  # 0.3 * 200 / 30 = 2, which raises nothing
        (0.075, (10, 5)),  # 0.5
        (0.11, (14, 7)),  # 22 / 30 of 20 and 10, cut off
    ],
)
def test_the_servers_mask_is_equation_3_of_the_mean_densities(factory, density, counts):
    """The mean is over clients; over examples, 20 and 10 would become 25 and 12."""
    one = client_model(1, {"a": range(30), "b": range(15)})
    two = client_model(2, {"a": range(25, 35), "b": range(5)})
    method = factory(bare(SELECT), None, density=density, prunable=LAYERS)
    server = sent(method, one, two)
    deployed = method.deploy(None, server)
    assert target(deployed) is deployed["masked"]
    for name, count in zip(LAYERS, counts, strict=True):
        mean = (300 * one.params[name] + 100 * two.params[name]) / 400
        union = one.mask[name] | two.mask[name]
        np.testing.assert_allclose(server.model.params[name], mean, rtol=1e-6)
        np.testing.assert_array_equal(server.model.mask[name], union)
        np.testing.assert_array_equal(server.mask[name], largest(mean, count))
        np.testing.assert_array_equal(deployed["masked"].mask[name], server.mask[name])
    np.testing.assert_allclose(server.model.params["bias"], 1.25)
    assert server.mask["bias"].all()


# Both clients hold the same 30 of a, and 20 and 20 of b: a union of 30 and 40.
ONE = client_model(1, {"a": range(30), "b": range(20)})
TWO = client_model(2, {"a": range(30), "b": range(20, 40)})


def hetero(factory=hetero_jmwst, **kwargs):
    return factory(bare(SELECT), None, prunable=LAYERS, **TIERS, **kwargs)


def covered_mean(name):
    """The mean is by examples; an entry that no client holds is 0, not the old 1."""
    mean = (300 * ONE.params[name] + 100 * TWO.params[name]) / 400
    either = ONE.params[name] + TWO.params[name]
    return np.where(ONE.mask[name] & TWO.mask[name], mean, either)


@pytest.mark.parametrize("submask", ["magnitude", "frozen"])
def test_hetero_jmwst_shares_masks_out_as_the_aggregate_is(submask):
    """Of its 70 entries 40 are the mask of 0.2: 40 / 70 of 30 and 40, not the clients'
    mean of 30 and 20; 0.15 has 30 / 70 of them, not 30 / 39 of that mask's 17 and 22.
    """
    method = hetero(submask=submask)
    server = sent(method, ONE, TWO)
    deployed = method.deploy(None, server)
    assert list(deployed) == ["d0.2", "d0.15", "aggregated"]
    smaller = {"magnitude": (12, 17), "frozen": (13, 16)}[submask]
    for name, most, fewer in zip(LAYERS, (17, 22), smaller, strict=True):
        mean, either = covered_mean(name), ONE.mask[name] | TWO.mask[name]
        large, small, whole = (model.mask[name] for model in deployed.values())
        for model, mask in (
            (deployed["aggregated"], either),
            (deployed["d0.2"], large),
        ):
            np.testing.assert_allclose(model.params[name], mean * mask, rtol=1e-6)
        np.testing.assert_array_equal(whole, either)
        np.testing.assert_array_equal(large, largest(mean, most))
        assert small.sum() == fewer and not (small & ~large).any()
        if submask == "magnitude":
            np.testing.assert_array_equal(small, largest(mean, fewer))
    np.testing.assert_allclose(deployed["aggregated"].params["bias"], 1.25)


def test_hetero_jmwst_moves_its_mask_every_r_int_rounds():
    method = hetero(r_int=2)

    @jax.jit
    def mask(round):  # the first one is full
        return target(method.deploy(None, sent(method, ONE, TWO, round=round))).mask

    for round, counts in ((0, [17, 22]), (1, [100, 100]), (2, [17, 22])):
        assert [int(mask(round)[name].sum()) for name in LAYERS] == counts


@pytest.mark.parametrize("factory", [hetero_jmwst, hetero_spdst])
def test_a_budget_receives_its_part_of_the_aggregate(factory):
    """The largest is the server's mask, which never changes in SPDST."""
    method = hetero(factory, submask="magnitude")
    server = sent(method, ONE, TWO)
    frozen = factory is hetero_spdst
    for budget, counts in ((0.15, (12, 17)), (0.2, (100, 100) if frozen else (17, 22))):
        got = unpack_model(method.broadcast(None, context(1, budget=budget), server))
        for name, count in zip(LAYERS, counts, strict=True):
            mask, mean = np.asarray(got.mask[name]), covered_mean(name)
            want = mask | True if count == 100 else largest(mean, count)
            np.testing.assert_array_equal(mask, want)
            np.testing.assert_allclose(got.params[name], mean * want, rtol=1e-6)
    first, later = (
        unpack_model(method.broadcast(None, context(round, budget=budget), server)).mask
        for round, budget in ((0, 0.15), (1, 0.2))
    )
    jax.tree.map(np.testing.assert_array_equal, first, later)  # round 0: the largest


@pytest.mark.parametrize(
    ("factory", "average"),
    [(hetero_jmwst, "fedavg"), (hetero_spdst, "fedavg"), (jmwst, "wfa")],
)
def test_an_entry_that_a_client_lacks_is_a_zero_or_left_out(factory, average):
    """Figure 9 compares both; b is held by one client alone, 300 or 100 samples."""
    given = {"density": 0.2} if factory is jmwst else TIERS
    method = factory(bare(SELECT), None, prunable=LAYERS, average=average, **given)
    model = method.deploy(None, sent(method, ONE, TWO))["aggregated"]
    for name in LAYERS:
        zeros = (300 * ONE.params[name] + 100 * TWO.params[name]) / 400
        mean = zeros if average == "fedavg" else covered_mean(name)
        np.testing.assert_allclose(model.params[name], mean, rtol=1e-6)
        np.testing.assert_array_equal(model.mask[name], ONE.mask[name] | TWO.mask[name])
    np.testing.assert_allclose(model.params["bias"], 1.25)
