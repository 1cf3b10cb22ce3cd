"""SNIP and GraSP: exact counts, which samples, what stays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax import models
from sparsefl_jax.algorithms import grasp, snip
from sparsefl_jax.core.types import Batches, SparseModel
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from tests.reference.by_hand import bare, batches, context, one_client, server_context

TINY = small_world.tiny_model()


@pytest.fixture
def model(key):
    params, stats = small_world.tiny_model().init(key)
    params = jax.tree.map(lambda p: p + 0.1, params)  # biases that matter
    return SparseModel(params, masks.full(params), stats)


def samples(number):
    """Draws clouds of two classes of equal size, sorted by class."""
    rng, y = np.random.default_rng(0), np.repeat([0, 1], number // 2)
    x = rng.normal(size=(number, small_world.FEATURES)) + y[:, None]
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32)


def told_by(stage, model, data, number):
    """Returns a client's uplink and metrics in round 0."""
    ctx, key = context(size=number), jax.random.key(7)
    server = stage.init(key, model)
    _, up, metrics = jax.jit(lambda: one_client(stage, server, ctx, data, key))()
    return up["mask"], metrics


@pytest.mark.parametrize(
    ("factory", "size", "density", "kept"),
    [
        (snip, 118282, 0.01, 1183),  # FedSparsify's MLP: n d = 1182.82
        (grasp, 10, 0.9, 9),  # int(10 * (1 - 0.9)) is 0 in floating point
    ],
)
def test_as_many_stay_as_the_rule_says(factory, size, density, kept):
    params = {"w": jnp.ones(size), "v": jnp.ones(3)}
    stage = factory(bare(params), None, density=density, prunable=("w",))
    server = SparseModel(params, masks.full(params), {})
    for votes in (jnp.zeros(size), jnp.arange(size) % 2.0):  # ties of many
        total = {"sum": {"w": votes, "v": None}, "weight": jnp.float32(1)}
        new, _ = stage.aggregate(jax.random.key(0), server_context(), server, total)
        assert int(new.mask["w"].sum()) == kept and new.mask["v"].all()
    lots = stage.init(jax.random.key(0), server)  # which stand without an uplink
    assert int(lots.mask["w"].sum()) == kept and lots.mask["v"].all()


def test_equal_votes_are_decided_by_lot():
    params = {"w": jnp.ones(100)}
    stage = snip(bare(params), None, density=0.5, prunable=("w",))
    votes = jnp.ones(100).at[90:].set(2)
    total = {"sum": {"w": votes}, "weight": jnp.float32(2)}
    server = SparseModel(params, masks.full(params), {})
    new, _ = stage.aggregate(jax.random.key(0), server_context(), server, total)
    assert 8 < int(new.mask["w"][:45].sum()) < 32 and new.mask["w"][90:].all()


def test_first_samples_of_a_client_with_fewer(model):
    """Only the client's own samples count, whatever the padding holds."""
    stage = snip(TINY, None, density=0.5, first_samples=True)
    x, y = samples(6)
    order, weight = jnp.zeros((1, 1, 8), jnp.int32), jnp.ones((1, 1, 8))

    def told(value, label):
        padding = jnp.full((4, small_world.FEATURES), value), jnp.full(4, label)
        own = (jnp.concatenate(pair) for pair in zip((x, y), padding, strict=True))
        return told_by(stage, model, Batches(*own, order, weight, jnp.int32(1)), 6)

    (want, _), (sent, metrics) = told(0.0, 0), told(jnp.nan, 3)
    jax.tree.map(np.testing.assert_array_equal, sent.mask, want.mask)
    assert metrics["count"] == 6


@pytest.mark.parametrize(("factory", "temperature"), [(snip, 1), (grasp, 200)])
def test_the_first_batch_scores_with_the_statistics_of_the_start(
    factory, temperature, model
):
    """Of the first epoch; in inference half of the given mean is subtracted."""
    x, y = samples(20)
    order = jnp.asarray([[[3, 14, 9, 0], [1, 2, 0, 0]], [[5, 0, 0, 0], [6, 7, 8, 0]]])
    weight = jnp.asarray([[[1, 1, 1, 0], [1, 1, 0, 0]], [[1, 0, 0, 0], [1, 1, 1, 1]]])
    data = Batches(
        x, y, order.astype(jnp.int32), weight.astype(jnp.float32), jnp.int32(2)
    )
    stats = {"mean": jnp.linspace(-3.0, 3.0, small_world.HIDDEN)}
    stage = factory(TINY, None, density=0.5, mode="inference")
    _, metrics = told_by(stage, model._replace(stats=stats), data, 20)
    p, rows = jax.tree.map(np.float64, model.params), [3, 14, 9]
    hidden = np.asarray(x)[rows] @ p["fc1"]["kernel"] + p["fc1"]["bias"]
    out = np.tanh(hidden - 0.5 * np.asarray(stats["mean"]))
    out = np.exp((out @ p["fc2"]["kernel"] + p["fc2"]["bias"]) / temperature)
    share = out[np.arange(3), np.asarray(y)[rows]] / out.sum(1)
    assert metrics["count"] == 3
    assert float(metrics["loss"]) == pytest.approx(-np.log(share).sum(), rel=1e-5)


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
