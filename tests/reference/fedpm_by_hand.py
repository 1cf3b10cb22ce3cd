"""FedPM's client and server from the formulas, for the contract test."""

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from tests.reference.averaging_by_hand import RATE, moved, valid
from tests.reference.by_hand import close, gradient
from tests.reference.work_by_hand import same as same_work

EPSILON = 0.01


def trains_scores(world):
    """The merge by NumPy in every round; client 2, in rounds 0 and 1, step by step."""
    states, _ = small_world.path(world)
    for round, state in enumerate(states[1:]):
        votes = [p.up["mask"].values for p in plain_loop.passings(world, round)]
        mean = jax.tree.map(lambda *m: np.mean(m, 0) * (1 - 2 * EPSILON), *votes)
        odds = jax.tree.map(lambda p: (p + EPSILON) / (1 - EPSILON - p), mean)
        close(state.server.scores, jax.tree.map(np.log, odds), 1e-5)
    velocity = jax.tree.map(jnp.zeros_like, states[0].server.scores)
    for round in range(2):
        place = world.cohorts[round].tolist().index(2)
        server = states[round].server
        passing = plain_loop.passings(world, round)[place]
        key, *_, info, data = plain_loop.inputs(world, states[round], round, 2)
        key = jax.random.split(jax.random.fold_in(key, info.index), 3)[2]
        train_key, mask_key = jax.random.split(key)
        scores, stats, velocity, seen = steps(
            server, data, train_key, RATE * 0.9**round, velocity
        )
        mask = draw(mask_key, scores)
        close(passing.up["mask"].values, mask, 0)
        assert (passing.up["mask"].bits, passing.up["mask"].index) == (1, "entropy")
        close(passing.up["stats"].values, stats)
        close(jax.tree.leaves(passing.client), jax.tree.leaves(velocity))
        dense = jax.tree.map(lambda _: float(small_world.SIZES[2]), seen)
        same_work(passing.metrics["work"], (seen, seen, dense, 0.0))


def draw(key, scores):
    """A mask: a key a leaf; 16 random bits, in the middle of their step, below p."""
    leaves, treedef = jax.tree.flatten(scores)
    keys = jax.random.split(key, len(leaves))
    drawn = [
        (np.asarray(jax.random.bits(k, s.shape, np.uint16)) + 0.5) / 2**16
        < 1 / (1 + np.exp(-np.asarray(s, np.float64)))
        for k, s in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, drawn)


def steps(server, data, key, rate, velocity):
    """Runs an epoch of momentum SGD on scores, and counts alive entries."""
    scores, stats = server.scores, server.stats
    seen = jax.tree.map(lambda _: 0.0, scores)

    def by_score(g, w, s):
        p = 1 / (1 + np.exp(-s))
        return g * w * p * p * (1 - p)

    for step, rows in enumerate(valid(data)):
        own = jax.random.fold_in(jax.random.fold_in(key, 0), step)
        mask = draw(jax.random.split(own)[0], scores)
        drawn = jax.tree.map(lambda m, w: np.where(m, w, 0), mask, server.frozen)
        grads, stats = gradient(drawn, stats, data.x[rows], data.y[rows])
        grads = jax.tree.map(by_score, grads, server.frozen, scores)
        scores, velocity = moved(scores, velocity, grads, rate)
        alive = jax.tree.map(lambda m, n=rows.size: n * np.mean(m), mask)
        seen = jax.tree.map(jnp.add, seen, alive)
    return scores, stats, velocity, seen
