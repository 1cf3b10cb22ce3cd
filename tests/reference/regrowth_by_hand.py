"""Pruning and growth of layers in NumPy, and clients that do it in the small world."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference.averaging_by_hand import RATE, clients, local_sgd, sizes, valid
from tests.reference.averaging_by_hand import mean as mean_of
from tests.reference.by_hand import KEY, LAYERS, close, gradient, linear_loss, model_of


def best(scores, count, among):
    """Returns the mask of the `count` largest scores among some entries."""
    scores, among = np.asarray(scores), np.asarray(among)
    order = np.argsort(np.where(among, -scores, np.inf), axis=None, kind="stable")
    mask = np.zeros(scores.size, bool)
    mask[order[: min(count, among.sum())]] = True
    return mask.reshape(scores.shape)


def swapped(params, mask, scores, kept, alive):
    """Prunes the kernels to `kept` by magnitude, and grows them to `alive` by scores.

    Args:
      params, mask, scores: trees of the small world.
      kept, alive: counts by layer.

    Returns:
      The parameters, 0 where an entry has grown, and the mask.
    """
    params, mask = jax.device_get((params, mask))
    new_params, new_mask = jax.tree.map(np.copy, (params, mask))
    for name in LAYERS:
        w, m = params[name]["kernel"], mask[name]["kernel"]
        stay = best(np.abs(w), kept[name], m)
        grown = best(scores[name]["kernel"], alive[name] - stay.sum(), ~stay)
        new_params[name]["kernel"] = np.where(stay, w, 0)
        new_mask[name]["kernel"] = stay | grown
    return new_params, new_mask


def trained(model, data, round):
    """Returns the parameters and statistics after a client's round."""
    return local_sgd(model, data, RATE * 0.9**round)[:2]


def batch_gradient(params, stats, x, y):
    """Returns the gradient of a batch in training, and its magnitude."""
    grads = jax.device_get(gradient(params, stats, x, y)[0])
    return grads, jax.tree.map(np.abs, grads)


def halved(factory, weights, optimizer, key=KEY, **kwargs):
    """Returns a method on weights of which half are alive, and its first server."""
    model = model_of(linear_loss, {"w": 1}, {"w": np.zeros(len(weights))})
    options = {"density": 0.5, "allocation": "uniform", "prunable": ("w",)} | kwargs
    method, weights = factory(model, optimizer, **options), {"w": jnp.float32(weights)}
    return method, method.init(key, masks.dense(weights, {}))


def counts(mask):
    return {name: int(np.sum(mask[name]["kernel"])) for name in LAYERS}


# FedDST at d = .5: layers of 128 and 64 have raw densities 24/128 and 20/64, so that
# sparsities are S 192 / (104 + 44) (104/128, 44/64), S = .5: 60.5 and 35.5 are alive.
FEDDST = {"density": 0.5, "adjust_until": 4, "adjust_every": 2, "prune_rate": 0.5}
HALF = {"fc1": 60, "fc2": 35}
# S = 1 - .5 (1 - a), a = (1 + cos(pi / 4)) / 4 = .42678 and (1 + cos(3 pi / 4)) / 4
CUT = {1: {"fc1": 31, "fc2": 23}, 3: {"fc1": 55, "fc2": 33}}


def readjusts(world):
    """FedDST's four rounds: clients readjust in rounds 1 and 3, the server prunes."""
    states, logs = small_world.path(world)
    assert counts(states[0].server.model.mask) == HALF
    for name in LAYERS:  # the first mask is by magnitude
        w = world.model.params[name]["kernel"]
        np.testing.assert_array_equal(
            states[0].server.model.mask[name]["kernel"],
            best(np.abs(w), HALF[name], np.ones(w.shape, bool)),
        )
    for round in range(len(world.cohorts)):
        sent, weights = [], sizes(world, round)
        for _, data, passing in clients(world, round):
            model = unpack_model(passing.down)
            params, stats = trained(model, data, round)
            mask = model.mask
            if round in CUT:
                *_, rows = valid(data)
                _, scores = batch_gradient(params, stats, data.x[rows], data.y[rows])
                params, mask = swapped(params, mask, scores, CUT[round], HALF)
            got = unpack_model(passing.up)
            close(got.mask, mask)
            close((got.params, got.stats), (params, stats))
            assert passing.up["weights"].fresh == (round in CUT)
            assert counts(mask) == HALF
            sent.append((params, mask))
        new = states[round + 1].server.model
        for name in LAYERS:
            values = np.stack([p[name]["kernel"] for p, _ in sent])
            held = np.stack([m[name]["kernel"] for _, m in sent])
            held = held * weights[:, None, None]
            total, union = (held * values).sum(0), held.sum(0) > 0
            mean = np.where(union, total / np.maximum(held.sum(0), 1), 0)
            mask = best(np.abs(mean), HALF[name], union)
            assert (round in CUT) == (union.sum() > HALF[name])
            np.testing.assert_array_equal(new.mask[name]["kernel"], mask)
            close(new.params[name]["kernel"], np.where(mask, mean, 0))
            bias = np.average([p[name]["bias"] for p, _ in sent], 0, weights)
            close(new.params[name]["bias"], bias)
    assert logs[1].mismatch > 0


def first_batch(data):
    rows = next(valid(data))
    return data.x[rows], data.y[rows]


# ERK at d = .5: of layers with 24 + 20 of 44 raw entries, 96 (24 / 44) and 96 (20 / 44)
# are alive: 52.4 and 43.6.
ERK = {"fc1": 52, "fc2": 43}
FEDSPA = {"density": 0.5, "mask_update": "dst", "adjust_until": 4}
# .25 (1 + cos(pi t / 4)) of them are exchanged: .5, .4268, .25 and .0732, rounded up.
EXCHANGED = {
    0: {"fc1": 26, "fc2": 22},
    1: {"fc1": 23, "fc2": 19},
    2: {"fc1": 13, "fc2": 11},
    3: {"fc1": 4, "fc2": 4},
}


def adds_changes(world, dynamic=False, shared=True):
    """FedSpa: the server adds the uniform mean of changes within the clients' masks."""
    states, _ = small_world.path(world)
    seen = {}
    for round in range(len(world.cohorts)):
        state, changes = states[round], []
        dense = state.server.model
        for index, data, passing in clients(world, round):
            if dynamic:
                mask = plain_loop.inputs(world, state, round, index)[3]
                assert passing.down["params"].mask is None
            else:
                mask = unpack_model(passing.down).mask
                assert passing.down["weights"].index == "none"
                seen.setdefault(index, mask)
                close(mask, seen[index])
            assert counts(mask) == ERK
            model = SparseModel(masks.apply(dense.params, mask), mask, dense.stats)
            params, stats = trained(model, data, round)
            change = jax.tree.map(np.subtract, params, model.params)
            got = unpack_model(passing.up)
            close((got.mask, got.params, got.stats), (mask, change, stats))
            assert passing.up["weights"].fresh == dynamic
            changes.append((change, stats))
            if dynamic:
                grads, _ = gradient(params, stats, *first_batch(data), train=False)
                steep = jax.tree.map(np.abs, grads)
                kept = {n: ERK[n] - EXCHANGED[round][n] for n in LAYERS}
                close(passing.client, swapped(params, mask, steep, kept, ERK)[1])
                known = world.key, state.server, mask, None
                close(world.algorithm.personalize(*known)["personal"], model)
        mean = mean_of(changes)
        new = states[round + 1].server.model
        close(new.params, jax.tree.map(np.add, dense.params, mean[0]))
        close(new.stats, mean[1])
    kernels = [mask["fc1"]["kernel"] for mask in seen.values()]
    assert dynamic or all((k == kernels[0]).all() for k in kernels) == shared
    deployed = world.algorithm.deploy(world.key, states[-1].server)["global"]
    alive = ERK if shared and not dynamic else {"fc1": 128, "fc2": 64}
    assert counts(deployed.mask) == alive


FEDRTS = {"density": 0.5, "adjust_every": 2, "adjust_until": 4, "gamma": 0.3}
TINY = {"density": 0.5, "adjust_every": 2, "adjust_until": 4}
# .2 (1 + cos(pi t / 4)) of them are in doubt: .4, .3414, .2 and .0586, rounded down.
DOUBT = {
    0: {"fc1": 20, "fc2": 17},
    1: {"fc1": 17, "fc2": 14},
    2: {"fc1": 10, "fc2": 8},
    3: {"fc1": 3, "fc2": 2},
}


def votes_by_hand(world, gamma=0.3, scale=10.0):
    """FedRTS and FedTiny: four rounds of votes, of which round 2 adjusts the mask."""
    states, logs = small_world.path(world)
    thompson = "gamma" in world.name
    ones = {name: np.ones_like(world.model.params[name]["kernel"]) for name in LAYERS}
    a, b, rounds = dict(ones), dict(ones), {n: 0 * v for n, v in ones.items()}
    for round in range(len(world.cohorts)):
        old, new, sent = states[round].server, states[round + 1].server, []
        assert counts(old.model.mask) == ERK
        share = sizes(world, round) / sizes(world, round).sum()
        kept = {n: ERK[n] - DOUBT[round][n] for n in LAYERS}
        for _, data, passing in clients(world, round):
            params, stats = trained(old.model, data, round)
            got, grown = unpack_model(passing.up), passing.up["grown"]
            close((got.mask, got.params, got.stats), (old.model.mask, params, stats))
            assert grown.sent == (round == 2) and not passing.up["weights"].fresh
            assert grown.bits == (0 if thompson else 32)
            grads, steep = batch_gradient(params, stats, *first_batch(data))
            named = {}
            for n in LAYERS:
                holes = ~old.model.mask[n]["kernel"]
                named[n] = best(steep[n]["kernel"], DOUBT[round][n], holes)
                if round == 2:
                    np.testing.assert_array_equal(grown.mask[n]["kernel"], named[n])
                    if not thompson:
                        value = np.where(named[n], grads[n]["kernel"], 0)
                        close(grown.values[n]["kernel"], value)
            sent.append((params, grads, named))
        mean = mean_of([params for params, *_ in sent], share)
        for n in LAYERS:
            alive = old.model.mask[n]["kernel"]
            own = best(np.abs(mean[n]["kernel"]), kept[n], alive)
            theirs = [best(np.abs(p[n]["kernel"]), kept[n], alive) for p, *_ in sent]
            strong = sum(s * t for s, t in zip(share, theirs, strict=True))
            steep = sum(s * m[n] for s, (*_, m) in zip(share, sent, strict=True))
            x = np.where(alive, (1 - gamma) * own + gamma * strong,
                         (1 - gamma) / 2 + gamma * steep)  # fmt: skip
            heard = alive | (round == 2)
            assert x[alive].sum() == pytest.approx(kept[n], abs=1e-6)
            a[n] = a[n] + np.where(heard, scale * x, 0)
            b[n] = b[n] + np.where(heard, scale * (1 - x), 0)
            rounds[n] = rounds[n] + heard
            if thompson:
                close(new.a[n]["kernel"], a[n], atol=1e-4)
                close(new.b[n]["kernel"], b[n], atol=1e-4)
                total = new.a[n]["kernel"] + new.b[n]["kernel"]
                close(total - 2, scale * rounds[n], atol=1e-4)
        if not thompson and round == 2:
            slope = {}
            for n in LAYERS:
                told = [np.where(m[n], g[n]["kernel"], 0) for _, g, m in sent]
                slope[n] = {"kernel": np.abs(np.average(told, 0, share))}
            _, mask = swapped(mean, old.model.mask, slope, kept, ERK)
            close(new.model.mask, mask)
        moved = any((old.model.mask[n]["kernel"] != new.model.mask[n]["kernel"]).any()
                    for n in LAYERS)  # fmt: skip
        assert moved == (round == 2) == (logs[round].mismatch > 0)
        assert new.changed_at == (3 if round >= 2 else 0)
        close(new.model.params, masks.apply(mean, new.model.mask))


def scores_of_all(world):
    """SSFL: the 96 largest of the mean scores, weighted by samples; weights stay."""
    states, _ = small_world.path(world)
    for round in range(len(world.cohorts)):
        start, total = states[round].server, 0
        for index, data, passing in clients(world, round):
            batch = first_batch(data)
            grads, _ = gradient(start.params, start.stats, *batch, train=False)
            scores = [np.abs(start.params[n]["kernel"] * grads[n]["kernel"])
                      for n in LAYERS]  # fmt: skip
            sent = passing.up["scores"].values
            close([sent[n]["kernel"] for n in LAYERS], scores)
            flat = np.concatenate([s.ravel() for s in scores])
            total += small_world.SIZES[index] * flat
        mask = states[round + 1].server.mask
        kept = np.concatenate([np.asarray(mask[n]["kernel"]).ravel() for n in LAYERS])
        np.testing.assert_array_equal(kept, total >= np.sort(total)[-96])
        close(states[round + 1].server.params, world.model.params, atol=0)
