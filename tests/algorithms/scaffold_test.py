"""SCAFFOLD: rounds by hand on a quadratic loss, refusals, and what travels."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax import from_arrays, models
from sparsefl_jax.algorithms import scaffold
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.runs.setup import Setup, check_setup
from sparsefl_jax.training import local
from tests.algorithms import rounds
from tests.reference.by_hand import batches, bits, mean_of, model_of
from tests.refusals import refused

ENTRIES, RATE = 3, 0.5
PLAIN = local.make_optimizer("sgd", learning_rate=RATE)


SQUARES = mean_of(lambda params, x: jnp.sum((params["w"][None] - x) ** 2, 1) / 2)
MODEL = model_of(SQUARES, {"w": 1}, {"w": np.zeros(ENTRIES)})
TARGETS = np.array([[0.0, 4.0, 1.0], [8.0, 0.0, 3.0], [2.0, 2.0, -5.0]])
STEPS = (1, 3, 2)
COHORTS = [(0, 1), (1, 2), (0, 2), (0, 1, 2)]


def play(method, cohorts=COHORTS, steps=STEPS, lost=()):
    """Plays rounds of clients whose loss is |w - target|^2 / 2."""
    start = SparseModel({"w": jnp.arange(ENTRIES, dtype=jnp.float32)}, None, {})
    each = [batches(max(steps), t, own=n) for t, n in zip(TARGETS, steps, strict=True)]
    data = lambda round, i: each[i]  # noqa: E731
    return rounds.play(method, [start] * 3, data, cohorts, lost=lost)


def by_hand(cohorts=COHORTS, global_rate=1.0):
    """Returns x, c and all c_i after each round."""
    x, c, own = np.arange(ENTRIES) * 1.0, np.zeros(ENTRIES), np.zeros((3, ENTRIES))
    for ids in cohorts:
        moves, changes = [], []
        for i in ids:
            y = x
            for _ in range(STEPS[i]):
                y = y - RATE * ((y - TARGETS[i]) - own[i] + c)
            new = own[i] - c + (x - y) / (STEPS[i] * RATE)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x = x + global_rate * np.mean(moves, 0)
        c = c + len(ids) / 3 * np.mean(changes, 0)
        yield x, c, own.copy()


@pytest.mark.parametrize("global_rate", [1.0, 0.5])
def test_rounds_by_hand(global_rate):
    server_optimizer = None if global_rate == 1 else optax.sgd(global_rate)
    method = scaffold(MODEL, PLAIN, clients=3, server_optimizer=server_optimizer)
    hand = by_hand(global_rate=global_rate)
    for (_, clients, *_, server, _), want in zip(play(method), hand, strict=True):
        x, c, own = want
        np.testing.assert_allclose(server.params["w"], x, atol=1e-5)
        np.testing.assert_allclose(server.control["w"], c, atol=1e-5)
        np.testing.assert_allclose([v["w"] for v in clients], own, atol=1e-5)


def test_c_is_the_mean_of_all_variates_also_if_an_uplink_is_lost():
    method, lost = scaffold(MODEL, PLAIN, clients=3), [(1, 2), (3, 0)]
    for _, clients, *_, server, _ in play(method, lost=lost):
        mean = np.mean([v["w"] for v in clients], 0)
        np.testing.assert_allclose(server.control["w"], mean, atol=1e-6)
        assert np.abs(mean).max() > 0.1


def test_a_client_without_a_step_sends_zeros_and_keeps_its_variate():
    method = scaffold(MODEL, PLAIN, clients=3)
    states = [clients for _, clients, *_ in play(method, steps=(0, 3, 2))]
    for _, clients, _, ups, *_ in play(method, [(0,)], (0, 3, 2)):
        assert not ups[0]["delta"].values["w"].any()
        assert not ups[0]["control"].values["w"].any()
        assert not clients[0]["w"].any()
    assert np.isfinite([v["w"] for v in states[-1]]).all()


def test_messages_are_twice_those_of_fedavg():
    method = scaffold(MODEL, PLAIN, clients=3)
    _, _, downs, ups, *_ = next(play(method))
    assert bits(downs[0]) == bits(ups[0]) == 2 * 32 * ENTRIES


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (local.make_optimizer(momentum=0.9), "optimizer.momentum=0.9, expected none"),
        (local.make_optimizer("adam"), "optimizer.name='adam', expected 'sgd'"),
        (lambda round: optax.sgd(0.1), "optimizer.name=None, expected 'sgd'"),
    ],
)
def test_what_is_not_plain_sgd_is_refused_by_name(optimizer, said):
    refused(lambda: scaffold(MODEL, optimizer, clients=3), said)


def test_weight_decay_and_a_schedule_are_plain():
    """The decay is a part of the gradient: with one client all is SGD with decay.

    Of one step a round, c_1 is its gradient, x - target + decay x.
    """
    settings = {"schedule": lambda round: 0.5 * 0.5**round, "weight_decay": 0.1}
    optimizer = local.make_optimizer("sgd", **settings)
    method, x = scaffold(MODEL, optimizer, clients=1), np.arange(ENTRIES) * 1.0
    for round, told in enumerate(play(method, [(0,)] * 4)):
        _, clients, *_, server, _ = told
        gradient = x - TARGETS[0] + 0.1 * x
        np.testing.assert_allclose(clients[0]["w"], gradient, atol=1e-5)
        x = x - 0.5 * 0.5**round * gradient
        np.testing.assert_allclose(server.params["w"], x, atol=1e-5)


def test_another_number_of_clients_than_the_runs_is_refused():
    x, y = np.zeros((12, 5), np.float32), np.arange(12) % 2
    data, model = from_arrays(x, y, num_clients=3), models.build("mlp", 2, (5,))
    ours, other = (Stage(scaffold(MODEL, PLAIN, clients=n), 1, 1) for n in (3, 4))
    check_setup(Setup([ours], model, data))
    said = "clients=4, expected those of the run, 3"
    refused(lambda: check_setup(Setup([other], model, data)), said)
    refused(lambda: scaffold(MODEL, PLAIN, clients=0), "clients=0, expected")
