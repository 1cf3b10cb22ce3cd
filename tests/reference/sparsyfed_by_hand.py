"""SparsyFed's rounds in NumPy: powers, saved inputs, the largest weights, the mean."""

from fractions import Fraction

import jax
import numpy as np

from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference import sparse_passes_by_hand as passes
from tests.reference.sparse_passes_by_hand import kernels
from tests.reference.work_by_hand import KERNELS, SORTING, densities, multiplies, times

DENSITY, EXPONENT = 0.3, 1.25
COUNT = KERNELS - 134  # round(0.7 * 192) are left out


def power(w, exponent):
    return np.sign(w) * np.abs(w) ** exponent


def support(tree):
    return np.concatenate([np.ravel(tree[name]["kernel"]) for name in passes.LAYERS])


def client(model, data, rate, exponent=EXPONENT, sparse_inputs=True):
    """Returns what a client sends: the largest weights of all kernels together."""

    def shares(kernel):
        return Fraction(np.count_nonzero(kernel), kernel.size) if sparse_inputs else 1

    def chain(raw, gradient):
        return gradient * exponent * np.abs(raw) ** (exponent - 1)

    params, stats = passes.trained(
        model, data, rate, lambda w: power(w, exponent), chain, shares
    )
    least = np.sort(np.abs(support(params)))[-COUNT]
    return kernels(lambda w: np.where(np.abs(w) >= least, w, 0), params), stats


def sends(world, round, state, passings, **kwargs):
    """Checks what every client sends, and that none sends a weight that was 0."""
    received = state.server.model
    for rate, data, passing in passes.clients(world, round, state, passings):
        sent = unpack_model(passing.up)
        want = client(received, data, rate, **kwargs)
        passes.close((sent.params, sent.stats), want)
        alive = support(sent.params) != 0
        np.testing.assert_array_equal(alive, support(sent.mask))
        assert alive.sum() <= COUNT
        assert not np.any(alive & (support(received.params) == 0))


def averages(world, round, old, passings, new):
    """Checks the mean, its mask, and that no weight comes back."""
    sent = [unpack_model(p.up) for p in passings]
    want = passes.mean(world, round, [(s.params, s.stats) for s in sent])
    passes.close((new.model.params, new.model.stats), want)
    alive = support(new.model.params) != 0
    np.testing.assert_array_equal(support(new.model.mask), alive)
    assert not np.any(alive & ~support(old.model.mask))
    assert sum(bool(p.down["weights"].fresh) for p in passings)


def starts(world):
    """Checks that the network begins with its own weights: w is their root."""
    params, mask, _ = jax.device_get(world.model)
    masked = kernels(lambda w, m: np.where(m, w, 0), params, mask)
    server = small_world.start(world).server
    want = kernels(lambda w: power(w, 1 / EXPONENT), masked)
    passes.close(server.model.params, want)
    deployed = world.algorithm.deploy(world.key, server)["global"]
    passes.close(deployed.params, masked)


def trains_powers(world):
    """All rounds by hand, supports that only shrink, and the work."""
    starts(world)
    for round, state, passings, new in passes.rounds(world):
        sends(world, round, state, passings)
        averages(world, round, state.server, passings, new)
        deployed = world.algorithm.deploy(world.key, new)["global"].params
        passes.close(deployed, kernels(lambda w: power(w, EXPONENT), new.model.params))
    multiplies(world, multiplied)


def multiplied(world, round, index, passing):
    """All three passes within the mask that came down, and the order of all weights."""
    mask = unpack_model(passing.down).mask
    work = times(small_world.SIZES[index], densities(mask))
    return work, work, work, SORTING
