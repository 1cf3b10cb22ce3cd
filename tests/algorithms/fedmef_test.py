"""FedMef beyond the contract: squeezing and pruning by hand, and bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fedmef
from sparsefl_jax.training import local
from sparsefl_jax.wire.packets import unpack_model
from tests.reference.by_hand import batches, context, one_client, server_context
from tests.reference.regrowth_by_hand import halved

FIRST, LATER, MOMENTUM = 0.5, 0.05, 0.9  # rates of round 0 and of those that follow


def scheduled(round):
    return jnp.where(round > 0, LATER, FIRST)


OPTIMIZER = local.make_optimizer("sgd", momentum=MOMENTUM, schedule=scheduled)
WEIGHTS = np.arange(16, 0, -1) / 40
ALIVE, LOW = np.arange(16) < 8, np.isin(np.arange(16), (5, 6, 7))
# Round 10: int(0.3989 * 8) = 3 of the 8 alive weights are in doubt.
ROW = np.random.default_rng(0).normal(size=16).astype(np.float32)
STEPS, OWN, EPOCHS = 4, 3, 2
DATA = batches(STEPS, ROW, epochs=EPOCHS, own=OWN)


def made(**kwargs):
    """Returns a method on 16 weights, of which the first 8 are alive, and a server."""
    return halved(fedmef, WEIGHTS, OPTIMIZER, start="magnitude", **kwargs)


def uplink(method, server, round):
    return jax.jit(lambda: one_client(method, server, context(round), DATA)[1])()


def squeezed(penalty, low, rate):
    """Returns the weights after a client's steps, and the rates of the steps."""
    w, v, total, rates = np.where(ALIVE, WEIGHTS, 0.0), 0.0, EPOCHS * OWN, []
    for s in range(total):
        norm = np.sqrt(np.sum(w[low] ** 2))
        left = (2 * total - 2 * s) / (2 * total - s)
        beta = left * (2 / (1 + np.exp(-norm)) - 1) * FIRST
        grad = np.float64(ROW) + 2 * penalty * np.where(low, w, 0)
        v = MOMENTUM * v + np.where(ALIVE, grad, 0)
        rates.append(max(rate, beta))
        w = w - rates[-1] * v
    return w, rates


def test_clients_squeeze_what_is_in_doubt():
    method, server = made(penalty=0.7)
    want, rates = squeezed(0.7, LOW, LATER)
    assert max(rates) > 2 * LATER and min(rates) == LATER
    sent = uplink(method, server, 10)
    got = unpack_model(sent)
    np.testing.assert_allclose(got.params["w"], want, atol=2e-6)
    np.testing.assert_array_equal(got.mask["w"], ALIVE)
    steep = np.argsort(np.where(ALIVE, 0, -np.abs(ROW)))[:3]
    assert np.flatnonzero(sent["grown"].mask["w"]).tolist() == sorted(steep)
    np.testing.assert_allclose(sent["grown"].values["w"][steep], ROW[steep], 1e-6)


MEAN = np.where(np.arange(16) == 1, 1e-3, WEIGHTS) * ALIVE  # weight 1 has shrunk
SLOPE = np.float32([*[0] * 9, -3, 0, 0, 2, 0, 0, 0])  # of holes of 0 the first grows


# The sum over two clients that sent the same, of one sample each.
TOTAL = {
    "mean": {"sum": ({"w": jnp.float32(2 * MEAN)}, {}), "weight": jnp.float32(2)},
    "grown": {"sum": {"w": jnp.float32(2 * SLOPE)}, "weight": jnp.float32(2)},
}


@pytest.mark.parametrize(
    "prune_by, gone", [("received", [5, 6, 7]), ("aggregate", [1, 6, 7])]
)
def test_the_server_prunes_them_and_grows_by_the_mean_gradient(prune_by, gone):
    method, server = made(prune_by=prune_by)
    aggregate = jax.jit(method.aggregate)
    key = jax.random.key(0)
    for round, due in ((9, False), (10, True), (290, False)):  # int(0.0011 * 8) = 0
        new, _ = aggregate(key, server_context(round), server, TOTAL)
        stay = ALIVE & ~np.isin(np.arange(16), gone) if due else ALIVE
        want = stay | (np.isin(np.arange(16), [8, 9, 12]) & due)
        np.testing.assert_array_equal(new.model.mask["w"], want)
        np.testing.assert_allclose(new.model.params["w"], MEAN * stay, rtol=1e-6)
        assert new.changed_at == (11 if due else 0)
