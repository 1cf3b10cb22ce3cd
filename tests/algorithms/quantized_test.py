"""FedAvg with few bits a value: its messages, its rounding and a round, by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import quantized
from sparsefl_jax.algorithms.compressed import make_rounding
from sparsefl_jax.core.types import SparseModel
from sparsefl_jax.testing import plain_loop, small_world
from sparsefl_jax.training import local
from tests.reference import by_hand
from tests.reference.by_hand import batches, bits, context, linear_loss, model_of

SGD = local.make_optimizer(learning_rate=0.5)
ROW = np.array([1.0, -2.0, 0.5, 0.0], np.float32)
START = np.array([3.0, -1.4, 0.6, 0.0], np.float32)


def played(start=START, row=ROW, **kwargs):
    """Returns both messages of a client, and the server's weights after it."""
    model = model_of(linear_loss, {"w": 1}, {"w": start})  # its gradient is `row`
    method = quantized(model, SGD, **kwargs)
    params, stats = model.init(jax.random.key(0))
    server = method.init(jax.random.key(1), SparseModel(params, None, stats))
    ctx, data = context(size=3), batches(1, row)
    down = method.broadcast(jax.random.key(2), ctx, server)
    _, up, _ = by_hand.one_client(method, server, ctx, data, jax.random.key(3))
    new, _ = by_hand.merged(method, server, (ctx, up))
    return down, up, np.asarray(new.params["w"])


def test_three_bits_have_levels_of_a_third_of_the_largest():
    """The largest is 3, so levels are whole numbers; -1.4 is nearest -1, 0.6 is 1."""
    down, *_ = played(bits=3)
    assert down["delta"].values["w"].tolist() == [3, -1, 1, 0]
    assert down["scale"].values["w"].item() == 3.0
    received = make_rounding(3, False).decode(down)["w"]
    assert received.tolist() == [3.0, -1.0, 1.0, 0.0]


def test_an_update_starts_from_the_decoded_model_and_is_added_to_the_server_s():
    """One step of 0.5 moves by -ROW / 2, in levels of 1/3 of its largest entry, 1.

    -0.5 lies between levels -2/3 and -1/3, 1 is a level, -0.25 lies between -1/3 and 0.
    The server adds it to its own weights, 3 and not what clients decode.
    """
    _, up, after = played(bits=3)
    level = up["delta"].values["w"]
    assert up["scale"].values["w"].item() == 1.0
    assert level[0] in (-2, -1) and level[1] == 3 and level[2] in (-1, 0)
    np.testing.assert_allclose(after, START + np.asarray(level) / 3, rtol=1e-6)


def test_random_rounding_keeps_the_mean():
    values = {"w": jnp.linspace(-1, 1, 41)}
    coder = make_rounding(3, True)
    keys = jax.random.split(jax.random.key(0), 4000)
    mean = jax.vmap(lambda key: coder.decode(coder.encode(key, values))["w"])(keys)
    # A level is 1/3, so the deviation of a draw is at most 1/6, and of the mean .0027.
    np.testing.assert_allclose(mean.mean(0), values["w"], atol=0.012)
    nearest = make_rounding(3, False)
    decoded = nearest.decode(nearest.encode(None, values))["w"]
    assert np.abs(decoded - values["w"]).max() <= 1 / 6 + 1e-6


def test_half_precision_is_that_of_numpy():
    down, up, after = played(bits=16)
    half = START.astype(np.float16)
    np.testing.assert_array_equal(down["delta"].values["w"], half)
    assert up["delta"].values["w"].dtype == jnp.float16
    # The step is -ROW / 2, but the difference of two float32 is what travels.
    trained = half.astype(np.float32) - ROW / 2
    change = (trained - half.astype(np.float32)).astype(np.float16)
    np.testing.assert_array_equal(after, START + change.astype(np.float32))


def test_a_model_of_zeros_stays_finite():
    down, _, after = played(start=np.zeros(4, np.float32), row=0 * ROW, bits=8)
    assert down["delta"].values["w"].tolist() == after.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("width, norms", [(8, 4), (16, 0)])
def test_a_downlink_costs_the_same_whoever_was_in_the_last_round(width, norms):
    """212 weights in four leaves, 16 statistics of 32 bits; 32 bits for each norm."""
    world = small_world.make_world(quantized, {"bits": width})
    n = 8 * 16 + 16 + 16 * 4 + 4
    again = [set(a) & set(b) for a, b in itertools.pairwise(world.cohorts.tolist())]
    assert any(again) and not all(len(both) == 3 for both in again)
    for round in range(4):
        for passing in plain_loop.passings(world, round):
            for message in (passing.down, passing.up):
                assert bits(message) == width * n + 32 * norms + 32 * 16
