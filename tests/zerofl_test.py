"""ZeroFL: a round by hand, and the gradient of weights that a layer does not use."""

import jax
import jax.numpy as jnp

from sparsefl_jax.algorithms import zerofl
from sparsefl_jax.algorithms.zerofl import _sparse
from sparsefl_jax.testing import small_world
from tests import zerofl_by_hand as by_hand
from tests.averaging_by_hand import first_round


def test_a_round_by_hand():
    uplink = "top_of_diff"
    world = small_world.make_world(zerofl, by_hand.SPARSE | {"uplink": uplink})
    passings, server = first_round(world)
    passings, state = jax.device_get(passings), small_world.start(world)
    by_hand.sends(world, 0, state, passings, uplink)
    by_hand.aggregates(world, 0, state.server, passings, server, uplink)


def test_the_gradient_reaches_weights_that_the_layer_does_not_use():
    """d(sum of squares) by hand: twice what the layer uses, also where that is 0."""
    select, w = {"w": True, "b": False}, jnp.array([1.0, -4.0, 3.0, 0.5])
    params = {"w": w, "b": w}
    used = _sparse(params, 0.5, select)
    assert used["w"].tolist() == [0, -4, 3, 0] and used["b"].tolist() == w.tolist()

    def loss(params):
        used = _sparse(params, 0.5, select)["w"]
        return jnp.sum((used - 1) ** 2)

    assert jax.grad(loss)(params)["w"].tolist() == [-2, -10, 4, -2]
