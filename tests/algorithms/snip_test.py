"""SNIP beyond the contract: what scores mean, exact counts, which samples, whole runs.

The runs are those of GraSP too.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsefl_jax.algorithms import grasp, snip
from sparsefl_jax.core.algorithm import Stage
from sparsefl_jax.core.types import Batches, SparseModel
from sparsefl_jax.data.batching import batches
from sparsefl_jax.sparsity import masks
from sparsefl_jax.testing import small_world
from tests.reference.by_hand import bare, context, one_client, server_context

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


def client_batches(number, size, seed=0):
    x, y = samples(number)
    rows = jnp.arange(number, dtype=jnp.int32)
    stage, steps = Stage(None, 1, 1, 1, size), jnp.int32(-(-number // size))
    own = x, y, rows, jnp.int32(number)
    return batches(jax.random.key(seed), *own, stage=stage, num_steps=steps)


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
    total = {"sum": {"w": jnp.ones(100)}, "weight": jnp.float32(2)}
    server = SparseModel(params, masks.full(params), {})
    mask = stage.aggregate(jax.random.key(0), server_context(), server, total)[0].mask[
        "w"
    ]
    assert 10 < int(mask[:50].sum()) < 40


def test_first_samples_of_a_client_with_fewer(model):
    """Only the client's own samples count, whatever the padding holds."""
    stage = snip(TINY, None, density=0.5, first_samples=True)
    data = client_batches(6, 8)

    def told(value, label):
        x = jnp.concatenate([data.x, jnp.full((4, small_world.FEATURES), value)])
        y = jnp.concatenate([data.y, jnp.full(4, label, jnp.int32)])
        return told_by(stage, model, data._replace(x=x, y=y), 6)

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


@pytest.mark.parametrize("factory", [snip, grasp])
def test_masks_that_travel_for_free_are_refused(factory):
    with pytest.raises(ValueError, match="index='none', expected one of bitmap"):
        factory(TINY, None, density=0.5, index="none")
