"""SNIP from its formula, for the contract test."""

import jax
import numpy as np

from sparsefl_jax.sparsity import trees
from sparsefl_jax.testing import small_world
from tests.reference.averaging_by_hand import clients, valid
from tests.reference.by_hand import gradient, same


def sensitive(params, stats, x, y):
    """Returns |w dL/dw|."""
    grads, _ = gradient(params, stats, x, y)
    return jax.tree.map(lambda w, g: np.abs(w * g), params, grads)


def votes_for(world):
    """Clients vote for the best half of the kernels; the server keeps the top half."""
    half = int(trees.layer_sizes(world.model.params, world.layers).sum()) // 2

    def flat(tree):
        leaves = trees.layers(tree, world.layers)
        return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in leaves])

    states, logs = small_world.path(world)
    for round in range(2):
        votes = np.zeros(2 * half, int)
        for _, data, passing in clients(world, round):
            rows = next(valid(data))
            down = {name: packet.values for name, packet in passing.down.items()}
            found = sensitive(**down, x=data.x[rows], y=data.y[rows])
            best = np.argsort(-flat(found))[:half]
            mask = np.isin(np.arange(2 * half), best)
            sent = passing.up["mask"].mask
            sent = np.concatenate([m.reshape(-1) for m in jax.tree.leaves(sent)])
            np.testing.assert_array_equal(sent, mask)
            assert passing.metrics["count"] == len(rows)
            votes += mask
        kept = flat(states[round + 1].server.mask)
        assert (
            kept.sum() == half
            and logs[round].clients.up["mask"].entries.sum() == 3 * half
        )
        assert votes[kept].min() >= votes[~kept].max() > 0
        same(states[round + 1].server._replace(mask=world.model.mask), world.model)
