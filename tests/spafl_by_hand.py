"""SpaFL's client in NumPy, from the formulas, for the contract test."""

import jax
import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from tests.by_hand import gradient as cross_entropy_gradient

RATE, MOMENTUM, ALPHA = 0.1, 0.9, 0.05


def trains_thresholds(world):
    """Clients train as the formulas say; the server has the plain mean of thresholds.

    Client 2 takes part in rounds 0 and 1, the second time with its own weights moved by
    eq. (13), and with the server's thresholds; alone with nothing of the server.
    """
    states = small_world.path(world)[0]
    first, start = (jax.tree.map(lambda v: v[2], states[i].clients) for i in (0, 0))
    weights, own, stats = *first.trained, first.stats
    for round in range(2):
        server = states[round].server
        data = plain_loop.inputs(world, states[round], round, 2)[-1]
        if world.algorithm.broadcast(None, None, server):
            own, weights = server.thresholds, moved(weights, server.delta)
        rate = RATE * 0.9**round
        weights, own, stats = steps(weights, own, stats, data, rate)
        row = jax.tree.map(lambda v: v[2], states[round + 1].clients)
        close((*row.trained, row.stats), (weights, own, stats))
        sent = [
            p.up["thresholds"].values for p in plain_loop.passings(world, round) if p.up
        ]
        if sent:
            mean = jax.tree.map(lambda *v: sum(v) / len(v), *sent)
            close(states[round + 1].server.thresholds, mean)
    far = jax.tree.map(lambda a, b: np.abs(a - b).max(), own, start.trained.thresholds)
    assert max(jax.tree.leaves(far)) > 1e-3


def close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


def moved(weights, delta):
    """Eq. (13), filter by filter."""
    new = jax.tree.map(np.array, weights)
    for path, move in delta.items():
        kernel = _kernel(new, path)
        for i, step in enumerate(move):
            kernel[:, i] -= step * np.sign(kernel[:, i].sum()) / len(kernel)
    return new


def _kernel(weights, path):
    layer, leaf = path.split("/")
    return weights[layer][leaf]


def steps(weights, thresholds, stats, data, rate):
    """Runs an epoch of momentum SGD with the gradients of methods.md 1.1."""
    velocity = jax.tree.map(np.zeros_like, (weights, thresholds))
    for order, weight in zip(data.order[0], data.weight[0], strict=True):
        rows = order[np.asarray(weight) > 0]
        if not rows.size:
            break
        alive, used, pruned = {}, {}, jax.tree.map(np.array, weights)
        for path, threshold in thresholds.items():
            mean = np.abs(_kernel(weights, path)).mean(0)
            dead = np.mean(mean > threshold) <= 0.01
            used[path] = np.where(dead, 0, threshold).astype(np.float32)
            alive[path] = mean > used[path]
            _kernel(pruned, path)[:] *= alive[path]
        g, stats = cross_entropy_gradient(pruned, stats, data.x[rows], data.y[rows])
        g, of_thresholds = jax.tree.map(np.array, g), {}
        for path in thresholds:
            kernel, dense = _kernel(weights, path), _kernel(g, path)
            through = (dense * kernel).sum(0)
            of_thresholds[path] = -through - ALPHA * np.exp(-used[path])
            dense[:] = alive[path] * dense + np.sign(kernel) / len(kernel) * through
        grads = g, of_thresholds
        velocity = jax.tree.map(lambda v, d: MOMENTUM * v + d, velocity, grads)
        now = weights, used
        step = jax.tree.map(lambda v, r=rate: r * v, velocity)
        weights, thresholds = jax.tree.map(np.subtract, now, step)
    return weights, thresholds, stats
