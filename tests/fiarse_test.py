"""FIARSE: who holds what, the gradient at the threshold, the server, and the bits."""

import jax
import jax.numpy as jnp
import numpy as np

from sparsefl_jax.algorithms import fiarse
from sparsefl_jax.algorithms.fiarse import above
from sparsefl_jax.core.types import EmptyState, SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from sparsefl_jax.training import local
from sparsefl_jax.wire.messages import unpack_model
from tests.by_hand import bare, bits, close, context, merged

KEY, RATE = jax.random.key(0), 0.1
OPTIMIZER = local.make_optimizer("sgd", learning_rate=RATE)
TINY = small_world.tiny_model()  # kernels of 8 x 16 and 16 x 4
SHAPES = {"a": (30, 40), "b": (14, 26)}  # 1564 weights
RNG = np.random.default_rng(0)
PARAMS = {
    n: {"kernel": np.float32(RNG.normal(size=s)), "bias": np.ones(s[-1:], np.float32)}
    for n, s in SHAPES.items()
}
MORE = jax.tree.map(lambda w: w + 1, PARAMS)


def start(params, stats=None):
    params = jax.tree.map(jnp.asarray, params)
    return SparseModel(params, masks.full(params), stats or {})


# --- Who holds what


def received(budget, params=PARAMS, **arguments):
    method = fiarse(bare(params), OPTIMIZER, **arguments)
    server = method.init(KEY, start(params))
    return method.broadcast(KEY, context(3, last=2, budget=budget), server)


def test_so_many_are_held_as_a_decimal_says():
    """float32(0.21) times 300 is below 63."""
    weights = np.arange(1, 301, dtype=np.float32).reshape(15, 20)
    assert np.float32(0.21) * np.float32(300) < 63
    for budget, number in ((0.21, 63), (0.999, 299), (0.003, 0)):
        got = unpack_model(received(budget, {"a": {"kernel": weights}}))
        assert int(got.mask["a"]["kernel"].sum()) == number


def test_bits_by_hand():
    """A client that was drawn before gets the positions again, a bit a weight."""
    down = received(1 / 4, index="bitmap")
    assert bits(down) == 32 * (391 + 40 + 26) + 1200 + 364


# --- The gradient


def test_the_gradient_passes_the_threshold():
    w = jnp.array([-4.0, -2.0, -1.0, 0.0, 1.999, 2.0, 3.0])
    t, g = jnp.float32(2.0), jnp.arange(1.0, 8.0)
    value, pull = jax.vjp(lambda w: above(w, t), w)
    np.testing.assert_array_equal(value, [-4, -2, 0, 0, 0, 2, 3])
    # 1 + 2 t |w| / (|w| + t)^2: 1 + 16 / 36, 1.5, and 1 + 12 / 25
    factor = np.array([1 + 16 / 36, 1.5, 0, 0, 0, 1.5, 1.48])
    np.testing.assert_allclose(pull(g)[0], g * factor, rtol=1e-6)
    _, pull = jax.vjp(lambda w: above(w, t, "masked"), w)
    np.testing.assert_array_equal(pull(g)[0], g * (factor > 0))


def test_without_a_threshold_the_gradient_is_that_of_the_weights():
    w = jnp.array([0.0, -0.0, 1e-30, -5.0])
    slope = jax.grad(lambda w: jnp.sum(above(w, jnp.float32(0.0))))(w)
    np.testing.assert_array_equal(slope, np.ones(4))
    assert jax.grad(lambda t: jnp.sum(above(w, t)))(jnp.float32(1.0)) == 0


# --- The server and its models


def test_an_entry_moves_by_the_servers_rate_times_the_mean_change():
    method = fiarse(bare(PARAMS), OPTIMIZER, server_rate=0.5)
    server, more = (method.init(KEY, start(p)) for p in (PARAMS, MORE))
    ctx = context(budget=1.0)
    new, _ = merged(method, server, (ctx, method.broadcast(KEY, ctx, more)))
    close(new.params, jax.tree.map(lambda w: w + 0.5, PARAMS), atol=2e-6)


def test_deployed_at_every_size_and_cut_for_each_client():
    method = fiarse(TINY, OPTIMIZER, sizes=(0.25, 1.0))
    server = method.init(KEY, start(*TINY.init(KEY)))
    down = method.broadcast(KEY, context(budget=0.25), server)
    models = method.deploy(KEY, server)
    assert list(models) == ["global", "d0.25", "d1.0"]
    info = context(budget=0.25).client
    mine = method.personalize(KEY, server, EmptyState(), info)["personal"]
    for part in (models["d0.25"], mine):
        jax.tree.map(np.testing.assert_array_equal, part[:2], unpack_model(down)[:2])
    assert int(models["d1.0"].mask["fc1"]["kernel"].sum()) == 128
