"""A reference written out without the package's training loop."""

import jax
import jax.numpy as jnp

from sparsefl_jax.models import Model
from sparsefl_jax.testing import small_world


@jax.jit
def gradient(params, stats, x, y):
    """Returns the gradient of a batch's mean cross-entropy, and new statistics."""

    def loss(params):
        logits, new = small_world.tiny_model().apply(params, stats, x, train=True)
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


def _arrays(tree):
    return jax.tree.map(jnp.float32, tree)
