"""References and clients of methods without the package's training loop."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.core.types import Batches, ClientInfo, Context, ServerContext
from sparsefl_jax.models import Model
from sparsefl_jax.testing import small_world
from sparsefl_jax.wire import charges, packets

KEY = jax.random.key(0)
LAYERS = ("fc1", "fc2")  # of the small world


def needed(factory) -> dict:
    """Returns values of a factory's arguments that have no default."""
    values = {"clients": 5, "density": 0.5, "rounds": 4}
    taken = inspect.signature(factory).parameters
    usual = {k: taken[k].default for k in values if k in taken}
    lacking = [k for k, v in usual.items() if v is inspect.Parameter.empty]
    if usual.get("rounds", 0) is None:  # or another argument in its place
        lacking.append("rounds")
    return {k: values[k] for k in lacking}


@functools.partial(jax.jit, static_argnames="train")
def gradient(params, stats, x, y, train=True):
    """Returns the gradient of a batch's mean cross-entropy, and new statistics."""

    def loss(params):
        logits, new = small_world.tiny_model().apply(params, stats, x, train=train)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
        return -jnp.mean(chosen), new

    return jax.grad(loss, has_aux=True)(params)


def model_of(objective, macs, params=None) -> Model:
    """Returns a model whose loss is any function of its parameters.

    Args:
      objective: `(key, params, stats, x, y, weight) -> (loss, (stats, sums))`, which
        leaves the statistics as they are.
      macs: a tree like the parameters.
      params: the initial ones, where a client's first state takes their shapes.
    """
    first = macs if params is None else params

    def apply(params, stats, x, *, train, weight=None, key=None):
        return (key, params, stats, x), stats

    def loss(arguments, targets, weight):
        value, (_, sums) = objective(*arguments, targets, weight)
        return value, sums

    return Model(lambda key: (_arrays(first), {}), apply, macs, loss=loss)


def bare(params) -> Model:
    """Returns a model of these parameters that computes nothing."""
    macs = jax.tree.map(lambda _: 1, params)
    return Model(lambda key: (_arrays(params), {}), None, macs)


def mean_of(losses, is_right=lambda params: False):
    """Returns the objective whose mean is that of `losses(params, x)`, one a sample."""

    def objective(key, params, stats, x, y, weight):
        count = jnp.sum(weight)
        total = jnp.sum(jnp.where(weight > 0, losses(params, x), 0.0))
        right = jnp.where(is_right(params), count, 0.0)
        sums = {"loss": total, "correct": right, "count": count}
        return total / jnp.maximum(count, 1), (stats, sums)

    return objective


# Loss sum(w * x), its gradient the mean of x; right while w[0] is below 4.25.
linear_loss = mean_of(lambda p, x: x @ p["w"], lambda p: p["w"][0] < 4.25)


def batches(steps, row, *, epochs=1, own=None) -> Batches:
    """Returns two equal samples a step; a client has those of its `own` first steps."""
    x = jnp.tile(jnp.asarray(row, jnp.float32), (2 * steps, 1))
    order = jnp.arange(2 * steps, dtype=jnp.int32).reshape(1, steps, 2)
    order = jnp.tile(order, (epochs, 1, 1))
    valid = jnp.arange(steps) < (steps if own is None else own)
    weight = jnp.broadcast_to(valid.astype(jnp.float32)[None, :, None], order.shape)
    return Batches(x, jnp.zeros(2 * steps, jnp.int32), order, weight, jnp.int32(steps))


def context(round=0, last=-1, *, index=0, size=1, budget=1.0) -> Context:
    """Returns what a client of so many samples knows of a round."""
    info = ClientInfo(jnp.int32(index), jnp.int32(size), jnp.float32(budget))
    return Context(jnp.int32(round), jnp.int32(last), info)


def server_context(round=0, heard=1):
    """Returns what `aggregate` is told of a round."""
    return ServerContext(jnp.int32(round), jnp.int32(heard))


def bits(message) -> int:
    """Returns the bits that are charged for a message."""
    charged = charges.message_bits(packets.layout(message), packets.count(message))
    return int(charged.total)


def one_client(method, server, ctx, data, key=KEY):
    """Returns the downlink, the uplink and the metrics of a client's first round."""
    down = method.broadcast(key, ctx, server)
    client = method.first_state(key, server, ctx.client)
    up, _, metrics = method.update(key, ctx, down, client, data)
    return down, up, metrics


def merged(method, server, *sent, round=0, key=KEY):
    """Returns the server and its metrics after pairs of a context and an uplink."""
    summands = [method.contribute(*one) for one in sent]
    total = jax.tree.map(lambda *v: functools.reduce(jnp.add, v), *summands)
    return method.aggregate(key, server_context(round, len(sent)), server, total)


def same(tree, want):
    jax.tree.map(np.testing.assert_array_equal, tree, want)


def close(tree, want, atol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 0, atol), tree, want)


def _arrays(tree):
    return jax.tree.map(jnp.float32, tree)
