"""SparsyFed: a round by hand, exponent 1, and zeros that do not travel."""

import jax
import numpy as np
import pytest

from sparsefl_jax.algorithms import sparsyfed
from sparsefl_jax.testing import small_world
from sparsefl_jax.wire.packets import unpack_model
from tests.reference import sparsyfed_by_hand as by_hand
from tests.reference.averaging_by_hand import first_round
from tests.reference.sparse_passes_by_hand import close

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPARSE = {"density": by_hand.DENSITY}


def a_round(world, sends, merges, *how):
    passings, server = first_round(world)
    passings, state = jax.device_get(passings), small_world.start(world)
    sends(world, 0, state, passings, *how)
    merges(world, 0, state.server, passings, server, *how)


def test_a_round_by_hand():
    """In it no weight that a client received as 0 has become another."""
    world = small_world.make_world(sparsyfed, SPARSE)
    by_hand.starts(world)
    a_round(world, by_hand.sends, by_hand.averages)
    # A start with fewer weights than are sent: zeros do not travel.
    compiled = {k: v for k, v in world.shared.items() if k != ("start",)}
    mask = by_hand.kernels(lambda m: m.at[2:].set(False), world.model.mask)
    assert by_hand.support(mask).sum() < by_hand.COUNT
    fewer = world._replace(model=world.model._replace(mask=mask), shared=compiled)
    a_round(fewer, by_hand.sends, by_hand.averages)


@pytest.mark.slow
def test_a_round_of_top_k_by_hand():
    """At exponent 1 without sparse inputs, where weights come back."""
    arguments = {"exponent": 1.0, "sparse_inputs": False}
    world = small_world.make_world(sparsyfed, SPARSE | arguments)
    passings, _ = first_round(world)
    state, regrown = small_world.start(world), 0
    params, mask, _ = jax.device_get(world.model)
    received = by_hand.support(mask)
    for rate, data, passing in by_hand.passes.clients(world, 0, state, passings):
        sent = unpack_model(passing.up)
        want = by_hand.client(state.server.model, data, rate, **arguments)
        close((sent.params, sent.stats), want)
        regrown += np.sum((by_hand.support(sent.params) != 0) & ~received)
    assert regrown > 0
