"""What the methods of FLASH keep in the small world, and when they are FedAvg."""

import jax
import numpy as np

from sparsefl_jax.algorithms import jmwst, pdst
from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference.averaging_by_hand import fedavg_by_hand, headline, is_fedavg
from tests.reference.by_hand import same

TIERS = {"densities": (0.3, 0.4, 0.5)}


def frozen(world):
    """Checks FedAvg within a mask that never changes, nor does the uplink's size."""
    fedavg_by_hand(world)
    states, logs = small_world.path(world)
    for state, log in zip(states[1:], logs, strict=True):
        np.testing.assert_array_equal(log.mismatch, 0)
        alive = masks.counts(headline(world, state.server).mask, world.layers)
        same(log.clients.up["weights"].entries, np.tile(alive, (3, 1)))


def frozen_and_dense(world):
    frozen(world)
    dense = small_world.make_world(pdst, {"density": 1.0})
    mask = headline(dense, small_world.start(dense).server).mask
    assert float(masks.density(mask, dense.layers)) == 1
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
        assert log.clients.up["weights"].fresh.tolist() == moved
        assert any(moved) == (round % every == 0)
    assert logs[0].mismatch > 0


def changed(passing) -> bool:
    """Returns whether a client sends another mask than it received."""
    pair = (jax.tree.leaves(unpack_model(m).mask) for m in (passing.up, passing.down))
    return any((up != down).any() for up, down in zip(*pair, strict=True))
