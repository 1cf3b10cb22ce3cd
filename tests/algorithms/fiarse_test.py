"""FIARSE: who holds what, the gradient at the threshold, the server, and the bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import fiarse
from sparsefl_jax.algorithms.fiarse import above
from sparsefl_jax.core.types import EmptyState
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from sparsefl_jax.training import local
from sparsefl_jax.wire.packets import pack_up, unpack_model
from tests.reference.by_hand import bare, bits, context, merged, same

KEY, OPTIMIZER = jax.random.key(0), local.make_optimizer()
TINY = small_world.tiny_model()  # kernels of 8 x 16 and 16 x 4
SHAPES = {"a": (30, 40), "b": (14, 26)}  # 1564 weights
RNG = np.random.default_rng(0)
PARAMS = {
    n: {"kernel": np.float32(RNG.normal(size=s)), "bias": np.ones(s[-1:], np.float32)}
    for n, s in SHAPES.items()
}


def start(params, stats=None):
    return masks.dense(jax.tree.map(jnp.asarray, params), stats or {})


# --- Who holds what


def received(budget, params=PARAMS, **arguments):
    method = fiarse(bare(params), OPTIMIZER, **arguments)
    server = method.init(KEY, start(params))
    return method.broadcast(KEY, context(3, last=2, budget=budget), server)


def largest(number, params=PARAMS):
    sizes = np.concatenate([np.abs(params[n]["kernel"]).ravel() for n in SHAPES])
    return {n: np.abs(params[n]["kernel"]) >= np.sort(sizes)[-number] for n in SHAPES}


@pytest.mark.parametrize(
    ("budget", "number"), [(1, 1564), (0.64, 1000), (1 / 4, 391), (1 / 16, 97)]
)
def test_a_client_holds_the_largest_of_all_layers_together(budget, number):
    got = unpack_model(received(budget))
    for name, mask in largest(number).items():
        np.testing.assert_array_equal(got.mask[name]["kernel"], mask)
        expected = PARAMS[name]["kernel"] * mask
        np.testing.assert_array_equal(got.params[name]["kernel"], expected)
        np.testing.assert_array_equal(got.params[name]["bias"], PARAMS[name]["bias"])


def test_a_product_beyond_float32_is_counted_exactly():
    """0.83 * 79 253 is 65 779.99, which float32 makes 65 780."""
    weights = np.arange(1, 79254, dtype=np.float32).reshape(-1, 1)
    got = unpack_model(received(0.83, {"a": {"kernel": weights}}))
    assert int(got.mask["a"]["kernel"].sum()) == 65779


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


# --- The server


def test_only_what_is_held_moves_by_the_mean_change():
    """Clients of 1 and 4 samples, no weights, add 1 and 3 to what they hold."""
    method, sent = fiarse(bare(PARAMS), OPTIMIZER, server_rate=0.5), []
    server = method.init(KEY, start(PARAMS))
    for size, budget, change in ((1, 1 / 4, 1), (4, 0.64, 3)):
        ctx, held = context(budget=budget, size=size), unpack_model(received(budget))
        moved = jax.tree.map(lambda w, m, c=change: w + c * m, held.params, held.mask)
        select = masks.prunable(PARAMS, masks.KERNELS)
        up = pack_up(held._replace(params=moved), held.mask, select, index="packed")
        sent.append((ctx, up))
    new, _ = merged(method, server, *sent)
    both, one = (largest(number) for number in (391, 1000))
    for name, weights in PARAMS.items():
        step = np.where(both[name], 2, np.where(one[name], 3, 0))
        want = weights["kernel"] + 0.5 * step
        np.testing.assert_allclose(new.params[name]["kernel"], want, atol=1e-5)


def test_deployed_at_every_size_and_cut_for_each_client():
    method = fiarse(TINY, OPTIMIZER, sizes=(0.25, 1.0))
    server, ctx = method.init(KEY, start(*TINY.init(KEY))), context(budget=0.25)
    models, down = method.deploy(KEY, server), method.broadcast(KEY, ctx, server)
    assert list(models) == ["global", "d0.25", "d1.0"]
    mine = method.personalize(KEY, server, EmptyState(), ctx.client)["personal"]
    for part in (models["d0.25"], mine):
        same(part[:2], unpack_model(down)[:2])
    assert int(models["d1.0"].mask["fc1"]["kernel"].sum()) == 128
