"""FedMef's rounds in the small world, in NumPy."""

import jax
import numpy as np

from sparsefl_jax.algorithms import fedmef
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference import averaging_by_hand as averaging
from tests.reference import regrowth_by_hand as regrowth
from tests.reference import sparse_passes_by_hand as passes
from tests.reference.by_hand import LAYERS, close

PENALTY, KEPT = 0.5, 0.5
MEF = {"density": 0.5, "adjust_every": 2, "adjust_until": 4}
MEF |= {"penalty": PENALTY, "keep_inputs": KEPT}
TIMES = 20  # how much faster than in the other worlds the rate falls


def falling(model, optimizer, **kwargs):
    """FedMef whose rate falls so fast that clients raise it in rounds that adjust."""
    return fedmef(model, lambda round: optimizer(TIMES * round), **kwargs)


def squeezed(model, data, rate, low):
    """Returns what a client trains, and in how many steps it raised its rate."""
    params, stats = passes.double(model.params), passes.double(model.stats)
    velocity, raised = jax.tree.map(np.zeros_like, params), 0
    mask = jax.device_get(model.mask)
    rows = list(averaging.valid(data))
    for s, own in enumerate(rows):
        grads, stats = gradient(params, stats, data.x[own], data.y[own])
        norm = np.sqrt(sum(np.sum(params[n]["kernel"][low[n]] ** 2) for n in LAYERS))
        left = (2 * len(rows) - 2 * s) / (2 * len(rows) - s)
        beta = left * (2 / (1 + np.exp(-norm)) - 1) * averaging.RATE
        for n in LAYERS:
            grads[n]["kernel"] += 2 * PENALTY * np.where(low[n], params[n]["kernel"], 0)
        grads = jax.tree.map(lambda g, m: np.where(m, g, 0), grads, mask)
        params, velocity = averaging.moved(params, velocity, grads, max(rate, beta))
        raised += beta > rate
    return params, stats, raised


def gradient(params, stats, x, y):
    x, y = np.asarray(x, np.float64), np.asarray(y)
    return passes.gradient(params, stats, x, y, dict.fromkeys(LAYERS, KEPT))


def smallest(params, mask, count):
    return {
        n: regrowth.best(-np.abs(params[n]["kernel"]), count[n], mask[n]["kernel"])
        for n in LAYERS
    }


def squeezes(world, times):
    """Four rounds, of which round 2 adjusts; returns the steps at a raised rate."""
    states, raised = small_world.path(world)[0], 0
    for round in range(len(world.cohorts)):
        old, new, sent = states[round].server, states[round + 1].server, []
        due, mask = round == 2, jax.device_get(old.model.mask)
        doubt = regrowth.DOUBT[round] if due else dict.fromkeys(LAYERS, 0)
        low = smallest(old.model.params, mask, doubt)
        for _, data, passing in averaging.clients(world, round):
            rate = averaging.RATE * 0.9 ** (times * round)
            params, stats, more = squeezed(old.model, data, rate, low)
            got, grown = unpack_model(passing.up), passing.up["grown"]
            want = mask, params, stats
            close((got.mask, got.params, got.stats), want, atol=2e-6)
            assert grown.sent == due and grown.bits == 32
            grads, _ = gradient(params, stats, *regrowth.first_batch(data))
            named = {}
            for n in LAYERS:
                steep, holes = np.abs(grads[n]["kernel"]), ~mask[n]["kernel"]
                told = regrowth.best(steep, doubt[n], holes)
                named[n] = np.where(told, grads[n]["kernel"], 0)
                if due:
                    np.testing.assert_array_equal(grown.mask[n]["kernel"], told)
                    close(grown.values[n]["kernel"], named[n])
            sent.append((params, named))
            raised += more
        trained, slope = averaging.mean(sent, averaging.sizes(world, round))
        want = jax.tree.map(np.copy, mask)
        for n in LAYERS:
            grown = regrowth.best(np.abs(slope[n]), doubt[n], ~mask[n]["kernel"])
            want[n]["kernel"] = mask[n]["kernel"] & ~low[n] | grown
            assert not np.any(low[n] & np.asarray(new.model.mask[n]["kernel"]))
        assert regrowth.counts(want) == regrowth.ERK
        assert new.changed_at == (3 if round >= 2 else 0)
        close(new.model.mask, want)
        close(new.model.params, masks.apply(trained, want), atol=2e-6)
    return raised


def extrudes(world):
    """Checks the rounds at two rates, and that it is FedAvg where nothing is pruned."""
    assert squeezes(world, 1) == 0
    assert squeezes(small_world.make_world(falling, MEF), TIMES) > 0
    averaging.fedavg_by_hand(small_world.make_world(fedmef, {"density": 1.0}))
