"""Runs that differ in their learning rates share a program, whatever the method."""

import dataclasses

import jax
import numpy as np
import pytest

import sparsefl_jax as sfl
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


def test_a_round_has_its_own_rate_wherever_its_segment_begins():
    """The rate is 0 in all rounds but the second, each a segment of its own."""
    x, y = np.eye(8, dtype=np.float32), np.arange(8) % 4
    data = sfl.from_arrays(x, y, num_clients=2, x_test=x, y_test=y, seed=0)
    optimizer = local.make_optimizer(schedule=lambda round: 0.5 * (round == 1))
    model = small_world.tiny_model()
    stage = sfl.Stage(sfl.fedavg(model, optimizer), 3, 2)
    segments = sfl.segments(jax.random.key(0), [stage], model, data)
    kernels = [s.models["global"].params["fc1"]["kernel"] for s in segments]
    first, second, third = (np.asarray(v) for v in kernels)
    assert (second != first).any() and (third == second).all()
