"""The tiny network's passes in NumPy, with sparse weights and sparse saved inputs."""

import functools
import math
from fractions import Fraction

import jax
import numpy as np

from sparsefl_jax.testing import plain_loop, small_world
from tests.reference import averaging_by_hand as averaging
from tests.reference import by_hand
from tests.reference.by_hand import LAYERS


def largest(x, share):
    """Where |x| is among the ceil(share n) largest of n; ties are kept."""
    magnitude = np.abs(np.asarray(x))
    k = math.ceil(Fraction(share) * magnitude.size)
    return magnitude >= np.sort(magnitude, None)[-k]


def gradient(params, stats, x, y, shares):
    """Backpropagates by hand; layer l saves the `shares[l]` largest of its inputs."""
    saved = {"fc1": np.where(largest(x, shares["fc1"]), x, 0)}
    hidden = x @ params["fc1"]["kernel"] + params["fc1"]["bias"]
    mean = hidden.mean(0)
    z = np.tanh(hidden - 0.5 * mean)
    saved["fc2"] = np.where(largest(z, shares["fc2"]), z, 0)
    logits = z @ params["fc2"]["kernel"] + params["fc2"]["bias"]
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    g2 = (chances - np.eye(logits.shape[1])[y]) / len(y)
    g1 = (g2 @ params["fc2"]["kernel"].T) * (1 - z**2)
    g1 = g1 - 0.5 * g1.mean(0)  # through the mean
    grads = {
        name: {"kernel": saved[name].T @ g, "bias": g.sum(0)}
        for name, g in (("fc1", g1), ("fc2", g2))
    }
    return grads, {"mean": 0.9 * stats["mean"] + 0.1 * mean}


def trained(model, data, rate, weights, chain, shares):
    """Trains all weights by SGD with momentum over one epoch of valid samples.

    Args:
      model: where training starts, raw weights.
      data: the client's `Batches`.
      rate: of SGD.
      weights: `(kernel) -> kernel`, what the network computes with.
      chain: `(raw kernel, gradient) -> gradient` by the raw kernel.
      shares: `(kernel) -> Fraction`, of the inputs that its layer saves.
    """
    params, stats = double(model.params), double(model.stats)
    velocity = jax.tree.map(np.zeros_like, params)
    for rows in averaging.valid(data):
        used = {n: p | {"kernel": weights(p["kernel"])} for n, p in params.items()}
        kept = {name: shares(used[name]["kernel"]) for name in LAYERS}
        x, y = np.asarray(data.x, np.float64)[rows], np.asarray(data.y)[rows]
        grads, stats = gradient(used, stats, x, y, kept)
        for name in LAYERS:
            raw = params[name]["kernel"]
            grads[name]["kernel"] = chain(raw, grads[name]["kernel"])
        params, velocity = averaging.moved(params, velocity, grads, rate)
    return params, stats


def kernels(function, *trees):
    """Maps over the kernels of trees; biases stay as in the first."""
    return {
        name: layer | {"kernel": function(*(tree[name]["kernel"] for tree in trees))}
        for name, layer in trees[0].items()
    }


def double(tree):
    return jax.tree.map(lambda v: np.asarray(v, np.float64), jax.device_get(tree))


close = functools.partial(by_hand.close, atol=2e-6)


def rounds(world):
    """Yields every round of the world: state, passings and the server after it."""
    states = small_world.path(world)[0]
    for round in range(len(world.cohorts)):
        passings = plain_loop.passings(world, round)
        yield round, states[round], passings, states[round + 1].server


def clients(world, round, state, passings):
    """Yields a round's clients: the rate, the data, the passing."""
    ids = world.cohorts[round].tolist()
    for index, passing in zip(ids, passings, strict=True):
        data = plain_loop.inputs(world, state, round, index)[-1]
        yield averaging.RATE * 0.9**round, data, passing


def mean(world, round, trees):
    """Returns the mean of trees, weighted by samples, zeros included."""
    return averaging.mean(trees, averaging.sizes(world, round))
