"""ZeroFL: a round by hand, and the gradient of weights that a layer does not use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


@pytest.mark.slow
def test_leaves_that_are_not_prunable_stay_dense():
    """Whatever their size: they travel whole and the deployed model has them whole."""
    arguments = by_hand.SPARSE | {"prunable": ("fc2/kernel",)}
    world = small_world.make_world(zerofl, arguments)
    passings, server = first_round(world)
    for passing in jax.device_get(passings):
        assert passing.up["weights"].mask["fc1"] == {"bias": None, "kernel": None}
        assert passing.up["dense"].values["fc1"]["kernel"].shape == (8, 16)
        assert passing.metrics["work"].weight_grad["fc1"]["kernel"] == np.float32(
            passing.metrics["count"]
        )
    deployed = world.algorithm.deploy(world.key, server)["global"]
    assert deployed.mask["fc1"]["kernel"].all()
    assert deployed.mask["fc2"]["kernel"].sum() == 20  # ceil(0.3 * 64)
