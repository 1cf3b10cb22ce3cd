"""What the methods of FLASH keep in the small world, and when they are FedAvg."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.algorithms import hetero_spdst, jmwst, nst, pdst
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.wire.messages import unpack_model
from tests.averaging_by_hand import assert_close, fedavg_by_hand, headline, is_fedavg

TIERS = {"densities": (0.3, 0.4, 0.5)}


def frozen(world):
    """Checks FedAvg within a mask that never changes, nor does the uplink's size."""
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


def votes(world, every):
    """Checks that the mask moves in each `every`-th round alone, by Eq. 3 at r <= 1."""
    is_fedavg(small_world.make_world(jmwst, {"density": 0.5, "prune_rate": 0.0}))
    states, logs = small_world.path(world)
    sizes = trees.layer_sizes(world.model.params, world.layers)
    for round, (state, log) in enumerate(zip(states[1:], logs, strict=True)):
        sent = [unpack_model(p.up).mask for p in plain_loop.passings(world, round)]
        mean = np.mean([masks.counts(mask, world.layers) for mask in sent], 0)
        if round % every == 0:
            wanted = mean * min(1, 0.5 * sizes.sum() / mean.sum())
            alive = np.asarray(masks.counts(state.server.mask, world.layers))
            np.testing.assert_array_equal(alive, np.floor(wanted + 1e-4))
        assert round % every == 0 or log.mismatch == 0
        moved = [changed(passing) for passing in plain_loop.passings(world, round)]
        assert log.up["weights"].fresh.tolist() == moved
        assert any(moved) == (round % every == 0)
    assert logs[0].mismatch > 0


def changed(passing) -> bool:
    """Returns whether a client sends another mask than it received."""
    pair = (jax.tree.leaves(unpack_model(m).mask) for m in (passing.up, passing.down))
    return any((up != down).any() for up, down in zip(*pair, strict=True))


def unites(world):
    """Checks the mean of all, zeros included, on the union; at density 1, FedAvg."""
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
    """Checks that weights stay, and masks are drawn at the answers scaled by Eq. 3."""
    sizes = np.asarray(trees.layer_sizes(world.model.params, world.layers), np.float64)
    for round, state in enumerate(small_world.path(world)[0][1:]):
        model = headline(world, state.server)
        assert_close(model.params, world.model.params, atol=0)
        answers = [p.up["density"].values for p in plain_loop.passings(world, round)]
        mean = np.mean(answers, 0)
        wanted = np.minimum(1, mean * 0.5 * sizes.sum() / (mean @ sizes))
        key = jax.random.fold_in(jax.random.fold_in(world.key, 3), round)
        drawn = masks.bernoulli(
            key, model.params, wanted.astype(np.float32), world.layers
        )
        assert_close(model.mask, drawn)
        assert len(np.unique(np.concatenate(answers))) > 2  # Eq. 3 has something to do


def nests(world, factory):
    """Checks that a smaller budget has the same share of each layer of a larger one.

    With equal budgets the method is FedAvg within the mask.
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


def _alive(world, mask):
    return int(jnp.sum(masks.counts(mask, world.layers)))
