"""SCAFFOLD: rounds by hand on a quadratic loss, refusals, and what travels."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sparsefl_jax.algorithms import scaffold
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.runs.setup import Setup, check_setup
from sparsefl_jax.training import local
from tests.reference.by_hand import batches, bits, context, model_of, server_context
from tests.refusals import refused

ENTRIES, RATE = 3, 0.5
PLAIN = local.make_optimizer("sgd", learning_rate=RATE)


def quadratic(key, params, stats, x, y, weight):
    """Loss |w - x|^2 / 2, its gradient w minus the mean of x."""
    count = jnp.sum(weight)
    total = jnp.sum(weight[:, None] * (params["w"][None] - x) ** 2) / 2
    sums = {"loss": total, "correct": jnp.float32(0), "count": count}
    return total / jnp.maximum(count, 1), (stats, sums)


MODEL = model_of(quadratic, {"w": 1}, {"w": np.zeros(ENTRIES)})
TARGETS = np.array([[0.0, 4.0, 1.0], [8.0, 0.0, 3.0], [2.0, 2.0, -5.0]])
STEPS = (1, 3, 2)
COHORTS = [(0, 1), (1, 2), (0, 2), (0, 1, 2)]


def play(method, cohorts=COHORTS, targets=TARGETS, steps=STEPS, lost=(), starts=None):
    """Yields the server, the clients' states and the uplinks of each round.

    Args:
      method: an algorithm on `MODEL`.
      cohorts: the clients of each round.
      targets: [N, entries], the samples of each client.
      steps: of each client.
      lost: pairs (round, client) whose uplink does not arrive.
      starts: the model that each client begins from, by default the same.
    """
    key = jax.random.key(0)
    start = SparseModel({"w": jnp.arange(ENTRIES, dtype=jnp.float32)}, None, {})
    servers = [method.init(key, m) for m in starts or [start] * len(targets)]
    infos = [context(index=i).client for i in range(len(targets))]
    clients = [method.first_state(key, *of) for of in zip(servers, infos, strict=True)]
    server = servers[0]
    update = jax.jit(method.update)
    for round, ids in enumerate(cohorts):
        total, ups = 0, []
        for i in ids:
            ctx = context(round, index=i)
            data = batches(max(steps), targets[i], own=steps[i])
            down = method.broadcast(key, ctx, server)
            up, after, _ = update(key, ctx, down, clients[i], data)
            if (round, i) in lost:
                clients[i] = method.drop_uplink(ctx, clients[i], after)
                continue
            one = method.contribute(ctx, up)
            total = one if total == 0 else jax.tree.map(jnp.add, total, one)
            clients[i] = after
            ups.append(up)
        server, _ = method.aggregate(key, server_context(round), server, total)
        yield server, list(clients), ups


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
    for (server, clients, _), (x, c, own) in zip(play(method), hand, strict=True):
        np.testing.assert_allclose(server.params["w"], x, atol=1e-5)
        np.testing.assert_allclose(server.control["w"], c, atol=1e-5)
        np.testing.assert_allclose([v["w"] for v in clients], own, atol=1e-5)


def test_c_is_the_mean_of_all_variates_also_if_an_uplink_is_lost():
    lost = (1, 2), (3, 0)
    for server, clients, _ in play(scaffold(MODEL, PLAIN, clients=3), lost=lost):
        mean = np.mean([v["w"] for v in clients], 0)
        np.testing.assert_allclose(server.control["w"], mean, atol=1e-6)
        assert np.abs(mean).max() > 0.1


def test_a_client_without_a_step_sends_zeros_and_keeps_its_variate():
    method = scaffold(MODEL, PLAIN, clients=3)
    states = [client for _, client, _ in play(method, steps=(0, 3, 2))]
    for _, clients, ups in play(method, steps=(0, 3, 2), cohorts=[(0,)]):
        assert not ups[0]["delta"].values["w"].any()
        assert not ups[0]["control"].values["w"].any()
        assert not clients[0]["w"].any()
    assert np.isfinite([v["w"] for v in states[-1]]).all()


def test_messages_are_twice_those_of_fedavg():
    method = scaffold(MODEL, PLAIN, clients=3)
    server, _, (up, _) = next(play(method))
    down = method.broadcast(None, context(), server)
    for message in (down, up):
        assert bits(message) == 2 * 32 * ENTRIES


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
    for round, (server, clients, _) in enumerate(play(method, cohorts=[(0,)] * 4)):
        gradient = x - TARGETS[0] + 0.1 * x
        np.testing.assert_allclose(clients[0]["w"], gradient, atol=1e-5)
        x = x - 0.5 * 0.5**round * gradient
        np.testing.assert_allclose(server.params["w"], x, atol=1e-5)


def test_another_number_of_clients_than_the_runs_is_refused():
    data = SimpleNamespace(train=SimpleNamespace(size=np.ones(3)))
    ours, other = (Stage(scaffold(MODEL, PLAIN, clients=n), 1, 1) for n in (3, 4))
    check_setup(Setup([ours], None, data))
    said = "clients=4, expected those of the run, 3"
    refused(lambda: check_setup(Setup([other], None, data)), said)
    refused(lambda: scaffold(MODEL, PLAIN, clients=0), "clients=0, expected")
