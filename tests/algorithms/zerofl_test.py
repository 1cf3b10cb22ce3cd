"""ZeroFL: a round by hand, and leaves that stay dense."""

import jax
import numpy as np
import pytest

from sparsefl_jax.algorithms import zerofl
from sparsefl_jax.testing import small_world
from tests.reference import zerofl_by_hand as by_hand
from tests.reference.averaging_by_hand import first_round


def test_a_round_by_hand():
    uplink = "top_of_diff"
    world = small_world.make_world(zerofl, by_hand.SPARSE | {"uplink": uplink})
    passings, server = first_round(world)
    passings, state = jax.device_get(passings), small_world.start(world)
    by_hand.sends(world, 0, state, passings, uplink)
    by_hand.aggregates(world, 0, state.server, passings, server, uplink)


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
