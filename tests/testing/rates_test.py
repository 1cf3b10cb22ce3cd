"""Runs that differ in their learning rates share a program, whatever the method."""

import dataclasses

import jax
import numpy as np
import pytest

from sparsefl_jax.simulation import round_program
from sparsefl_jax.testing import small_world
from sparsefl_jax.training import local
from tests.networks import mostly_slow
from tests.testing.contract_test import TABLE


def lower(row, rate):
    """Lowers four rounds of a method whose clients start at this rate."""
    usual = local.make_optimizer("sgd", momentum=0.9)
    optimizer = dataclasses.replace(
        row.optimizer or usual, rate=lambda round: rate * 0.9**round
    )
    world = small_world.make_world(row.factory, row.kwargs, optimizer=optimizer)
    rounds = np.arange(4, dtype=np.int32)
    rates = world.algorithm.rates(rounds)
    assert rates == pytest.approx(rate * 0.9**rounds)
    segment = jax.jit(round_program.make_segment(small_world.plan(world)))
    state = small_world.start(world)
    rest = rounds, world.cohorts, None, np.int32(4), rates
    return segment.lower(world.key, world.population, state, *rest).as_text()


OWN = {"fedmef", "fedmef_aggregate"}  # reads the rate of round 0 too


@mostly_slow(TABLE, quick=("fedavg", "scaffold"))
def test_rates_share_a_program(name):
    one, other = (lower(TABLE[name], rate) for rate in (0.1, 0.05))
    assert (one == other) != (name in OWN)
