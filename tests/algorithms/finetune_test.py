"""Fine-tuning: a client's steps by hand, what it is at rate 0, and what travels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import finetune
from sparsefl_jax.core.types import SparseModel
from tests.algorithms.scaffold_test import ENTRIES, MODEL, PLAIN, RATE
from tests.reference.by_hand import bare, batches, bits, context, server_context

COMMON = np.arange(1, ENTRIES + 1) * 1.0
MASK = np.array([True, False, True])


def tuned(target, optimizer=PLAIN, steps=3, rounds=1, **kwargs):
    """Returns the method, the server and a client's state after some rounds."""
    method = finetune(MODEL, optimizer, prunable=("w",), **kwargs)
    start = SparseModel({"w": jnp.float32(COMMON)}, {"w": jnp.array(MASK)}, {})
    server = method.init(None, start)
    client = method.first_state(None, server, None)
    for round in range(rounds):
        ctx = context(round, round - 1)
        down, data = method.broadcast(None, ctx, server), batches(steps, target)
        up, client, _ = method.update(jax.random.key(0), ctx, down, client, data)
        assert not down and not up
        total = method.contribute(ctx, up)
        server, _ = method.aggregate(None, server_context(round), server, total)
    return method, server, client


@pytest.mark.parametrize(("scale", "rounds"), [(1.0, 1), (0.5, 1), (0.5, 2)])
def test_a_client_trains_within_the_mask(scale, rounds):
    target = np.array([5.0, 5.0, -2.0])
    method, server, client = tuned(target, scale=scale, rounds=rounds)
    v = np.where(MASK, COMMON, 0)
    for _ in range(3 * rounds):
        v = v - np.where(MASK, scale * RATE * (v - target), 0)
    own = method.personalize(None, server, client, None)["personal"]
    np.testing.assert_allclose(own.params["w"], v, rtol=1e-6)
    np.testing.assert_array_equal(own.mask["w"], MASK)
    common = method.deploy(None, server)["global"]
    np.testing.assert_array_equal(common.params["w"], np.where(MASK, COMMON, 0))


def test_the_model_goes_down_once_with_its_mask():
    """4 bits say how many of eight are kept; 8 H(1/4) = 6.49."""
    params = {"fc": {"kernel": np.ones((4, 2)), "bias": np.ones(2)}}
    mask = {"fc": {"kernel": jnp.arange(8).reshape(4, 2) < 2, "bias": None}}
    mask["fc"]["bias"] = jnp.ones(2, bool)
    method = finetune(bare(params), PLAIN, index="packed")
    stats = {"mean": jnp.zeros(3)}
    start = SparseModel(jax.tree.map(jnp.float32, params), mask, stats)
    down = method.send_once(method.init(None, start))
    assert bits(down) == 32 * (2 + 2 + 3) + 4 + 7
