"""Complement Sparsification's rounds in NumPy: complement, ratio, percentile."""

import jax
import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference.averaging_by_hand import sizes
from tests.reference.by_hand import same

DENSITY, RATIO = 0.4, 1.5


def complements(world):
    """Clients send where they received zeros; tensors are cut by their percentile."""
    servers = [state.server for state in small_world.path(world)[0]]
    for round, (old, new) in enumerate(zip(servers, servers[1:], strict=False)):
        uplinks = [unpack_model(p.up) for p in plain_loop.passings(world, round)]
        trees = old.model.params, new.model.params, new.unpruned, new.model.mask
        leaves = map(jax.tree.leaves, trees)
        sent = zip(*(jax.tree.leaves(u.params) for u in uplinks), strict=True)
        for before, after, whole, mask, trained in zip(*leaves, sent, strict=True):
            mean = np.average(trained, 0, sizes(world, round))
            if round:
                assert not (np.stack(trained)[:, before != 0]).any()
                mean = before + RATIO * mean
            np.testing.assert_allclose(whole, mean, rtol=0, atol=1e-6)
            magnitude = np.abs(np.asarray(whole))
            kept = magnitude >= np.percentile(magnitude, 100 * (1 - DENSITY))
            np.testing.assert_array_equal(mask, kept & (magnitude > 0))
            np.testing.assert_array_equal(after, np.where(kept, whole, 0))
            zeros = mask.size - mask.sum()
            assert zeros >= np.ceil((1 - DENSITY) * (mask.size - 1) - 1e-9)
    deployed = world.algorithm.deploy(world.key, new)
    assert list(deployed) == ["global", "unpruned"]
    same(deployed["global"].params, new.model.params)
    same(deployed["unpruned"].params, new.unpruned)
