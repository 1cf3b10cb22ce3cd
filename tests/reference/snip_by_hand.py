"""SNIP and GraSP from their formulas, for the contract test."""

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.sparsity import trees
from sparsefl_jax.testing import small_world
from tests.reference.averaging_by_hand import clients, valid
from tests.reference.by_hand import gradient, same


def sensitive(params, stats, x, y):
    """Returns |w dL/dw|."""
    grads, _ = gradient(params, stats, x, y)
    return jax.tree.map(lambda w, g: np.abs(w * g), params, grads)


@jax.jit
def flows(params, stats, x, y, temperature=200.0):
    """w * Hg with the kernels' whole Hessian, over every other sample and the rest."""

    def loss(params):
        total = 0.0
        for half in (slice(0, None, 2), slice(1, None, 2)):
            if len(y[half]):
                logits, _ = small_world.tiny_model().apply(
                    params, stats, x[half], train=True
                )
                told = jax.nn.log_softmax(logits / temperature)
                total -= jnp.mean(jnp.take_along_axis(told, y[half][:, None], 1))
        return total

    flat, unflatten = jax.flatten_util.ravel_pytree(params)
    kernels = jax.flatten_util.ravel_pytree(
        {name: {k: 0 * v + (k == "kernel") for k, v in layer.items()}
         for name, layer in params.items()}
    )[0]  # fmt: skip
    gradient = jax.grad(lambda flat: loss(unflatten(flat)))
    return unflatten(flat * (jax.jacrev(gradient)(flat) @ (kernels * gradient(flat))))


def votes_for(world, scores):
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
            found = scores(**down, x=data.x[rows], y=data.y[rows])
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
