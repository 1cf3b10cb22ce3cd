"""Federated averaging without the package's training loop, and checks against it."""

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.algorithms import fedprox
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference.by_hand import close, gradient, server_context

RATE, MOMENTUM = 0.1, 0.9  # of the world's clients in round 0
MU = 0.5  # of FedProx


def valid(data):
    """Yields the rows of each minibatch of an epoch that has any."""
    for order, weight in zip(data.order[0], data.weight[0], strict=True):
        rows = np.asarray(order)[np.asarray(weight) > 0]
        if rows.size:
            yield rows


def moved(params, velocity, grads, rate):
    """Takes a step of SGD with momentum; returns parameters and velocity."""
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - rate * v, params, velocity), velocity


def clients(world, round):
    """Yields a round's clients: the number, the batches, the messages."""
    state = small_world.path(world)[0][round]
    ids = world.cohorts[round].tolist()
    for index, passing in zip(ids, plain_loop.passings(world, round), strict=True):
        yield index, plain_loop.inputs(world, state, round, index)[-1], passing


def sizes(world, round):
    """Returns the numbers of samples of a round's clients."""
    return np.array([small_world.SIZES[i] for i in world.cohorts[round]], np.float64)


def mean(trees, weights=None):
    """Returns the mean of trees, by default with equal weights."""
    return jax.tree.map(lambda *v: np.average(v, 0, weights), *trees)


def flat(tree):
    """Returns all entries of a tree in its order."""
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(jax.device_get(tree))])


def local_sgd(model, data, rate, velocity=None, pull=0.0):
    """Trains by masked SGD with momentum over the valid samples of one epoch.

    `pull` is FedProx's mu: it pulls the weights back to where they start.
    """
    params = masks.apply(model.params, model.mask)
    velocity = velocity or jax.tree.map(jnp.zeros_like, params)
    stats = model.stats
    for rows in valid(data):
        grads, stats = gradient(params, stats, data.x[rows], data.y[rows])
        grads = jax.tree.map(
            lambda g, p, p0: g + pull * (p - p0), grads, params, model.params
        )
        params, velocity = moved(params, velocity, grads, rate)
        params = masks.apply(params, model.mask)
    return params, stats, velocity


def headline(world, server):
    return next(iter(world.algorithm.deploy(world.key, server).values()))


def averaged(world, pull=0.0):
    """Returns what a round of FedAvg on alive weights makes of the first state."""
    state = small_world.start(world)
    model, ids = headline(world, state.server), world.cohorts[0].tolist()
    trained = [
        local_sgd(model, plain_loop.inputs(world, state, 0, i)[-1], RATE, pull=pull)[:2]
        for i in ids
    ]
    return mean(trained, sizes(world, 0))


def first_round(world):
    """Computes round 0 without the simulator: the messages and the new server."""
    state = small_world.start(world)
    key = jax.random.fold_in(jax.random.fold_in(world.key, 3), 0)
    passings = [
        plain_loop.client_by_wire(world)(*plain_loop.inputs(world, state, 0, i))
        for i in world.cohorts[0].tolist()
    ]
    total = jax.tree.map(lambda *v: sum(v), *(p.summand for p in passings))
    server, _ = plain_loop.aggregate_jit(world)(
        key, server_context(0, len(passings)), state.server, total
    )
    return passings, server


def is_fedavg(world, server=None, pull=0.0):
    """Checks that a model is the mean of what clients train within their mask."""
    model = headline(world, first_round(world)[1] if server is None else server)
    close((model.params, model.stats), averaged(world, pull))


def fedavg_by_hand(world):
    is_fedavg(world, small_world.path(world)[0][1].server)


def adam_by_hand(world):
    """Checks Adam's first step, which is nearly the rate times the sign."""
    old, new = (small_world.path(world)[0][i].server.params for i in (0, 1))
    delta = jax.tree.map(jnp.subtract, averaged(world)[0], old)
    step = jax.tree.map(lambda d: 0.01 * d / (jnp.abs(d) + 1e-8), delta)
    close(new, jax.tree.map(jnp.add, old, step), atol=1e-5)


def is_pulled(world):
    """Checks FedAvg with the pull in the clients' gradient; at mu = 0, plain FedAvg."""
    is_fedavg(world, pull=MU)
    is_fedavg(small_world.make_world(fedprox, {"mu": 0.0}))


def keeps_velocity(world):
    """Checks that client 2, drawn in rounds 0 and 1, continues with its momentum."""
    states, velocity = small_world.path(world)[0], None
    for round in range(2):
        model = headline(world, states[round].server)
        data = plain_loop.inputs(world, states[round], round, 2)[-1]
        params, _, velocity = local_sgd(model, data, RATE * 0.9**round, velocity)
        place = world.cohorts[round].tolist().index(2)
        up = plain_loop.passings(world, round)[place].up
        if "delta" in up:
            params = jax.tree.map(jnp.subtract, params, model.params)
        sent = up["delta"].values if "delta" in up else unpack_model(up).params
        close(sent, params)
