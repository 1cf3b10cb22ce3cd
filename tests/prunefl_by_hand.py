"""PruneFL's rule as a greedy loop, and its clients step by step."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.sparsity import masks, trees
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.wire.messages import unpack_model
from tests.by_hand import gradient as cross_entropy_gradient
from tests.work_by_hand import BATCH, SORTING, densities, layers, plus, times
from tests.work_by_hand import same as same_work

RATE, MOMENTUM = 0.1, 0.9  # of the world's clients in round 0
TIMES, CONSTANT, CAP, PRUNE, HALF_LIFE = (1.0, 2.0), 20.0, 0.55, 0.3, 2
RULE = {
    "layer_time": TIMES,
    "constant_time": CONSTANT,
    "max_density": CAP,
    "prune_rate": PRUNE,
}


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


def reconfigured(world, params, mask, squared, rate=PRUNE):
    """The new mask and parameters of a model in the world, by `greedy`."""
    select = world.layers
    params, mask, squared = jax.device_get((params, mask, squared))
    layers = [trees.layers(tree, select) for tree in (params, mask, squared)]
    chosen = jax.tree.leaves(select)
    dense = sum(
        g.sum() for g, s in zip(jax.tree.leaves(squared), chosen, strict=True) if not s
    )
    size = sum(m.size for m in layers[1])
    new = greedy(
        *layers,
        rate=rate,
        times=TIMES,
        constant=CONSTANT,
        cap=int(CAP * size),
        dense=dense,
    )
    new = trees.replace_layers(mask, select, new)
    return new, jax.tree.map(lambda p, m: np.where(m, p, 0), params, new)


def steps(model, data, rate, batches, velocity):
    """SGD with momentum within the mask, over the minibatches with these numbers."""
    params, mask, stats = model
    grads = []
    for number in batches:
        rows = data.order[0][number][np.asarray(data.weight[0][number]) > 0]
        if not rows.size:
            continue
        g, stats = cross_entropy_gradient(params, stats, data.x[rows], data.y[rows])
        grads.append(g)
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, g)
        params = jax.tree.map(lambda p, v: p - rate * v, params, velocity)
        params = masks.apply(params, mask)
    return model._replace(params=params, stats=stats), grads, velocity


def same(got, want, atol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 0, atol), got, want)


def _zeros(model):
    return jax.tree.map(jnp.zeros_like, model.params)


def _squares(world, round, index):
    """Returns a client's trained model in a round, and its squared summed gradient."""
    state = small_world.path(world)[0][round]
    data, model = plain_loop.inputs(world, state, round, index)[-1], state.server.model
    every, rate = range(len(data.order[0])), RATE * 0.9**round
    trained, grads, _ = steps(model, data, rate, every, _zeros(model))
    return trained, jax.tree.map(lambda *g: sum(g) ** 2, *grads)


FEDERATED = {"reconfigure_every": 1, "half_life": float(HALF_LIFE)} | RULE


def accumulates(world):
    """Reconfigures in rounds 1, 2, 3 by all that its clients saw since the last one.

    Client 2 took part in rounds 0 and 1, which count together; client 1 in 1 and 2,
    which do not.
    """
    states, logs = small_world.path(world)
    for round in range(3):
        sent = plain_loop.passings(world, round)[0].up["squared_gradients"].sent
        assert sent == (round > 0)
        np.testing.assert_array_equal(logs[round].up["squared_gradients"].sent, sent)
    same(states[1].server.model.mask, states[0].server.model.mask)
    for round in (1, 2):
        total, mean, weight = 0.0, 0.0, 0
        cohort = world.cohorts[round].tolist()
        for passing, index in zip(
            plain_loop.passings(world, round), cohort, strict=True
        ):
            trained, squared = _squares(world, round, index)
            if (round, index) == (1, 2):
                before = _squares(world, 0, index)[1]
                squared = jax.tree.map(jnp.add, squared, before)
            same(passing.up["squared_gradients"].values, squared, 1e-5)
            n, weight = small_world.SIZES[index], weight + small_world.SIZES[index]
            total = jax.tree.map(lambda t, z, n=n: t + n * z, total or _zeros(trained),
                                 squared)  # fmt: skip
            mean = jax.tree.map(lambda t, p, n=n: t + n * p, mean or _zeros(trained),
                                trained.params)  # fmt: skip
        old = states[round].server.model.mask
        mean = jax.tree.map(lambda p, weight=weight: p / weight, mean)
        rate = PRUNE * 0.5 ** (round / HALF_LIFE)
        mask, params = reconfigured(world, mean, old, total, rate)
        new = states[round + 1].server
        same(new.model.mask, mask, 0)
        same(new.model.params, params)
        assert new.since == round + 1
        _moves(old, mask)


def _moves(old, new):
    """Something went and something came."""
    for a, b in itertools.permutations((old, new)):
        gone = jax.tree.map(lambda x, y: np.any(x & ~y), a, b)
        assert any(jax.tree.leaves(gone))


SEARCH = {
    "num_batches": 2,
    "reconfigure_every": 2,
    "max_iterations": 3,
    "start_accuracy": 0.0,
} | RULE


def searches(world):
    """Three passes over two batches, a cut after the first and the third, in round 1.

    The momentum goes on; client 1 has one batch only. The server takes the mean on the
    union of the masks.
    """
    states, _ = small_world.path(world)
    cohort, found = world.cohorts[1].tolist(), []
    for passing, index in zip(plain_loop.passings(world, 1), cohort, strict=True):
        data, model = (
            plain_loop.inputs(world, states[1], 1, index)[-1],
            states[1].server.model,
        )
        velocity, total = _zeros(model), _zeros(model)
        number, work = (
            min(small_world.SIZES[index], 2 * BATCH),
            times(0.0, layers(1.0, 1.0)),
        )
        for iteration in range(3):
            model, grads, velocity = steps(model, data, 0.9 * RATE, (0, 1), velocity)
            work = plus(work, times(number, densities(model.mask)))
            total = jax.tree.map(lambda t, *g: t + sum(x**2 for x in g), total, *grads)
            if iteration != 1:
                mask, params = reconfigured(world, model.params, model.mask, total)
                model, total = model._replace(params=params, mask=mask), _zeros(model)
        sent = unpack_model(passing.up)
        same(sent.mask, model.mask, 0)
        same((sent.params, sent.stats), (model.params, model.stats), 1e-5)
        assert passing.metrics["iterations"] == 3
        gradients = times(3 * number, layers(1.0, 1.0))
        same_work(passing.metrics["work"], (work, work, gradients, 2 * SORTING))
        _moves(states[1].server.model.mask, model.mask)
        found.append(model)
    new, weights = states[2].server.model, [small_world.SIZES[i] for i in cohort]
    same(new.mask, jax.tree.map(lambda *m: np.any(m, 0), *(f.mask for f in found)))
    mean = jax.tree.map(
        lambda *p: np.average(p, 0, weights), *(f.params for f in found)
    )
    same(new.params, mean, 1e-5)
