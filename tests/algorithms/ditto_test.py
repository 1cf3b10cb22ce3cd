"""Ditto: personal models by hand on a quadratic loss, and whose model is whose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import ditto
from sparsefl_jax.core.types import SparseModel
from tests.algorithms import scaffold_test as quadratic
from tests.algorithms.scaffold_test import ENTRIES, MODEL, PLAIN, RATE, TARGETS, play
from tests.reference.by_hand import batches, context


def by_hand(lam):
    """Returns x and all v_i, None before a client was drawn, after each round."""
    x, own = np.arange(ENTRIES) * 1.0, [None] * 3
    for ids in quadratic.COHORTS:
        moved = []
        for i in ids:
            y, v = x, x if own[i] is None else own[i]
            for _ in range(quadratic.STEPS[i]):
                y = y - RATE * (y - TARGETS[i])
                v = v - RATE * ((v - TARGETS[i]) + lam * (v - x))
            moved.append(y)
            own[i] = v
        x = np.mean(moved, 0)
        yield x, [*own]


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_rounds_by_hand(lam):
    method = ditto(MODEL, PLAIN, lam=lam)
    for told, (x, own) in zip(play(method), by_hand(lam), strict=True):
        _, clients, *_, server, _ = told
        np.testing.assert_allclose(server.params["w"], x, atol=1e-5)
        for client, v in zip(clients, own, strict=True):
            assert bool(client.drawn) == (v is not None)
            if v is not None:
                np.testing.assert_allclose(client.params["w"], v, atol=1e-5)
            used = method.personalize(None, server, client, None)["personal"]
            np.testing.assert_allclose(
                used.params["w"], x if v is None else v, atol=1e-5
            )


def trained(method, data):
    """Returns what a client sends, keeps and tells of its first round, from ones."""
    ctx, start = context(), SparseModel({"w": jnp.ones(ENTRIES)}, None, {})
    server = method.init(None, start)
    down = method.broadcast(None, ctx, server)
    client = method.first_state(None, server, None)
    return method.update(jax.random.key(0), ctx, down, client, data)


@pytest.mark.parametrize(("epochs", "targets"), [(None, [0, 8]), (3, [0, 8, 0])])
def test_the_epochs_of_a_personal_model_pass_in_turn(epochs, targets):
    """Of the stage's two, the first has samples of 0, the second of 8."""
    method = ditto(MODEL, PLAIN, lam=0.0, personal_epochs=epochs)
    x = jnp.concatenate([jnp.zeros((2, ENTRIES)), jnp.full((2, ENTRIES), 8.0)])
    order, weight = jnp.int32([[[0, 1]], [[2, 3]]]), jnp.ones((2, 1, 2))
    data = batches(2, np.zeros(ENTRIES), epochs=2)
    data = data._replace(x=x, order=order, weight=weight, num_steps=jnp.int32(1))
    up, client, metrics = trained(method, data)
    v = 1.0
    for target in targets:
        v -= RATE * (v - target)
    np.testing.assert_allclose(client.params["w"], v)
    np.testing.assert_allclose(up["delta"].values["w"], 4.25 - 1)  # two epochs
    assert metrics["count"] == 4
    assert metrics["work"].forward["w"] == 2 * (2 + len(targets))
