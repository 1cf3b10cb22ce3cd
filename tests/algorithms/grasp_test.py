"""GraSP beyond the contract: what its scores mean, and its variants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax import models
from sparsefl_jax.algorithms import grasp
from sparsefl_jax.algorithms.grasp import gradient_flow
from sparsefl_jax.sparsity import masks
from tests.reference.by_hand import batches, context, one_client


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_draw_apart_and_the_gradient_has_the_same_draws(key, parts):
    """The scores of sum of u w^2 / 2 over parts, with u drawn, are (sum of u)^2 w^2."""
    drawn = []

    def loss_fn(key, params, stats, x):
        drawn.append(float(jax.random.uniform(key)))
        loss = drawn[-1] * jnp.sum(params["w"] ** 2) / 2
        return loss, (stats, {"loss": loss})

    params, select = {"w": jnp.array([1.0, 3.0])}, {"w": True}
    given = key, params, {}, jnp.zeros(6)
    scores, _ = gradient_flow(loss_fn, *given, select=select, parts=parts)
    assert len(set(drawn)) == parts
    want = sum(set(drawn)) ** 2 * np.array([1.0, 9.0])
    np.testing.assert_allclose(scores["w"], want, rtol=1e-5)


@pytest.mark.parametrize(
    ("temperature", "halves", "kept"),
    [(1.0, True, [0, 2]), (4.0, True, [1, 2]), (1.0, False, [1, 2])],
)
def test_what_stays_by_hand(key, temperature, halves, kept):
    """Of the logits l = m w / T, the loss l + h l^2 / 2 has the score h w (1 + h l).

    That is up to a factor; m = 1 in the first half, 0 in the other one, 1/2 in all.
    With h w = (-2, .5, 1.5, -.5) it is (2, .75, 3.75, -.25) at l = w, (0, .625, 2.625,
    -.375) at l = w / 2 and (-1, .5625, 2.0625, -.4375) at l = w / 4.
    """
    bend, weights = jnp.array([1.0, 1, -1, 1]), jnp.array([-2.0, 0.5, -1.5, -0.5])

    def apply(params, stats, x, *, train, weight=None, key=None):
        return params["w"] * jnp.mean(x), stats

    def loss(logits, y, weight):
        value, count = jnp.sum(logits + bend * logits**2 / 2), jnp.sum(weight)
        return value, {"loss": value, "correct": count, "count": count}

    params = {"w": weights}
    model = models.Model(lambda key: (params, {}), apply, {"w": 1}, loss=loss)
    settings = {"density": 0.5, "temperature": temperature, "halves": halves}
    method = grasp(model, None, prunable=("w",), **settings)
    server = method.init(key, masks.dense(params, {}))
    data = batches(2, [1.0])._replace(
        x=jnp.array([[1.0], [0], [1], [0]]),
        order=jnp.arange(4).reshape(1, 1, 4),
        weight=jnp.ones((1, 1, 4)),
    )
    _, up, _ = jax.jit(lambda: one_client(method, server, context(size=4), data))()
    assert np.flatnonzero(up["mask"].mask["w"]).tolist() == kept
