"""ZeroFL: a round by hand, and leaves that stay dense."""

import jax

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
