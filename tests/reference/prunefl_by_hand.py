"""PruneFL's rule as a greedy loop, and its clients step by step."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference.averaging_by_hand import RATE, clients, mean, moved, sizes, valid
from tests.reference.by_hand import close, gradient
from tests.reference.work_by_hand import BATCH, SORTING, densities, layers, plus, times
from tests.reference.work_by_hand import same as same_work

TIMES, CONSTANT, CAP, PRUNE, HALF_LIFE = (1.0, 2.0), 20.0, 0.55, 0.3, 2
RULE = {"layer_time": TIMES, "constant_time": CONSTANT}
RULE |= {"max_density": CAP, "prune_rate": PRUNE}


def greedy(weights, alive, squared, *, rate, times, constant, cap, dense=0.0):
    """The layers' masks: one candidate after another, in float64.

    Args:
      weights, alive, squared: lists of arrays, the layers.
      rate: share of the alive weights of a layer that may go.
      times, constant: time of a layer's weight, and of no weight.
      cap: how many weights may be alive.
      dense: the gain of leaves that are no layers.
    """
    stay, gain, time = [], float(dense), constant
    for w, m, g, c in zip(weights, alive, squared, times, strict=True):
        order = sorted(np.flatnonzero(m), key=lambda i, w=w: (-abs(w.flat[i]), i))
        number = len(order) - math.floor(rate * len(order) + 1e-6)
        keep = np.zeros(m.size, bool)
        keep[order[:number]] = True
        stay.append(keep)
        gain += g.ravel()[keep].sum(dtype=np.float64)
        time += c * number
    candidates = sorted(
        (-float(g.flat[i]) / c, layer, i)
        for layer, (g, c) in enumerate(zip(squared, times, strict=True))
        for i in np.flatnonzero(~stay[layer])
    )
    for worth, layer, i in candidates:
        if -worth <= gain / time or sum(k.sum() for k in stay) >= cap:
            break
        stay[layer][i] = True
        gain += squared[layer].flat[i]
        time += times[layer]
    return [k.reshape(m.shape) for k, m in zip(stay, alive, strict=True)]


def reconfigured(world, params, mask, squared):
    """The new mask and parameters of a model in the world, by `greedy`."""
    select = world.layers
    params, mask, squared = jax.device_get((params, mask, squared))
    layers = [trees.layers(tree, select) for tree in (params, mask, squared)]
    chosen = jax.tree.leaves(select)
    dense = sum(
        g.sum() for g, s in zip(jax.tree.leaves(squared), chosen, strict=True) if not s
    )
    size = sum(m.size for m in layers[1])
    limits = {"times": TIMES, "constant": CONSTANT, "cap": int(CAP * size)}
    new = greedy(*layers, rate=PRUNE, dense=dense, **limits)
    new = trees.replace_layers(mask, select, new)
    return new, jax.tree.map(lambda p, m: np.where(m, p, 0), params, new)


def steps(model, data, rate, velocity):
    """SGD with momentum within the mask, over the first two minibatches."""
    params, mask, stats = model
    grads = []
    for rows in itertools.islice(valid(data), 2):
        g, stats = gradient(params, stats, data.x[rows], data.y[rows])
        grads.append(g)
        params, velocity = moved(params, velocity, g, rate)
        params = masks.apply(params, mask)
    return model._replace(params=params, stats=stats), grads, velocity


def _zeros(model):
    return jax.tree.map(jnp.zeros_like, model.params)


FEDERATED = {"reconfigure_every": 1, "half_life": float(HALF_LIFE)} | RULE


def _moves(old, new):
    """Something went and something came."""
    for a, b in itertools.permutations((old, new)):
        gone = jax.tree.map(lambda x, y: np.any(x & ~y), a, b)
        assert any(jax.tree.leaves(gone))


SEARCH = RULE | {"num_batches": 2, "reconfigure_every": 2}
SEARCH |= {"max_iterations": 3, "start_accuracy": 0.0}


def searches(world):
    """Three passes over two batches, a cut after the first and the third, in round 1.

    The momentum goes on; client 1 has one batch only. The server takes the mean on the
    union of the masks.
    """
    states, _ = small_world.path(world)
    found = []
    for index, data, passing in clients(world, 1):
        model = states[1].server.model
        velocity, total = _zeros(model), _zeros(model)
        number = min(small_world.SIZES[index], 2 * BATCH)
        work = times(0.0, layers(1.0, 1.0))
        for iteration in range(3):
            model, grads, velocity = steps(model, data, 0.9 * RATE, velocity)
            work = plus(work, times(number, densities(model.mask)))
            total = jax.tree.map(lambda t, *g: t + sum(x**2 for x in g), total, *grads)
            if iteration != 1:
                mask, params = reconfigured(world, model.params, model.mask, total)
                model, total = model._replace(params=params, mask=mask), _zeros(model)
        sent = unpack_model(passing.up)
        close(sent.mask, model.mask, 0)
        close((sent.params, sent.stats), (model.params, model.stats), 1e-5)
        assert passing.metrics["iterations"] == 3
        gradients = times(3 * number, layers(1.0, 1.0))
        same_work(passing.metrics["work"], (work, work, gradients, 2 * SORTING))
        _moves(states[1].server.model.mask, model.mask)
        found.append(model)
    new = states[2].server.model
    close(new.mask, jax.tree.map(lambda *m: np.any(m, 0), *(f.mask for f in found)))
    close(new.params, mean([f.params for f in found], sizes(world, 1)), 1e-5)
