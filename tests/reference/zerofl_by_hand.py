"""ZeroFL's rounds in NumPy: sparse passes over dense weights, and the three uplinks."""

from fractions import Fraction

import jax
import numpy as np

from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference import sparse_passes_by_hand as passes
from tests.reference.sparse_passes_by_hand import kernels
from tests.reference.work_by_hand import BATCH, layers, multiplies, times

DENSITY, RATIO = Fraction(3, 10), Fraction(1, 5)
SENT = DENSITY + RATIO
SPARSE = {"density": 0.3, "mask_ratio": 0.2}


def top(w, share=DENSITY):
    return np.where(passes.largest(w, share), w, 0)


def client(model, data, rate, uplink):
    """Returns what a client sends: for each kernel `SENT` of it, the biases whole."""
    params, stats = passes.trained(
        model, data, rate, top, lambda raw, gradient: gradient, lambda kernel: DENSITY
    )
    start = passes.double(model.params)
    change = jax.tree.map(np.subtract, params, start)
    values = params if uplink == "weights" else change
    scores = change if uplink == "top_of_diff" else params
    cut = kernels(lambda v, s: np.where(passes.largest(s, SENT), v, 0), values, scores)
    return cut, stats


def sends(world, round, state, passings, uplink):
    """Checks what clients send: at most 64 and 32 entries of the kernels, no zeros."""
    for rate, data, passing in passes.clients(world, round, state, passings):
        sent = unpack_model(passing.up)
        want = client(state.server, data, rate, uplink)
        passes.close((sent.params, sent.stats), want)
        for name, most in (("fc1", 64), ("fc2", 32)):
            kernel, mask = sent.params[name]["kernel"], sent.mask[name]["kernel"]
            np.testing.assert_array_equal(mask, kernel != 0)
            assert mask.sum() <= most
        assert passing.down["params"].mask is None


def aggregates(world, round, old, passings, new, uplink):
    """Checks the mean of weights, or the old weights and the mean of changes."""
    sent = [unpack_model(p.up) for p in passings]
    params, stats = passes.mean(world, round, [(s.params, s.stats) for s in sent])
    if uplink != "weights":
        params = jax.tree.map(np.add, old.params, params)
    passes.close((new.params, new.stats), (params, stats))
    deployed = world.algorithm.deploy(world.key, new)
    assert list(deployed) == ["global", "unpruned"]
    passes.close(deployed["global"].params, kernels(top, passes.double(new.params)))
    passes.close(deployed["unpruned"].params, new.params)


def computes_sparsely(world, uplink):
    """All rounds by hand, and the work."""
    for round, state, passings, new in passes.rounds(world):
        sends(world, round, state, passings, uplink)
        aggregates(world, round, state.server, passings, new, uplink)
    multiplies(world, multiplied)


def multiplied(world, round, index, passing):
    """39 of 128 and 20 of 64 weights, 3 of 10 inputs, and their order in each step."""
    size = small_world.SIZES[index]
    used = times(size, layers(39 / 128, 20 / 64))
    inputs = times(size, layers(0.3, 0.3))
    orders = 128 * np.log2(129) + 64 * np.log2(65)
    return used, used, inputs, -(-size // BATCH) * orders
