"""FIARSE: the bits, the gradient without a threshold, the server, slices."""

import jax
import jax.numpy as jnp
import numpy as np

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


def received(budget, **arguments):
    method = fiarse(bare(PARAMS), OPTIMIZER, **arguments)
    server = method.init(KEY, start(PARAMS))
    return method.broadcast(KEY, context(3, last=2, budget=budget), server)


def largest(number):
    sizes = np.concatenate([np.abs(PARAMS[n]["kernel"]).ravel() for n in SHAPES])
    return {n: np.abs(PARAMS[n]["kernel"]) >= np.sort(sizes)[-number] for n in SHAPES}


def test_bits_by_hand():
    """A client that was drawn before gets the positions again, a bit a weight."""
    down = received(1 / 4, index="bitmap")
    assert bits(down) == 32 * (391 + 40 + 26) + 1200 + 364


# --- The gradient


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
