"""FIARSE's rounds in the small world, in NumPy."""

import jax
import numpy as np

from sparsefl_jax.algorithms import fedavg, fiarse
from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference.averaging_by_hand import RATE, clients, mean, moved, valid
from tests.reference.by_hand import LAYERS, close, gradient
from tests.reference.width_by_hand import with_budgets

SIZE = (small_world.FEATURES + small_world.CLASSES) * small_world.HIDDEN


def holds_the_largest(world, biased=True):
    """Computes all rounds: who holds what, the gradient, and means over holders.

    At size 1 it is the plain mean of all clients.

    Args:
      world: of `fiarse` on kernels.
      biased: whether the gradient passes the threshold.
    """
    states = small_world.path(world)[0]
    for round in range(len(world.cohorts)):
        old, new = (states[r].server for r in (round, round + 1))
        sums = {n: np.zeros(old.params[n]["kernel"].shape) for n in LAYERS}
        counts, others = {n: np.zeros_like(s) for n, s in sums.items()}, []
        for index, data, passing in clients(world, round):
            held, threshold = largest(old.params, small_world.BUDGETS[index])
            sent = unpack_model(passing.up)
            for name in LAYERS:
                for mask in (unpack_model(passing.down).mask, sent.mask):
                    np.testing.assert_array_equal(mask[name]["kernel"], held[name])
            rate = RATE * 0.9**round
            params, stats = train(old, held, threshold, data, rate, biased)
            close((sent.params, sent.stats), (params, stats))
            for name in LAYERS:
                sums[name] += params[name]["kernel"] * held[name]
                counts[name] += held[name]
            others.append(({n: params[n]["bias"] for n in LAYERS}, stats))
        biases, stats = mean(others)
        for name in LAYERS:
            before = np.asarray(old.params[name]["kernel"])
            count = counts[name]
            kernel = np.where(count > 0, sums[name] / np.maximum(count, 1), before)
            close(new.params[name]["kernel"], kernel)
            still = np.asarray(new.params[name]["kernel"])[count == 0]
            np.testing.assert_array_equal(still, before[count == 0])
            close(new.params[name]["bias"], biases[name])
        close(new.stats, stats)
    whole = with_budgets(small_world.make_world(fiarse, {}), 1.0)
    plain = small_world.make_world(fedavg, {"weighting": "uniform"})
    got, want = (
        small_world.run(w, small_world.start(w), 0)[0].server for w in (whole, plain)
    )
    close((got.params, got.stats), (want.params, want.stats))


def largest(params, budget):
    """Returns the masks of the int(p n) largest weights, and the smallest of them."""
    sizes = {n: np.abs(np.asarray(params[n]["kernel"])) for n in LAYERS}
    ordered = np.sort(np.concatenate([sizes[n].ravel() for n in LAYERS]))[::-1]
    threshold = ordered[int(budget * SIZE) - 1]
    return {n: sizes[n] >= threshold for n in LAYERS}, threshold


def train(model, held, threshold, data, rate, biased):
    """Trains one epoch; the weights below the threshold take no part."""
    params = jax.tree.map(np.asarray, model.params)
    for name in LAYERS:
        kernel = params[name]["kernel"]
        params[name] = params[name] | {"kernel": kernel * held[name]}
    velocity, stats = jax.tree.map(np.zeros_like, params), model.stats
    for rows in valid(data):
        seen, factors = jax.tree.map(np.copy, params), {}
        for name in LAYERS:
            size = np.abs(params[name]["kernel"])
            reaches = size >= threshold
            seen[name]["kernel"] *= reaches
            slope = 2 * threshold / (size + threshold) ** 2 if biased else 0.0
            factors[name] = reaches * (1 + slope * size)
        found = gradient(seen, stats, data.x[rows], data.y[rows])
        grads, stats = jax.device_get(found)
        for name in LAYERS:
            grads[name]["kernel"] = grads[name]["kernel"] * factors[name]
        params, velocity = moved(params, velocity, grads, rate)
        for name in LAYERS:
            params[name]["kernel"] *= held[name]
    return params, stats
