"""GraSP beyond the contract: what its scores mean, its variants, every network."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax import models
from sparsefl_jax.algorithms.grasp import gradient_flow
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from sparsefl_jax.training import local

LOSS = local.objective(small_world.tiny_model())


def flow(loss_fn, *batch, select, parts=1):
    score = partial(gradient_flow, loss_fn, select=select, parts=parts)
    return jax.jit(score)(*batch)


def world(key, size=12):
    params, stats = small_world.tiny_model().init(key)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(size, small_world.FEATURES)), jnp.float32)
    y = jnp.asarray(rng.integers(small_world.CLASSES, size=size), jnp.int32)
    params = jax.tree.map(lambda p: p + 0.1, params)
    return params, stats, x, y, jnp.ones(size)


def norm_at(key, params, stats, *batch):
    """Returns |g|^2 as a function of a multiplicative mask."""
    flat, unflatten = jax.flatten_util.ravel_pytree(params)

    def norm(mask):
        grads, _ = jax.grad(LOSS, 1, has_aux=True)(
            key, unflatten(flat * mask), stats, *batch
        )
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))

    return jax.jit(jax.vmap(norm)), flat.size


def test_scores_are_half_the_slope_of_the_gradient_norm(key):
    """Scores differentiate by the mask; removing low ones helps the gradient."""
    batch = world(key)
    norm, size = norm_at(key, *batch)
    step = 0.02 * jnp.eye(size)
    slope = (norm(1 + step) - norm(1 - step)) / 0.04
    scores, told = flow(LOSS, key, *batch, select=masks.everything(batch[0]))
    found = jax.flatten_util.ravel_pytree(scores)[0]
    np.testing.assert_allclose(found, slope / 2, atol=2e-4)
    assert jnp.max(found) > 0.02 and jnp.min(found) < -0.02
    assert told["count"] == 12


@pytest.mark.parametrize("prunable", [("*",), ("*kernel",), ("fc2/kernel",)])
def test_scores_hold_the_whole_hessian_of_what_is_scored(key, prunable):
    """Other leaves are constants, and score 0."""
    params, stats, *batch = world(key)
    select = masks.prunable(params, prunable)
    flat, unflatten = jax.flatten_util.ravel_pytree(params)
    chosen = jax.tree.map(lambda s, p: jnp.full(p.shape, s), select, params)
    chosen = np.flatnonzero(jax.flatten_util.ravel_pytree(chosen)[0])

    def loss(part):
        return LOSS(key, unflatten(flat.at[chosen].set(part)), stats, *batch)[0]

    part = flat[chosen]
    slopes, curves = jax.jit(jax.grad(loss))(part), jax.jit(jax.hessian(loss))(part)
    want = np.zeros(flat.size, np.float32)
    want[chosen] = part * (curves @ slopes)
    scores, _ = flow(LOSS, key, params, stats, *batch, select=select)
    found = jax.flatten_util.ravel_pytree(scores)[0]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


TOKENS = ("char_gru", "encoder", "pretrained_encoder")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n == "mnistnet" else [pytest.mark.slow])
        for n in models.MODELS
        if n not in TOKENS  # they have no rules of our own
    ],
)
def test_every_network_has_a_hessian_product(key, name):
    """Forward over reverse passes through every rule for gradients of our own."""
    model = models.build(name, 4, (32, 32, 1))
    params, stats = jax.eval_shape(model.init, key)
    x = jax.ShapeDtypeStruct((4, 32, 32, 1), jnp.float32)
    y = jax.ShapeDtypeStruct((4,), jnp.int32)
    weight = jax.ShapeDtypeStruct((4,), jnp.float32)
    every = masks.everything(params)
    loss_fn = local.objective(model)
    score = partial(gradient_flow, loss_fn, parts=2, select=every)
    scores, _ = jax.eval_shape(score, key, params, stats, x, y, weight)
    assert scores == params
